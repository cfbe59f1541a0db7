"""The limits that were there before bursar's: they cap what it sets, and are given back as they were.

They are written down before the first limit of a group is set. So whoever comes next gives them back,
however bursar ended: the guard at once, or the next start, should both have been killed."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import BursarError, UsageError
from bursar.integrations.blkio.groups import Controller, Limits

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Found(msgspec.Struct, frozen=True):
    """What is written down, by which life, and since which start of the host: groups do not outlive it."""

    boot: str
    life: str
    limits: dict[str, Limits] = {}


class FoundLimits:
    """Of the groups of one device. `path`: in a folder that belongs to this process alone."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.life = secrets.token_hex(8)
        self._device = device
        self._boot = BOOT_ID.read_text().strip()
        before = read_found(path)
        self._limits = before.limits if before is not None and before.boot == self._boot else {}

    def note(self, controller: Controller, group: str) -> Limits:
        """What stood there before bursar's first limit."""
        if group not in self._limits:
            self._write({**self._limits, group: controller.limits(group, self._device)})
        return self._limits[group]

    def give_back(self, controller: Controller, group: str) -> None:
        """As it was before. A group that is gone needs nothing."""
        if group in self._limits:
            give_back(controller, self._device, group, self._limits[group])
            self.forget(group)

    def forget(self, group: str) -> None:
        """It is gone: whoever makes one of that name again begins anew."""
        if group in self._limits:
            self._write({name: limits for name, limits in self._limits.items() if name != group})

    def give_all_back(self, controller: Controller) -> None:
        """Raises BursarError if one could not be; the others were."""
        failures = []
        for group in list(self._limits):
            try:
                self.give_back(controller, group)
            except BursarError as error:
                failures.append(str(error))
        if failures:
            raise BursarError("; ".join(failures))

    def _write(self, limits: dict[str, Limits]) -> None:
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(Found(self._boot, self.life, limits)))
        new.rename(self.path)
        self._limits = limits


def give_back(controller: Controller, device: str, group: str, limits: Limits) -> None:
    """A group that is gone needs nothing."""
    if (controller.root / group).exists():
        controller.limit(group, device, limits)


def read_found(path: Path) -> Found | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Found)
    except FileNotFoundError:
        return None
    except DECODE_ERRORS as error:
        raise UsageError(f"{path} holds no limits: {error}; delete it") from error
