"""A process that writes down when the machine itself stood still.

    python -m bursar_lab.storm.witness history/witness.jsonl

It sleeps for 10 ms at a time and notes every sleep that took 50 ms too long, in boot time, which goes on
while a machine is suspended. It ends when it is told to (SIGTERM, SIGINT), with a line that says so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

SLEEP_NS = 10_000_000
GAP_NS = 50_000_000
SECOND_NS = 1_000_000_000


def read_boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Witness:
    """`now` is asked at every step: what it skipped is time in which nobody ran."""

    def __init__(
        self, write: Callable[[dict[str, object]], None], now: Callable[[], int] = read_boot_ns
    ) -> None:
        self._write = write
        self._now = now
        self._last = now()

    def step(self) -> None:
        """To be called after each sleep."""
        now = self._now()
        if now - self._last - SLEEP_NS > GAP_NS:
            self._write({"op": "stood", "at": self._last + SLEEP_NS, "end": now})
        self._last = now


def watch(path: Path) -> None:
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(line: dict[str, object]) -> None:
        # In one call: who is killed leaves whole lines.
        os.write(file, json.dumps(line).encode() + b"\n")

    witness = Witness(write)
    while not stopped:
        time.sleep(SLEEP_NS / SECOND_NS)
        witness.step()
    write({"op": "stopped", "at": read_boot_ns()})
    os.close(file)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
