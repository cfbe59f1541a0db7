"""`python -m bursar.integrations.lustre CONFIG.json`: shares one OSS among jobs until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from bursar.errors import BursarError, UsageError
from bursar.integrations.lustre.enforcer import Lctl, LustreEnforcer
from bursar.integrations.running import run_target
from bursar.shares.book import TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.handout import TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, World

START_RATE = 1_000


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tenants: job ids with their terms, "*" for every other job. capacity: RPCs a second of the
    whole OSS; None: estimated. lctl: the command to run."""

    tenants: dict[str, TenantTerms]
    capacity: int | None = None
    interval_ms: int = 100
    lctl: list[str] = msgspec.field(default_factory=lambda: ["lctl"])


def main() -> int:
    try:
        config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
        asyncio.run(run_target("lustre", lambda world: make_target(config, world)))
    except (OSError, IndexError, msgspec.MsgspecError, BursarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def make_target(config: Config, world: World) -> Target:
    if not config.tenants or not config.lctl:
        raise UsageError('tenants names job ids, or "*" for all; lctl the command: one is empty')
    enforcer = LustreEnforcer(Lctl(config.lctl))
    await enforcer.open()
    capacity = Rate.of(config.capacity or START_RATE)
    book = TargetBook(config.tenants, capacity, config.interval_ms * MILLISECOND_NS)
    probe = None if config.capacity else CapacityProbe(START_RATE)
    print(f"ready: capacity {config.capacity or 'estimated'}, {len(config.tenants)} tenants", flush=True)
    return Target(world, "oss", book, enforcer, probe=probe)


if __name__ == "__main__":
    sys.exit(main())
