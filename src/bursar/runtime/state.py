"""The state directory of a node: its lock, its incarnation, its journals.

state/lock              held while the node lives; two nodes never share a directory
state/incarnation       how many lives the node has had
state/session           how to end its session in the store, should it be killed (`session_record`)
state/store             which store its journals belong to
state/journals/NAME     what its protocols remember
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote

from bursar.errors import JournalError, UsageError


class StateDirectory:
    """One node's directory, locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"the state directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(
                f"another node is running on the state directory {path}; "
                "stop it, or set another state under [daemon]; programs that share limits, such as the "
                "workers of a server, connect to one `bursar serve` (bursar://HOST:PORT)"
            ) from None

    def begin_life(self) -> int:
        """Count one more life, durably, before the node says anything to anybody."""
        incarnation = self._read_incarnation() + 1
        self.write("incarnation", b"%d\n" % incarnation)
        return incarnation

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, durably and all at once. Raises JournalError; then the old one is still there."""
        try:
            self._replace(name, data)
        except OSError as error:
            raise JournalError(
                f"cannot write {self.path / name}: {error.strerror}; free or repair the disk"
            ) from error

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self.path / f"{name}.new"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, self.path / name)
        sync_directory(self.path)

    def lock_identity(self) -> tuple[int, int]:
        """Which file it is that is locked: a copy of the directory has another."""
        stat = os.fstat(self._lock)
        return stat.st_dev, stat.st_ino

    def _read_incarnation(self) -> int:
        path = self.path / "incarnation"
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            return 0
        if not text.isdecimal():
            raise JournalError(
                f"{path} does not hold a number: write one larger than any before, or restore it"
            )
        return int(text)

    def journal_path(self, name: str) -> Path:
        # Names of topics have slashes; quoted they are single, distinct file names.
        return self.path / "journals" / quote(name, safe="")

    def close(self) -> None:
        os.close(self._lock)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
