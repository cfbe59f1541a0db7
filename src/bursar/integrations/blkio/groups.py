"""The files of the I/O controller, in both versions' formats."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from bursar.errors import BursarError, FormatError, UsageError

FILE_MAX_BYTES = 256 * 1024
V1_WARNING = (
    "cgroup v1: buffered writes are neither seen nor held back, only reads and O_DIRECT writes; "
    "use cgroup v2 where those matter"
)
_DEVICE = re.compile(r"\d{1,5}:\d{1,7}")


class GroupMissingError(BursarError):
    """A cgroup that is gone: its processes ended, or someone removed it."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes or requests, read and written since the group was made."""

    read: int
    written: int


class Limits(NamedTuple):
    """Tokens a second, of each direction; None: no limit."""

    read: int | None = None
    write: int | None = None


NO_LIMITS = Limits()
Unit = Literal["bytes", "requests"]


class Controller(Protocol):
    """One version's language, for one unit. `group` is a path below the controller's root."""

    version: int
    root: Path
    unit: Unit

    def read(self, group: str, device: str) -> Counts:
        """Raises GroupMissingError, FormatError."""

    def limits(self, group: str, device: str) -> Limits:
        """Those that stand. Raises GroupMissingError, FormatError."""

    def limit(self, group: str, device: str, limits: Limits) -> None:
        """Hold a group to so many tokens a second; without any, a group that is gone is as good. Raises
        GroupMissingError, BursarError."""


class BlkioV1:
    """cgroup v1: one file for each direction, `MAJOR:MINOR RATE`; rate 0 lifts a limit."""

    version = 1

    def __init__(self, root: Path, unit: Unit = "bytes") -> None:
        self.root = root
        self.unit: Unit = unit
        self._counts = "io_service_bytes" if unit == "bytes" else "io_serviced"
        kind = "bps" if unit == "bytes" else "iops"
        self._files = [f"blkio.throttle.{way}_{kind}_device" for way in ("read", "write")]

    def read(self, group: str, device: str) -> Counts:
        return parse_v1(_read(self.root / group / f"blkio.throttle.{self._counts}"), device)

    def limits(self, group: str, device: str) -> Limits:
        return Limits(*(parse_limit_v1(_read(self.root / group / name), device) for name in self._files))

    def limit(self, group: str, device: str, limits: Limits) -> None:
        try:
            for name, rate in zip(self._files, limits, strict=True):
                _write(self.root / group / name, f"{device} {rate or 0}")
        except GroupMissingError:
            if limits != NO_LIMITS:
                raise


class IoV2:
    """cgroup v2: `io.max` takes `MAJOR:MINOR rbps=N wbps=N`; "max" lifts a limit."""

    version = 2

    def __init__(self, root: Path, unit: Unit = "bytes") -> None:
        self.root = root
        self.unit: Unit = unit
        self._counts = ("rbytes", "wbytes") if unit == "bytes" else ("rios", "wios")
        self._keys = ("rbps", "wbps") if unit == "bytes" else ("riops", "wiops")

    def read(self, group: str, device: str) -> Counts:
        return parse_v2(_read(self.root / group / "io.stat"), device, self._counts)

    def limits(self, group: str, device: str) -> Limits:
        found = _fields_of(_read(self.root / group / "io.max"), device)
        words = [found.get(key, "max") for key in self._keys]
        return Limits(*(None if word == "max" else _count(word, word) for word in words))

    def limit(self, group: str, device: str, limits: Limits) -> None:
        pairs = zip(self._keys, limits, strict=True)
        said = " ".join(f"{key}={'max' if rate is None else rate}" for key, rate in pairs)
        try:
            _write(self.root / group / "io.max", f"{device} {said}")
        except GroupMissingError:
            if limits != NO_LIMITS:
                raise


def parse_limit_v1(text: str, device: str) -> int | None:
    """`8:16 1048576` lines."""
    for line in text.splitlines():
        name, _, rate = line.partition(" ")
        if name == device:
            return _count(rate.strip(), line) or None
    return None


def parse_v1(text: str, device: str) -> Counts:
    """`8:16 Read 4096` lines. A group without I/O on the device has no line for it: zero."""
    counts = {"Read": 0, "Write": 0}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] == device and parts[1] in counts:
            counts[parts[1]] = _count(parts[2], line)
    return Counts(counts["Read"], counts["Write"])


def parse_v2(text: str, device: str, keys: tuple[str, str] = ("rbytes", "wbytes")) -> Counts:
    """`8:16 rbytes=4096 wbytes=0 rios=1 ...` lines."""
    found = _fields_of(text, device)
    return Counts(*(_count(found.get(key, "0"), f"{device} {key}={found.get(key)}") for key in keys))


def _fields_of(text: str, device: str) -> dict[str, str]:
    """The `key=value` fields of a device's line; none where it has no line."""
    for line in text.splitlines():
        name, *fields = line.split() or [""]
        if name == device:
            return {key: value for key, _, value in (field.partition("=") for field in fields)}
    return {}


def _count(word: str, line: str) -> int:
    if not word.isdecimal() or len(word) > 20:
        raise FormatError(f"{word!r} is no count, in the line {line[:80]!r}")
    return int(word)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_MAX_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise _explain(path, error) from error


def _write(path: Path, text: str) -> None:
    try:
        # Not `open(..., "w")`: a file that is missing here must not be made.
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise _explain(path, error, text) from error


def _explain(path: Path, error: OSError, text: str = "") -> BursarError:
    if isinstance(error, FileNotFoundError) or (error.errno in (19, 2) and not path.parent.exists()):
        if not path.parent.exists():
            return GroupMissingError(f"the cgroup {path.parent} is gone")
        return BursarError(f"{path.parent} has no {path.name}: the I/O controller is not enabled for it")
    if isinstance(error, PermissionError):
        return BursarError(f"{path} cannot be opened: {error.strerror}; run as root, or own the cgroup")
    said = f" {text!r}" if text else ""
    return BursarError(f"{path} did not take{said}: {error.strerror}; does the device exist?")


def find_controller(
    root: Path = Path("/sys/fs/cgroup"), unit: Unit = "bytes", version: int | None = None
) -> Controller:
    """Whichever version manages I/O here, or the one asked for. Raises UsageError with what to do where
    there is none."""
    v1 = root / "blkio"
    if version != 2 and (v1 / "blkio.throttle.read_bps_device").exists():
        return BlkioV1(v1, unit)
    if version != 1 and (root / "cgroup.controllers").exists():
        controllers = _read(root / "cgroup.controllers").split()
        if "io" in controllers:
            return IoV2(root, unit)
    which = "" if version is None else f" of version {version}"
    raise UsageError(
        f"no I/O controller{which} below {root}: mount one (mount -t cgroup -o blkio none {v1}), or enable "
        "cgroup v2's (echo +io > cgroup.subtree_control)"
    )


def find_device(name: str) -> str:
    """MAJOR:MINOR of a block device given as such, or as /dev/NAME, or as any file on it: limits
    hold for whole disks, so a partition stands for its disk. Raises UsageError."""
    number = name if _DEVICE.fullmatch(name) else _number_of(Path(name))
    device = Path("/sys/dev/block") / number
    if not device.exists():
        raise UsageError(f"there is no block device {number} here; see lsblk")
    if (device / "partition").exists():
        return (device.resolve().parent / "dev").read_text().strip()
    return number


def _number_of(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a block device or a file on it") from error
    number = status.st_rdev if path.is_block_device() else status.st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@dataclass(frozen=True, slots=True)
class Queue:
    """A device's own counts: milliseconds in which it had requests, and those of all requests together."""

    busy_ms: int
    waited_ms: int


def read_queue(device: str, root: Path = Path("/sys/dev/block")) -> Queue | None:
    """None where the kernel keeps no such counts for the device."""
    try:
        fields = (root / device / "stat").read_text().split()
        return Queue(int(fields[9]), int(fields[10]))
    except (OSError, IndexError, ValueError):
        return None
