"""What claims protect: `python -m bursar_lab.storm.guard_process SOCKET HISTORY` takes writes, each with
the fence of who writes, and refuses those of a fence older than the newest it saw.

The comparison is the product's own guard, in one transaction a write; every write is in the history.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
from pathlib import Path

from bursar.claims.fences import StaleFence
from bursar.integrations.guards import SqlGuard
from bursar_lab.storm.history import History, now_ns


class GuardLine:
    """A client's line to the guard."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def write(self, name: str, fence: int, who: str) -> bool:
        """Whether it was accepted."""
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path)
            reader, writer = self._streams
            asked = {"name": name, "fence": fence, "who": who}
            writer.write(json.dumps(asked).encode() + b"\n")
            await writer.drain()
            return bool(json.loads(await reader.readline()))


class Guard:
    def __init__(self, history: History) -> None:
        self._history = history
        self._rows = sqlite3.connect(":memory:", isolation_level=None)
        self._guard = SqlGuard()
        self._guard.create(self._rows)

    def write(self, name: str, fence: int, who: str) -> bool:
        at = now_ns()
        try:
            self._guard.check(self._rows, name, fence)
            accepted = True
        except StaleFence:
            accepted = False
        self._history.write("write", at=at, name=name, fence=fence, who=who, accepted=accepted)
        return accepted

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)
            accepted = self.write(asked["name"], asked["fence"], asked["who"])
            writer.write(json.dumps(accepted).encode() + b"\n")
            await writer.drain()
        writer.close()


async def main(path: str, history: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    guard = Guard(History(Path(history)))
    server = await asyncio.start_unix_server(guard.serve, path)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
