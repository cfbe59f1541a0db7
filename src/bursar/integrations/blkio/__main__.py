"""`python -m bursar.integrations.blkio CONFIG.json`: shares one device among cgroups until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from bursar.errors import BursarError, UsageError
from bursar.integrations.blkio.enforcer import GroupEnforcer
from bursar.integrations.blkio.groups import V1_WARNING, find_controller, find_device
from bursar.integrations.blkio.guard import Guard
from bursar.integrations.running import run_target
from bursar.shares.book import TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.handout import TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate, write_size
from bursar.world import MILLISECOND_NS, World


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant: the path of its cgroup below the controller's root, and its terms."""

    path: str
    weight: int = 1
    borrow: int | None = None
    lend: int | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """capacity_bytes None: estimated. device: MAJOR:MINOR, a block device, or a file on it."""

    device: str
    tenants: dict[str, Group]
    capacity_bytes: int | None = None
    interval_ms: int = 100
    root: str = "/sys/fs/cgroup"


START_BYTES = 64 * 1024 * 1024


def main() -> int:
    try:
        config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
        asyncio.run(run_target("blkio", lambda world: make_target(config, world)))
    except (OSError, IndexError, msgspec.MsgspecError, BursarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def make_target(config: Config, world: World) -> Target:
    """The target of a configuration, with the limits of any life before lifted."""
    controller = find_controller(Path(config.root))
    device = find_device(config.device)
    if not config.tenants:
        raise UsageError("tenants names each tenant's cgroup: there is none")
    groups = {name: group.path for name, group in config.tenants.items()}
    for path in groups.values():
        if ".." in Path(path).parts or Path(path).is_absolute():
            raise UsageError(f"a group is a path below {controller.root}, not {path!r}")
        controller.unlimit(path, device)
    enforcer = GroupEnforcer(controller, device, groups, Guard(controller, device, list(groups.values())))
    terms = {name: TenantTerms(g.weight, g.borrow, g.lend) for name, g in config.tenants.items()}
    capacity = Rate.of(config.capacity_bytes or START_BYTES, "bytes")
    book = TargetBook(terms, capacity, config.interval_ms * MILLISECOND_NS)
    probe = CapacityProbe(START_BYTES, config.capacity_bytes)
    if controller.version == 1:
        print(V1_WARNING, flush=True)
    said = "estimated" if config.capacity_bytes is None else f"{write_size(config.capacity_bytes)}/s"
    print(f"ready: device {device}, capacity {said}, {len(groups)} groups", flush=True)
    return Target(world, device, book, enforcer, probe=probe)


if __name__ == "__main__":
    sys.exit(main())
