"""Records in shared memory, read and written directly by clients (one-sided).

    header   4096 bytes    "bursar records 1", size of a record, how many there are
    records  64 + size     version (odd while being written), padding, the bytes

A client that dies in the middle of a write leaves its record locked: its version stays odd. Readers
give up after a bounded number of tries and say so; `repair` makes the record readable again, with
whatever bytes it has.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bursar.errors import BursarError, FormatError, UsageError
from bursar.integrations.records import kernels

MAGIC = b"bursar records 1"
RECORD_BYTES = 4096
HEADER_BYTES = 4096
VERSION_BYTES = 64
SIZE_MAX = 1 << 40
STUCK_S = 2.0

_HEADER = struct.Struct("<16sQQ")


class RecordStore:
    """`count` records of `RECORD_BYTES` in a mapped file; keep it on a memory file system."""

    def __init__(self, path: Path, file: int, size: int, count: int) -> None:
        self.path = path
        self.size = size
        self.count = count
        self._stride = VERSION_BYTES + size
        self._map = mmap.mmap(file, HEADER_BYTES + count * self._stride)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + HEADER_BYTES
        self._memory: Any = np.frombuffer(self._map, dtype=np.uint64, offset=HEADER_BYTES)
        self._one = np.empty(size // 8, dtype=np.uint64)

    @classmethod
    def create(cls, path: Path, count: int, size: int = RECORD_BYTES, mode: int = 0o600) -> RecordStore:
        """Make a new store of empty records; `mode` says which users may open it."""
        if not 1 <= count <= SIZE_MAX // (size + VERSION_BYTES) or size < 8 or size % 8:
            raise UsageError(f"{count} records of {size} bytes: pass 1 or more, of a multiple of 8 bytes")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.ftruncate(file, HEADER_BYTES + count * (size + VERSION_BYTES))
            os.pwrite(file, _HEADER.pack(MAGIC, size, count), 0)
            return cls(path, file, size, count)
        finally:
            os.close(file)

    @classmethod
    def open(cls, path: Path) -> RecordStore:
        """Open a store that another process made. Raises FormatError for anything else."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{path} cannot be opened: {error.strerror}; create the store first") from error
        try:
            size, count = _read_header(path, file)
            return cls(path, file, size, count)
        finally:
            os.close(file)

    def read(self, index: int) -> bytes:
        """One record, whole."""
        self._check(index)
        out = np.empty(self.size // 8, dtype=np.uint64)
        self.read_into(index, out)
        return out.tobytes()

    def read_into(self, index: int, out: Any) -> None:
        """One record into an array of words that the caller keeps: no memory is allocated."""
        self._check(index)
        if not kernels.read_record(self._base, self._memory, self._stride, self.size, index, out, 0):
            self._persist(
                index,
                lambda: kernels.read_record(self._base, self._memory, self._stride, self.size, index, out, 0),
            )

    def read_many(self, indexes: Any, out: Any | None = None) -> Any:
        """Many records, each whole, as an array of words with a row for each."""
        wanted = np.ascontiguousarray(indexes, dtype=np.int64)
        count = len(wanted)
        if count and (wanted.min() < 0 or wanted.max() >= self.count):
            raise UsageError(f"records are numbered 0 to {self.count - 1}")
        if out is None:
            out = np.empty((count, self.size // 8), dtype=np.uint64)
        elif out.shape[0] < count or out.shape[1] != self.size // 8:
            raise UsageError(f"out has room for {out.shape}; pass {count} rows of {self.size // 8} words")
        flat = out.reshape(-1)
        read = kernels.read_records(self._base, self._memory, self._stride, self.size, wanted, count, flat)
        for position in range(read, count):
            # Rare: a writer lost its processor in the middle of one of them.
            self.read_into(int(wanted[position]), out[position])
        return out[:count]

    def write(self, index: int, data: bytes) -> None:
        """Replace one record; shorter data is padded with zeros."""
        self._check(index)
        if len(data) > self.size:
            raise UsageError(f"a record holds {self.size} bytes, not {len(data)}")
        words = np.frombuffer(data.ljust(self.size, b"\0"), dtype=np.uint64)
        if not kernels.write_record(self._base, self._memory, self._stride, self.size, index, words):
            self._persist(
                index,
                lambda: kernels.write_record(self._base, self._memory, self._stride, self.size, index, words),
            )

    def repair(self) -> Sequence[int]:
        """Unlock the records whose writer died: only while nobody writes. Which those were."""
        versions = self._memory[:: self._stride // 8]
        locked = [int(index) for index in np.nonzero(versions & np.uint64(1))[0]]
        versions[locked] += np.uint64(1)
        return locked

    def _check(self, index: int) -> None:
        if not 0 <= index < self.count:
            raise UsageError(f"there is no record {index}: they are numbered 0 to {self.count - 1}")

    def _persist(self, index: int, attempt: Callable[[], int]) -> None:
        """A writer that lost its processor comes back; one that died does not."""
        until = time.monotonic() + STUCK_S
        while not attempt():
            if time.monotonic() > until:
                raise self._stuck(index)
            time.sleep(0.001)

    def _stuck(self, index: int) -> BursarError:
        return BursarError(
            f"record {index} of {self.path} stays locked: its writer died; stop all writers and call repair()"
        )

    def close(self) -> None:
        """Let go of it; the memory is unmapped when nothing refers to it any more."""
        self._memory = None


def _read_header(path: Path, file: int) -> tuple[int, int]:
    header = os.pread(file, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
    magic, size, count = _HEADER.unpack(header)
    sane = magic == MAGIC and 8 <= size <= SIZE_MAX and size % 8 == 0 and 1 <= count <= SIZE_MAX
    if not sane or os.fstat(file).st_size != HEADER_BYTES + count * (size + VERSION_BYTES):
        raise FormatError(f"{path} does not hold records of this version; stop all that use it and delete it")
    return size, count
