"""Random reads from a file with a fixed number of threads: a storage server's disk behind queues."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bursar.errors import UsageError

BLOCK_BYTES = 4096
THREADS = 5
_CHUNK_BYTES = 4 * 1024 * 1024


def make_file(path: Path, size_bytes: int) -> None:
    """A file of that size with random content on the disk, so that no block of it is a hole and
    none can be compressed away. One that is there in full already is left as it is."""
    if size_bytes < BLOCK_BYTES or size_bytes % BLOCK_BYTES:
        raise UsageError(f"a file of {size_bytes} bytes: pass a multiple of {BLOCK_BYTES}")
    if path.exists() and path.stat().st_size == size_bytes:
        return
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            file.write(os.urandom(min(_CHUNK_BYTES, size_bytes - start)))
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


class FileBackend:
    """Reads blocks of 4 KB, at most `threads` of them at a time. `direct` goes past the page cache
    (O_DIRECT), so that every read is the disk's; not every file system can do that."""

    def __init__(self, path: Path | str, *, threads: int = THREADS, direct: bool = False) -> None:
        if threads < 1:
            raise UsageError(f"threads is {threads}: pass at least 1")
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        except OSError as error:
            remedy = "; try direct=False" if direct else ""
            raise UsageError(f"{path} cannot be opened for reading: {error.strerror}{remedy}") from error
        self.blocks = os.fstat(self._file).st_size // BLOCK_BYTES
        if self.blocks == 0:
            os.close(self._file)
            raise UsageError(f"{path} has less than one block of {BLOCK_BYTES} bytes; make_file makes one")
        if not direct:
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="file-backend")
        self._local = threading.local()
        self._closed = False

    async def read(self, block: int) -> bytes:
        """The block, counted from 0."""
        if not 0 <= block < self.blocks:
            raise UsageError(f"block {block} of {self.blocks}")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, block)

    def _read(self, block: int) -> bytes:
        # O_DIRECT wants an aligned buffer; a thread's own anonymous map is one.
        page: mmap.mmap | None = getattr(self._local, "page", None)
        if page is None:
            page = self._local.page = mmap.mmap(-1, BLOCK_BYTES)
        count = os.preadv(self._file, [page], block * BLOCK_BYTES)
        if count != BLOCK_BYTES:
            raise OSError(f"block {block}: {count} bytes of {BLOCK_BYTES}")
        return page[:]

    def close(self) -> None:
        """Wait for the reads under way, then close the file. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._threads.shutdown(wait=True)
            os.close(self._file)
