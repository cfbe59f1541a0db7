"""Shared words on one host: a file mapped into the memory of every process that opens it.

    header   64 bytes     "bursar words 1", how many words it has room for, how many have names
    names    256 bytes    for each word: length of its name, name
    words    64 bytes     for each word, a cache line, so that two words never slow each other down

A name is given its word under a lock of the file, once; after that each operation is one atomic
instruction on memory, with no lock, no system call and no other process involved. A process that
dies in the middle of naming leaves the count as it was, so the half-written name is written over.

Keep the file on a memory file system (/dev/shm) where words are written often: `open_named` does, for
words that belong to no node.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bursar.errors import FormatError, UsageError
from bursar.resource.checks import check_name
from bursar.runtime.clock import BootClock
from bursar.world import MILLISECOND_NS, WORD_MAX

KIND = b"bursar words "
MAGIC = KIND + b"1\n"
CAPACITY = 4096
NAMED_CAPACITY = 65_536
"""Where programs share words: one for each tenant with a limit. What is not used takes no memory."""

HEADER_BYTES = 64
NAME_BYTES = 256
WORD_BYTES = 64
POLL_NS = MILLISECOND_NS

NAMED = Path("/dev/shm")

_HEADER = struct.Struct("<16sII")


class SharedWords:
    """Implements `bursar.world.Words`. The file is made, and mapped, at the first use."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        self._path = path
        self._capacity = capacity
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._base = 0
        self._file = -1
        self._kernels: Any = None

    def read(self, name: str) -> int:
        return int(self._kernels_of(name).fetch_add(self._addresses[name], 0))

    def write(self, name: str, value: int) -> None:
        self._kernels_of(name).exchange(self._addresses[name], _checked(value))

    def fetch_add(self, name: str, amount: int) -> int:
        return int(self._kernels_of(name).fetch_add(self._addresses[name], amount & WORD_MAX))

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        kernels = self._kernels_of(name)
        return int(kernels.compare_and_swap(self._addresses[name], _checked(expected), _checked(value)))

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        clock = BootClock()
        until = clock.now() + timeout_ns
        while True:
            found = self.read(name)
            left_ns = until - clock.now()
            if found != value or left_ns <= 0:
                return found
            await clock.sleep(min(POLL_NS, left_ns))

    def address(self, name: str) -> int:
        """Where the word is in this process, for kernels that work on it in a loop. It holds until
        `close`."""
        self._kernels_of(name)
        return self._addresses[name]

    def _kernels_of(self, name: str) -> Any:
        if name not in self._addresses:
            with self._lock:
                self._open()
                self._addresses[name] = self._find(name)
        return self._kernels

    def _open(self) -> None:
        if self._memory is not None:
            return
        self._kernels = _load_kernels()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be opened: {error.strerror}") from error
        try:
            self._check_owner()
            with self._locked():
                if os.fstat(self._file).st_size == 0:
                    self._format()
                self._check_header()
        except (FormatError, UsageError):
            os.close(self._file)
            self._file = -1
            raise
        self._memory = mmap.mmap(self._file, self._size())
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _check_owner(self) -> None:
        """Anybody may make a file in /dev/shm, and whoever owns it can write the words."""
        if os.fstat(self._file).st_uid != os.geteuid():
            raise UsageError(f"{self._path} belongs to another user; choose another name")

    def _size(self) -> int:
        return HEADER_BYTES + self._capacity * (NAME_BYTES + WORD_BYTES)

    def _format(self) -> None:
        # The header last: a process that dies before has made a file that is refused, or is empty.
        os.ftruncate(self._file, self._size())
        os.pwrite(self._file, _HEADER.pack(MAGIC, self._capacity, 0), 0)

    def _check_header(self) -> None:
        header = os.pread(self._file, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
        magic, capacity, count = _HEADER.unpack(header)
        self._capacity = capacity
        right_size = os.fstat(self._file).st_size == self._size()
        if magic.startswith(KIND) and magic.rstrip(b"\0") != MAGIC:
            raise FormatError(
                f"{self._path} holds shared words of another version of bursar; stop all that use it and "
                "delete it"
            )
        if magic.rstrip(b"\0") != MAGIC or count > capacity or not right_size:
            raise FormatError(f"{self._path} does not hold shared words; stop all that use it and delete it")

    def _find(self, name: str) -> int:
        """The address of the word, which is given to the name if it has none."""
        check_name("word", name)
        wanted = name.encode()
        with self._locked():
            count = _HEADER.unpack_from(self._map(), 0)[2]
            for index in range(count):
                if self._name_at(index) == wanted:
                    return self._address_of(index)
            if count == self._capacity:
                raise UsageError(
                    f"{self._path} has room for {self._capacity} words, and {name!r} is one more"
                )
            self._give_name(count, wanted)
            return self._address_of(count)

    def _name_at(self, index: int) -> bytes:
        start = HEADER_BYTES + index * NAME_BYTES
        memory = self._map()
        return memory[start + 1 : start + 1 + memory[start]]

    def _give_name(self, index: int, name: bytes) -> None:
        start = HEADER_BYTES + index * NAME_BYTES
        memory = self._map()
        memory[start : start + 1 + len(name)] = bytes([len(name)]) + name
        _HEADER.pack_into(memory, 0, MAGIC, self._capacity, index + 1)

    def _address_of(self, index: int) -> int:
        return self._base + HEADER_BYTES + self._capacity * NAME_BYTES + index * WORD_BYTES

    def _map(self) -> mmap.mmap:
        assert self._memory is not None, "opened before"
        return self._memory

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file. The memory stays mapped while anything may hold an address into it."""
        self._addresses.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._memory = None


@cache
def open_named(name: str) -> SharedWords:
    """The words of that name, one file for all processes of a user on this host. They stay mapped as long
    as the process lives, and in memory until the host starts anew or the file is deleted."""
    return SharedWords(NAMED / f"bursar-{os.geteuid()}-{name}", NAMED_CAPACITY)


def _checked(value: int) -> int:
    if not 0 <= value <= WORD_MAX:
        raise UsageError(f"a word holds 0 to 2^64 - 1, not {value}")
    return value


def _load_kernels() -> Any:
    try:
        from bursar.runtime import kernels
    except ModuleNotFoundError as error:
        raise UsageError("shared words need Numba: pip install 'bursar[pools]'") from error
    return kernels
