"""The journal of a real node: an append-only file that survives kill -9 and loss of power.

    "bursar journal 1\\n"
    record*    marker (4) | length (4) | durable (8) | checksum (4) | data

`durable` is how long the file was known to be, durably, when the record was written. It is what
tells a torn tail from damage: after a crash the last records, which no `sync` has promised, may be
half there, or there with a gap before them; replay cuts the file at the first that is not whole.
But if a later record says that the bad place had been durable, the disk has lost what was promised,
and the journal refuses to open: going on would hand out tokens twice.

What cannot be told from a torn tail is damage to the very last synced records. The checksum covers
the record's place in the file, so a stale or moved record never passes.
"""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from bursar.errors import CrashedError, JournalError, UsageError
from bursar.runtime import logs
from bursar.runtime.state import sync_directory

HEADER = b"bursar journal 1\n"
MARKER = b"\xb5\x52\xec\x0d"
RECORD_MAX_BYTES = 16 * 1024 * 1024

_FIELDS = struct.Struct(">4sIQI")
_COVERED = struct.Struct(">QIQ")


def pack(record: bytes, offset: int, durable: int) -> bytes:
    """The record as it lies at `offset` of the file."""
    return _FIELDS.pack(MARKER, len(record), durable, _checksum(record, offset, durable)) + record


def _checksum(record: bytes, offset: int, durable: int) -> int:
    return zlib.crc32(record, zlib.crc32(_COVERED.pack(offset, len(record), durable)))


def _unpack(data: bytes, offset: int) -> tuple[bytes, int] | None:
    """The record at `offset` and its `durable`, or None if there is no whole one."""
    if offset + _FIELDS.size > len(data):
        return None
    marker, length, durable, checksum = _FIELDS.unpack_from(data, offset)
    start = offset + _FIELDS.size
    if marker != MARKER or length > RECORD_MAX_BYTES or start + length > len(data):
        return None
    record = data[start : start + length]
    return (record, durable) if checksum == _checksum(record, offset, durable) else None


def read_records(data: bytes, path: Path) -> tuple[list[bytes], int]:
    """The records of a file and where they end. Raises JournalError if durable ones are damaged."""
    if len(data) < len(HEADER):
        if HEADER.startswith(data):
            return [], 0  # a crash during the very first write
        raise JournalError(f"{path} is not a journal of bursar; move it away, or point to the right state")
    if not data.startswith(HEADER):
        raise JournalError(f"{path} is not a journal of this version of bursar: it begins {data[:20]!r}")
    records: list[bytes] = []
    offset = len(HEADER)
    while (found := _unpack(data, offset)) is not None:
        records.append(found[0])
        offset += _FIELDS.size + len(found[0])
    _check_tail(data, offset, path)
    return records, offset


def _check_tail(data: bytes, end: int, path: Path) -> None:
    """Refuse if anything after `end` shows that the file had been durable beyond it."""
    at = data.find(MARKER, end + 1)
    while at != -1:
        found = _unpack(data, at)
        if found is not None and found[1] > end:
            raise JournalError(
                f"{path} is damaged at offset {end}: records that were durable there cannot be read "
                f"(a later one, at {at}, is whole). Restore this node's state directory from a copy, or "
                "give the node a new name and an empty one; its unreturned tokens then count as spent"
            )
        at = data.find(MARKER, at + 1)


class FileJournal:
    """Implements `bursar.world.Journal` on one file. Opened once at a time: the node's state
    directory is locked by its world."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        self._path = path
        self._executor = executor
        self._file = -1
        self._records, end = self._open()
        self._size = self._durable = end
        self._pending: list[bytes] = []
        self._replacing = False
        self._appended = self._synced = 0
        self._work: asyncio.Task[None] | None = None
        self._failure: JournalError | CrashedError | None = None

    def _open(self) -> tuple[list[bytes], int]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            data = self._path.read_bytes()
            records, end = read_records(data, self._path)
            if end < len(data):
                logs.warning("journal.cut", file=str(self._path), offset=end, bytes=len(data) - end)
            if end == 0:
                _write_all(self._file, HEADER, 0)
                end = len(HEADER)
            os.ftruncate(self._file, end)
            # What was read may so far be in memory only; from now on the node acts upon it.
            os.fsync(self._file)
            sync_directory(self._path.parent)
        except OSError as error:
            self._close_file()
            raise JournalError(f"cannot open the journal {self._path}: {error.strerror}") from error
        except JournalError:
            self._close_file()
            raise
        return records, end

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def replay(self) -> Iterable[bytes]:
        if self._appended:
            raise UsageError("a journal is replayed before the first append")
        records, self._records = self._records, []
        return records

    def append(self, record: bytes) -> None:
        self._check()
        if len(record) > RECORD_MAX_BYTES:
            raise UsageError(f"a record of {len(record)} bytes; the most is {RECORD_MAX_BYTES}")
        self._pending.append(record)
        self._appended += 1

    async def sync(self) -> None:
        wanted = self._appended
        self._check()
        while self._synced < wanted:
            # Others may wait for the same write: giving up waiting does not stop it.
            await asyncio.shield(self._work or self._begin())
            self._check()

    async def rewrite(self, records: Sequence[bytes]) -> None:
        # Taken at once: what was appended before, written or not, is replaced; what comes later
        # follows the new records into the new file.
        self._check()
        self._pending = list(records)
        self._replacing = True
        self._appended += 1
        await self.sync()

    def _begin(self) -> asyncio.Task[None]:
        self._work = asyncio.get_running_loop().create_task(self._flush())
        return self._work

    async def _flush(self) -> None:
        """Write all that is pending, and make it durable."""
        records, self._pending = self._pending, []
        replacing, self._replacing = self._replacing, False
        appended = self._appended
        try:
            await (self._replace(records) if replacing else self._extend(records))
            self._synced = appended
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: nothing may be tried again.
            self._failure = JournalError(
                f"cannot write the journal {self._path}: {error.strerror}; "
                "free or repair the disk, then restart"
            )
        finally:
            self._work = None

    async def _extend(self, records: Sequence[bytes]) -> None:
        start = self._size
        data = self._lay_out(records, start)
        await self._run(self._write_durably, data, start)
        self._size = self._durable = start + len(data)

    async def _replace(self, records: Sequence[bytes]) -> None:
        self._durable = 0
        data = HEADER + self._lay_out(records, len(HEADER))
        await self._run(self._swap_file, data)
        self._size = self._durable = len(data)

    def _lay_out(self, records: Sequence[bytes], start: int) -> bytes:
        parts: list[bytes] = []
        offset = start
        for record in records:
            parts.append(pack(record, offset, self._durable))
            offset += len(parts[-1])
        return b"".join(parts)

    def _write_durably(self, data: bytes, offset: int) -> None:
        _write_all(self._file, data, offset)
        os.fdatasync(self._file)

    def _swap_file(self, data: bytes) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, data, 0)
            os.fsync(file)
            os.rename(temporary, self._path)
            sync_directory(self._path.parent)
        except OSError:
            os.close(file)
            raise
        old, self._file = self._file, file
        os.close(old)

    async def _run(self, work: Callable[..., None], *args: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def crash(self) -> None:
        """Nothing more is written in this node's name."""
        self._failure = self._failure or CrashedError("this node is down; its journal takes no more")

    async def close(self) -> None:
        """Wait for the write under way, and close the file. Unsynced records are not written."""
        if self._work is not None:
            await asyncio.shield(self._work)
        self._close_file()
        self.crash()


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written
