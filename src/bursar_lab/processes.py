"""Child processes on free ports, for experiments, benchmarks and tests against real servers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError

STOP_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0


def await_port(port: int, child: subprocess.Popen[bytes], timeout_s: float = START_TIMEOUT_S) -> None:
    """Until the child takes connections there. Raises BursarError if it ended or takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > deadline:
                name = Path(str(child.args[0])).name  # type: ignore[index]
                raise BursarError(f"{name} did not start: it ended with {child.poll()}") from None
            time.sleep(0.01)


@contextmanager
def run_redis(folder: str, *options: str) -> Iterator[str]:
    """The URL of a Redis server of our own on loopback, for as long as it is needed."""
    if shutil.which("redis-server") is None:
        raise BursarError("this needs redis-server: apt install redis-server")
    port = find_free_port()
    bounds = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    child = subprocess.Popen(["redis-server", *bounds, *options], stdout=subprocess.DEVNULL)
    try:
        await_port(port, child)
        yield f"redis://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(2 * STOP_TIMEOUT_S)


def start_memcached() -> tuple[subprocess.Popen[bytes], int]:
    """A memcached of one thread, and its port."""
    if shutil.which("memcached") is None:
        raise BursarError("this needs memcached: apt install memcached")
    port = find_free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-t", "1", "-m", "64", *user]
    return subprocess.Popen(command), port


class Process:
    """A child process whose output goes to a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self._child = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def child(self) -> subprocess.Popen[bytes]:
        return self._child

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        if self.running:
            self._child.terminate()
            try:
                self._child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def fail(self, why: str) -> BursarError:
        tail = self.log.read_text(errors="replace")[-1500:]
        code = self._child.poll()
        state = "it is still running" if code is None else f"it ended with {code}"
        return BursarError(f"{why} ({state}); the end of {self.log}:\n{tail}")
