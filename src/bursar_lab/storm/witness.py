"""A process that writes down when the machine itself stood still, and who had to wait for a processor.

    python -m bursar_lab.storm.witness history/witness.jsonl

It sleeps for 10 ms at a time and notes every sleep that took 50 ms too long (`stood`), in boot time, which
goes on while a machine is suspended. Ten times a second it asks the kernel how long each process of the
run (whatever its own parent started) was ready to run and did not (`starved`): on a busy machine that
happens to one process and not to the next. It ends when it is told to (SIGTERM, SIGINT), with a line that
says so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

SLEEP_NS = 10_000_000
GAP_NS = 50_000_000
STARVED_LEAST_NS = 5_000_000
STEPS_TO_ASK = 10
STEPS_TO_LIST = 100
SECOND_NS = 1_000_000_000
PROC = Path("/proc")

Write = Callable[[dict[str, object]], None]


def read_boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Witness:
    """`now` is asked at every step: what it skipped is time in which nobody ran."""

    def __init__(self, write: Write, now: Callable[[], int] = read_boot_ns) -> None:
        self._write = write
        self._now = now
        self._last = now()

    def step(self) -> None:
        """To be called after each sleep."""
        now = self._now()
        if now - self._last - SLEEP_NS > GAP_NS:
            self._write({"op": "stood", "at": self._last + SLEEP_NS, "end": now})
        self._last = now


class Queue:
    """Who waits for a processor. `list_pids` finds the processes, `read_waited` their time in the queue."""

    def __init__(
        self,
        write: Write,
        list_pids: Callable[[], Sequence[int]],
        read_waited: Callable[[int], int],
        read_name: Callable[[int], str],
        now: Callable[[], int] = read_boot_ns,
    ) -> None:
        self._write = write
        self._list_pids = list_pids
        self._read_waited = read_waited
        self._read_name = read_name
        self._now = now
        self._known: dict[int, tuple[str, int, int]] = {}
        self._looked_at: int | None = None

    def look(self) -> None:
        """Find who has come and gone. Whoever was not there the last time has waited for all it says since
        then: a node that starts is busiest, and waits longest, in its first second."""
        pids, before, self._looked_at = self._list_pids(), self._looked_at, self._now()
        self._known = {pid: self._known.get(pid) or self._begin(pid, before) for pid in pids}

    def _begin(self, pid: int, before: int | None) -> tuple[str, int, int]:
        if before is None:
            return self._read_name(pid), self._now(), self._read_waited(pid)
        return self._read_name(pid), before, 0

    def ask(self) -> None:
        for pid, (name, at, before) in self._known.items():
            now, waited = self._now(), self._read_waited(pid)
            # Several threads may wait at once; nobody is kept for longer than it lasted.
            starved = min(waited - before, now - at)
            if starved >= STARVED_LEAST_NS:
                self._write({"op": "starved", "at": at, "end": now, "who": name, "ns": starved})
            self._known[pid] = (name, now, waited)


def list_descendants(root: int) -> list[int]:
    """All that a process started, and what those started."""
    children: dict[int, list[int]] = {}
    for pid in _list_numbers(PROC):
        stat = _read(PROC / str(pid) / "stat")
        if stat:
            parent = int(stat.rpartition(b")")[2].split()[1])  # a name in brackets may have anything
            children.setdefault(parent, []).append(pid)
    found, asked = [], [root]
    while asked:
        below = children.get(asked.pop(), [])
        found += below
        asked += below
    return found


def read_waited_ns(pid: int) -> int:
    """The time that a process' threads were ready and did not run, since they began; 0 if it is gone."""
    tasks = PROC / str(pid) / "task"
    waited = 0
    for thread in _list_numbers(tasks):
        fields = _read(tasks / str(thread) / "schedstat").split()
        waited += int(fields[1]) if len(fields) > 1 else 0
    return waited


def read_name(pid: int) -> str:
    """By the command line: the file that a client was given, or a node's `--name`."""
    return name_process(_read(PROC / str(pid) / "cmdline").decode(errors="replace").split("\0"), str(pid))


def name_process(arguments: Sequence[str], otherwise: str) -> str:
    for argument in arguments:
        if argument.endswith(".json"):
            return Path(argument).stem
    for option, value in pairwise(arguments):
        if option == "--name":
            return value
    return otherwise


def _list_numbers(folder: Path) -> Iterator[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return  # it ended
    yield from (int(name) for name in names if name.isdigit())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended


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

    run = os.getppid()
    witness, queue = Witness(write), Queue(write, lambda: list_descendants(run), read_waited_ns, read_name)
    step = 0
    while not stopped:
        if step % STEPS_TO_LIST == 0:
            queue.look()
        if step % STEPS_TO_ASK == 0:
            queue.ask()
        step += 1
        time.sleep(SLEEP_NS / SECOND_NS)
        witness.step()
    write({"op": "stopped", "at": read_boot_ns()})
    os.close(file)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
