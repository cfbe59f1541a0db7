"""Real files behind a paced device."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bursar.world import SECOND_NS
from bursar_lab.storage.protocol import READ, Command


class Device:
    """Does one byte after another, `rate` of them a second: an I/O takes its bytes' time after
    the one before it, and nobody is told that it is done any earlier. The I/O itself is done on
    a real file meanwhile; a disk slower than the rate shows as a rate that is not reached."""

    def __init__(self, directory: Path, rate_bytes: int) -> None:
        self.rate_bytes = rate_bytes
        self.served_bytes = 0
        self._directory = directory
        self._lock = threading.Lock()
        self._free_at = 0
        self._files: dict[tuple[str, int], int] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def perform(self, tenant: str, file: int, command: Command, data: bytearray) -> bytes:
        """Do one I/O and return what was read, when the device is through with it."""
        with self._lock:
            now = time.monotonic_ns()
            self._free_at = max(self._free_at, now) + command.length * SECOND_NS // self.rate_bytes
            done_at = self._free_at
            handle = self._open(tenant, file)
        if command.operation == READ:
            answer = os.pread(handle, command.length, command.offset)
            answer += bytes(command.length - len(answer))
        else:
            answer = b""
            os.pwrite(handle, data, command.offset)
        left_ns = done_at - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / SECOND_NS)
        return answer

    def _open(self, tenant: str, file: int) -> int:
        key = (tenant, file)
        if key not in self._files:
            path = self._directory / f"{tenant}.{file}"
            self._files[key] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._files[key]

    def close(self) -> None:
        """Close the files and remove them: they were the load, nobody's data."""
        with self._lock:
            for (tenant, file), handle in self._files.items():
                os.close(handle)
                (self._directory / f"{tenant}.{file}").unlink(missing_ok=True)
            self._files.clear()
