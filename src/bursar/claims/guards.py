"""Guards that outlive a process: a SQL row, a file. (An HTTP header: `fences.check_header`.)

A guard refuses a fence older than the newest it saw. It protects only what is changed *with* the
check: in the same SQL transaction, or while the file's lock is held.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bursar.claims.fences import StaleFence, check_real
from bursar.errors import FormatError

TABLE = "bursar_fences"


class SqlGuard:
    """A row a name. Works on any DB-API connection with `INSERT .. ON CONFLICT` (SQLite, PostgreSQL);
    `mark` is the driver's placeholder."""

    def __init__(self, mark: str = "?") -> None:
        self._check = (
            f"INSERT INTO {TABLE} (name, fence) VALUES ({mark}, {mark}) "
            f"ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE excluded.fence >= {TABLE}.fence"
        )

    def create(self, connection: Any) -> None:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, fence BIGINT NOT NULL)"
        )

    def check(self, connection: Any, name: str, fence: int) -> None:
        """Call it first in the transaction that changes the guarded rows; raises StaleFence, and the
        transaction is to be rolled back."""
        check_real(name, fence)
        if connection.execute(self._check, (name, fence)).rowcount != 1:
            raise StaleFence(f"{name}: a later owner than the one of fence {fence} has written here")


class FileGuard:
    """A file beside the guarded one keeps the newest fence; a lock on it excludes other writers."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    @contextmanager
    def writing(self, fence: int) -> Iterator[None]:
        """Change the guarded file inside. Raises StaleFence before anything is changed."""
        check_real(str(self._path), fence)
        with open(self._path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read().strip()
            if text and not text.isdecimal():
                raise FormatError(f"{self._path} holds no fence: {text[:40]!r}; is it another file?")
            if text and fence < int(text):
                raise StaleFence(f"{self._path}: fence {fence} is older than {text}, which was seen here")
            file.seek(0)
            file.truncate()
            file.write(str(fence))
            file.flush()
            yield
