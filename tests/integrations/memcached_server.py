"""A real memcached on a free port, for one test."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def run_memcached(port: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(address, process); it takes connections already."""
    port = port or find_free_port()
    arguments = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "64", "-t", "1"]
    process = subprocess.Popen([*arguments, "-u", "nobody"])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None and time.monotonic() < deadline, "memcached did not start"
                time.sleep(0.01)
        yield f"memcached://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()
