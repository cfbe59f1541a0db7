"""The processes of a measurement: started, given the moment to begin, collected; every wait is bounded.

A process that hangs ends by itself: it prints where it stood and leaves (`LATE_S`).
"""

from __future__ import annotations

import faulthandler
import pathlib
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from bursar.errors import BursarError
from bursar.integrations.records.store import RecordStore
from bursar.runtime.clock import BootClock
from bursar.world import MILLISECOND_NS, SECOND_NS

RECORDS = 1_000
"""They fit a processor's cache: what a virtual machine gets of the memory's bandwidth varies too much
from second to second to be promised to anybody."""

START_NS = 300 * MILLISECOND_NS
READY_S = 60.0
LATE_S = 60.0
"""So long after its time a process is given up."""

Process = subprocess.Popen[bytes]


@dataclass(slots=True)
class Processes:
    """The processes of a run, and where it keeps its files."""

    root: pathlib.Path
    started: list[Process] = field(default_factory=list)

    @property
    def records(self) -> pathlib.Path:
        return self.root / "records"

    def start(self, module: str, order: msgspec.Struct) -> Process:
        """Start `python -m module ORDER.json`; it is not ready yet."""
        path = self.root / f"{len(self.started)}.json"
        path.write_bytes(msgspec.json.encode(order))
        command = [sys.executable, "-m", module, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(process)
        return process

    def start_all(self, module: str, orders: Sequence[msgspec.Struct]) -> list[Process]:
        """Start processes side by side and wait until all are ready."""
        processes = [self.start(module, order) for order in orders]
        for process in processes:
            await_ready(process)
        return processes


@contextmanager
def open_processes() -> Iterator[Processes]:
    """A directory in shared memory with a store of records; nothing of it stays behind."""
    base = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bursar-pool-", dir=base) as folder:
        processes = Processes(pathlib.Path(folder))
        store = RecordStore.create(processes.records, RECORDS)
        for index in range(RECORDS):
            store.write(index, index.to_bytes(8, "little"))
        store.close()
        try:
            yield processes
        finally:
            for process in processes.started:
                if process.poll() is None:
                    process.kill()
                process.wait(READY_S)


def await_ready(process: Process) -> None:
    assert process.stdout is not None, "its output is a pipe"
    until = time.monotonic() + READY_S
    while not select.select([process.stdout], [], [], 0.5)[0]:
        if time.monotonic() > until:
            raise BursarError(f"a process of the run was not ready after {READY_S:.0f} s")
    if process.stdout.readline() != b"ready\n":
        raise BursarError(f"a process of the run did not start: it ended with {process.wait(READY_S)}")


def begin_all(processes: Sequence[Process], *, wait_ns: int = START_NS, until_ns: int | None = None) -> int:
    """Together, in a moment, which is returned; until then, or for as long as each was configured to
    run."""
    at = BootClock().now() + wait_ns
    for process in processes:
        assert process.stdin is not None, "its input is a pipe"
        process.stdin.write(f"{at} {until_ns or '-'}\n".encode())
        process.stdin.flush()
    return at


def collect(process: Process, seconds: float) -> bytes:
    """The last line that it printed."""
    try:
        output, _ = process.communicate(timeout=seconds + 2 * LATE_S)
    except subprocess.TimeoutExpired as error:
        raise BursarError(f"a process of the run did not end {2 * LATE_S:.0f} s after its time") from error
    if process.returncode != 0:
        raise BursarError(f"a process of the run ended with {process.returncode}")
    return output.splitlines()[-1]


def await_beginning(seconds: float) -> tuple[int, int]:
    """In the process itself: say that it is ready, and be told when to begin and to end (boot time,
    nanoseconds)."""
    print("ready", flush=True)
    begun, until = sys.stdin.readline().split()
    return int(begun), int(until) if until != "-" else int(begun) + int(seconds * SECOND_NS)


def wait_until(at_ns: int) -> None:
    clock = BootClock()
    while (left_ns := at_ns - clock.now()) > 0:
        time.sleep(min(left_ns / SECOND_NS, 0.05))


def end_when_late(seconds: float) -> None:
    """In the process itself: whatever happens, it does not outlive the run by much."""
    faulthandler.dump_traceback_later(seconds + 2 * LATE_S, exit=True)
