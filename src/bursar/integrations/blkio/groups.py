"""The files of the I/O controller, in both versions' formats."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
class Bytes:
    """Bytes read and written since the group was made."""

    read: int
    written: int


class Controller(Protocol):
    """One version's language. `group` is a path below the controller's root."""

    version: int
    root: Path

    def read(self, group: str, device: str) -> Bytes:
        """Raises GroupMissingError, FormatError."""

    def limit(self, group: str, device: str, read_rate: int, write_rate: int) -> None:
        """Hold a group to so many bytes a second. Raises GroupMissingError, BursarError."""

    def unlimit(self, group: str, device: str) -> None:
        """Lift its limits; a group that is gone has none."""


class BlkioV1:
    """cgroup v1: one file for each direction, `MAJOR:MINOR RATE`; rate 0 lifts a limit."""

    version = 1

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, group: str, device: str) -> Bytes:
        text = _read(self.root / group / "blkio.throttle.io_service_bytes")
        return parse_v1(text, device)

    def limit(self, group: str, device: str, read_rate: int, write_rate: int) -> None:
        folder = self.root / group
        _write(folder / "blkio.throttle.read_bps_device", f"{device} {read_rate}")
        _write(folder / "blkio.throttle.write_bps_device", f"{device} {write_rate}")

    def unlimit(self, group: str, device: str) -> None:
        try:
            self.limit(group, device, 0, 0)
        except GroupMissingError:
            return


class IoV2:
    """cgroup v2: `io.max` takes `MAJOR:MINOR rbps=N wbps=N`; "max" lifts a limit."""

    version = 2

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, group: str, device: str) -> Bytes:
        return parse_v2(_read(self.root / group / "io.stat"), device)

    def limit(self, group: str, device: str, read_rate: int, write_rate: int) -> None:
        _write(self.root / group / "io.max", f"{device} rbps={read_rate} wbps={write_rate}")

    def unlimit(self, group: str, device: str) -> None:
        try:
            _write(self.root / group / "io.max", f"{device} rbps=max wbps=max")
        except GroupMissingError:
            return


def parse_v1(text: str, device: str) -> Bytes:
    """`8:16 Read 4096` lines. A group without I/O on the device has no line for it: zero."""
    counts = {"Read": 0, "Write": 0}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] == device and parts[1] in counts:
            counts[parts[1]] = _count(parts[2], line)
    return Bytes(counts["Read"], counts["Write"])


def parse_v2(text: str, device: str) -> Bytes:
    """`8:16 rbytes=4096 wbytes=0 rios=1 ...` lines."""
    for line in text.splitlines():
        name, *fields = line.split()
        if name == device:
            counts = dict(field.partition("=")[::2] for field in fields)
            return Bytes(_count(counts.get("rbytes", "0"), line), _count(counts.get("wbytes", "0"), line))
    return Bytes(0, 0)


def _count(word: str, line: str) -> int:
    if not word.isdecimal() or len(word) > 20:
        raise FormatError(f"{word!r} is no count of bytes, in the line {line[:80]!r}")
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
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
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


def find_controller(root: Path = Path("/sys/fs/cgroup")) -> Controller:
    """Whichever version manages I/O here. Raises UsageError with what to do where none does."""
    v1 = root / "blkio"
    if (v1 / "blkio.throttle.read_bps_device").exists():
        return BlkioV1(v1)
    if (root / "cgroup.controllers").exists():
        controllers = _read(root / "cgroup.controllers").split()
        if "io" in controllers:
            return IoV2(root)
    raise UsageError(
        f"no I/O controller below {root}: mount one (mount -t cgroup -o blkio none {v1}), or enable "
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
