"""Real processes of bursar for tests: started, watched through their logs, always ended."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

TOYS = Path(__file__).parents[1] / "runtime"
WITH_TOYS = (
    "import sys; from bursar.runtime import kinds; kinds.MODULES['quota'] = 'toy'; "
    "from bursar.cli import main; main(sys.argv[1:])"
)


class Process:
    """A child whose standard error is read line by line into `events` (JSON logs) and `lines`."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        path = os.pathsep.join([str(TOYS), os.environ.get("PYTHONPATH", "")])
        self.child = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        self.lines: list[str] = []
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(line)
            if line.startswith("{"):
                self._events.put(json.loads(line))

    def wait_for(self, event: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The next log line of that event."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event} in time; it wrote:\n{''.join(self.lines)}") from None
            if found["event"] == event:
                return found

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def wait(self, timeout_s: float = 10.0) -> int:
        code = self.child.wait(timeout_s)
        self._reader.join(5)
        return code

    def output(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.read()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait()
        self._reader.join(5)
        for stream in (self.child.stdout, self.child.stderr):
            if stream is not None:
                stream.close()


def bursar(*arguments: str, **environment: str) -> Process:
    """`bursar ARGUMENTS` with the toy in place of the quota kind."""
    return Process([sys.executable, "-c", WITH_TOYS, *arguments], **environment)
