"""A device's enforcer, with the limits of an earlier life given back first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bursar.errors import UsageError
from bursar.integrations.blkio.discovery import Discovery
from bursar.integrations.blkio.enforcer import GroupEnforcer
from bursar.integrations.blkio.found import FoundLimits
from bursar.integrations.blkio.groups import V1_WARNING, Controller, find_controller, find_device
from bursar.integrations.blkio.guard import Guard
from bursar.policy.values import SharePolicy
from bursar.runtime import logs

VERSIONS = {"blkio": 1, "io.max": 2}


def open_enforcer(
    controller: Controller, device: str, look: Callable[[], Mapping[str, str]], path: Path
) -> GroupEnforcer:
    """`path`: where the limits that were found are written down."""
    found = FoundLimits(path, device)
    found.give_all_back(controller)
    return GroupEnforcer(controller, device, look, found, Guard(controller, device, found))


def open_for(name: str, policy: SharePolicy, folder: Path) -> GroupEnforcer:
    """The enforcer that a policy names. Its tenants are the paths of groups."""
    if policy.device is None:
        raise UsageError(f'[resource.{name}] enforce = "{policy.enforce}" needs device = "/dev/..."')
    controller = find_controller(unit=policy.costs, version=VERSIONS[policy.enforce])
    if controller.version == 1:
        logs.warning("blkio.version_1", resource=name, what=V1_WARNING)
    discovery = Discovery(controller, policy.tenants, policy.templates)
    return open_enforcer(
        controller, find_device(policy.device), discovery.look, folder / f"limits-{name}.json"
    )
