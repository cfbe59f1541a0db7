"""The processes of a live run: started, given the moment to begin, collected; every wait is bounded.

A process that hangs ends by itself: it prints where it stood and leaves (`worker.LATE_S`).
"""

from __future__ import annotations

import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bursar.errors import BursarError
from bursar.experiments.pools.config import LATE_S, Config, Counts
from bursar.integrations.records.store import RecordStore
from bursar.runtime.clock import BootClock
from bursar.world import MILLISECOND_NS

RECORDS = 1_000
"""They fit a processor's cache: what a virtual machine gets of the memory's bandwidth varies too much
from second to second to be promised to anybody."""

CLIENTS = 4
START_NS = 300 * MILLISECOND_NS
READY_S = 60.0
WARM_UP = 2

Process = subprocess.Popen[bytes]


@dataclass(slots=True)
class Place:
    """Where a run keeps its files."""

    root: pathlib.Path
    number: int = 0
    started: list[Process] = field(default_factory=list)

    def config(self, role: Any, **options: Any) -> Config:
        return Config(role=role, store=str(self.root / "records"), words=str(self.root / "words"), **options)

    def start(self, config: Config) -> Process:
        """Start a process; it is not ready yet."""
        self.number += 1
        path = self.root / f"{self.number}.json"
        path.write_bytes(msgspec.json.encode(config))
        process = subprocess.Popen(
            [sys.executable, "-m", "bursar.experiments.pools.worker", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def start_all(self, configs: Sequence[Config]) -> list[Process]:
        """Start processes side by side and wait until all are ready."""
        processes = [self.start(config) for config in configs]
        for process in processes:
            await_ready(process)
        return processes

    def forget_words(self) -> None:
        (self.root / "words").unlink(missing_ok=True)


@contextmanager
def open_place() -> Iterator[Place]:
    """A directory in shared memory with a store of records; nothing of it stays behind."""
    base = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bursar-pool-", dir=base) as folder:
        place = Place(pathlib.Path(folder))
        store = RecordStore.create(place.root / "records", RECORDS)
        for index in range(RECORDS):
            store.write(index, index.to_bytes(8, "little"))
        store.close()
        try:
            yield place
        finally:
            for process in place.started:
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


def collect(process: Process, seconds: float) -> Counts:
    try:
        output, _ = process.communicate(timeout=seconds + 2 * LATE_S)
    except subprocess.TimeoutExpired as error:
        raise BursarError(f"a process of the run did not end {2 * LATE_S:.0f} s after its time") from error
    if process.returncode != 0:
        raise BursarError(f"a process of the run ended with {process.returncode}")
    return msgspec.json.decode(output.splitlines()[-1], type=Counts)


def run_all(place: Place, configs: Sequence[Config], seconds: float) -> list[Counts]:
    processes = place.start_all(configs)
    begin_all(processes)
    return [collect(process, seconds) for process in processes]


def run_bare(place: Place, clients: int, seconds: float, **options: Any) -> list[float]:
    """I/Os a second of each client, without tokens."""
    configs = [
        place.config("client", tokens=False, seconds=seconds, seed=k, **options) for k in range(clients)
    ]
    return [sum(counts.done.values()) / seconds for counts in run_all(place, configs, seconds)]


def run_two_sided(place: Place, clients: int, seconds: float) -> list[float]:
    """I/Os a second of each client through a server, which outlives them by a moment."""
    socket = str(place.root / f"socket-{place.number}")
    server = place.start(place.config("server", socket=socket, seconds=seconds + 1))
    await_ready(server)
    configs = [
        place.config("client", tokens=False, seconds=seconds, seed=k, socket=socket) for k in range(clients)
    ]
    processes = place.start_all(configs)
    begin_all([server, *processes])
    rates = [sum(collect(process, seconds).done.values()) / seconds for process in processes]
    collect(server, seconds)
    return rates


@dataclass(frozen=True, slots=True)
class Profile:
    """What this machine does, in I/Os a second: a client alone, all together, and how far the
    latter varies from second to second."""

    client: float
    capacity: float
    sigma: float


def measure_profile(place: Place, seconds: float, *, many: bool = True, clients: int = CLIENTS) -> Profile:
    alone = run_bare(place, 1, seconds, many=many)[0]
    configs = [
        place.config("client", tokens=False, seconds=seconds, seed=k, many=many) for k in range(clients)
    ]
    totals: dict[int, int] = {}
    for counts in run_all(place, configs, seconds):
        for period, done in counts.done.items():
            totals[period] = totals.get(period, 0) + done
    whole = [totals[period] for period in sorted(totals)][: int(seconds)]
    sigma = statistics.stdev(whole) if len(whole) > 1 else 0.0
    return Profile(alone, statistics.mean(whole), sigma)


@dataclass(slots=True)
class Outcome:
    """done[client][period], over whole periods after the warm-up."""

    done: Any

    def means(self) -> Any:
        return self.done.mean(axis=1)

    def met(self, reservations: Sequence[int]) -> float:
        return float((self.done >= np.array(reservations)[:, None]).mean())

    def total(self) -> float:
        return float(self.done.sum(axis=0).mean())


def run_tokens(place: Place, reservations: Sequence[int], seconds: float, capacity: int) -> Outcome:
    """Clients with tokens that want all they can get, for so long."""
    place.forget_words()
    promised = {f"C{k + 1}": tokens for k, tokens in enumerate(reservations)}
    monitor = place.config("monitor", seconds=seconds + 1, reservations=promised, capacity=capacity)
    clients = [
        place.config("client", tenant=name, seconds=seconds, seed=k) for k, name in enumerate(promised)
    ]
    _, *counts = run_all(place, [monitor, *clients], seconds)
    common = sorted(set.intersection(*(set(each.done) for each in counts)))
    whole = [period for period in common if 1 + WARM_UP <= period < max(common)]
    if not whole:
        raise BursarError("no whole period was seen by all clients: run for longer")
    return Outcome(np.array([[each.done[period] for period in whole] for each in counts]))
