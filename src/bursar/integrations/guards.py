"""Guards that outlive a process: a SQL row, a file. (An HTTP header: `fences.check_header`.)

A guard refuses a fence older than the newest it saw. It protects only what is changed *with* the
check: in the same SQL transaction, or while the file's lock is held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bursar.claims.fences import StaleFence, check_real
from bursar.decoding import is_number
from bursar.errors import FormatError, UsageError

TABLE = "bursar_fences"
STYLES = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "format": ("%s", "%s"),
    "named": (":name", ":fence"),
    "pyformat": ("%(name)s", "%(fence)s"),
}
"""How the drivers of DB-API (PEP 249) write parameters, by what they call it."""

BY_NAME = ("named", "pyformat")


class SqlGuard:
    """A row a name. Works on any DB-API connection to a database that has `INSERT .. ON CONFLICT` (SQLite,
    PostgreSQL); `style` is the `paramstyle` of the driver: `SqlGuard(psycopg.paramstyle)`."""

    def __init__(self, style: str = "qmark") -> None:
        if style not in STYLES:
            raise UsageError(f"SqlGuard({style!r}): give the driver's paramstyle: {', '.join(STYLES)}")
        name, fence = STYLES[style]
        self._by_name = style in BY_NAME
        self._check = (
            f"INSERT INTO {TABLE} (name, fence) VALUES ({name}, {fence}) "
            f"ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE excluded.fence >= {TABLE}.fence"
        )

    def create(self, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, fence BIGINT NOT NULL)")
        cursor.close()

    def check(self, connection: Any, name: str, fence: int) -> None:
        """Call it first in the transaction that changes the guarded rows; raises StaleFence, and the
        transaction is to be rolled back. Until it ends, whoever else checks the name waits."""
        check_real(name, fence)
        cursor = connection.cursor()
        cursor.execute(self._check, {"name": name, "fence": fence} if self._by_name else (name, fence))
        is_taken = cursor.rowcount == 1
        cursor.close()
        if not is_taken:
            raise StaleFence(f"{name}: a later owner than the one of fence {fence} has written here")


class FileGuard:
    """A file beside the guarded one keeps the newest fence; a lock beside that excludes other writers.
    Whoever dies in the middle leaves the fence that was there or the new one, never less."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    @contextmanager
    def writing(self, fence: int) -> Iterator[None]:
        """Change the guarded file inside. Raises StaleFence before anything is changed."""
        check_real(str(self._path), fence)
        with open(f"{self._path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            newest = self._read()
            if fence < newest:
                raise StaleFence(f"{self._path}: fence {fence} is older than {newest}, which was seen here")
            if fence > newest:
                replace_file(self._path, str(fence).encode())
            yield

    def replace(self, target: Path | str, data: bytes, fence: int) -> None:
        """Put `data` in the place of the guarded file, all of it or nothing. Raises StaleFence."""
        with self.writing(fence):
            replace_file(Path(target), data)

    def _read(self) -> int:
        text = self._path.read_bytes().strip() if self._path.exists() else b""
        if text and not is_number(text):
            raise FormatError(f"{self._path} holds no fence: {text[:40]!r}; is it another file?")
        return int(text or b"0")


def replace_file(path: Path, data: bytes) -> None:
    """Durable when it returns; a crash leaves what was there, or this."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
