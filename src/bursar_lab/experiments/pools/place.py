"""The processes of a live run: monitors, record servers, and clients with tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bursar.errors import BursarError
from bursar.profile.measures import Profile, count_reads
from bursar.profile.measures import measure_profile as measure_processes
from bursar.profile.processes import Process, Processes, await_ready, begin_all, open_processes
from bursar.profile.processes import collect as collect_line
from bursar_lab.experiments.pools.config import Config, Counts

WORKER = "bursar_lab.experiments.pools.worker"
WARM_UP = 2


@dataclass(slots=True)
class Place:
    """Where a run keeps its files."""

    processes: Processes

    @property
    def root(self) -> Path:
        return self.processes.root

    def config(self, role: Any, **options: Any) -> Config:
        words = str(self.root / "words")
        return Config(role=role, store=str(self.processes.records), words=words, **options)

    def start(self, config: Config) -> Process:
        return self.processes.start(WORKER, config)

    def start_all(self, configs: Sequence[Config]) -> list[Process]:
        return self.processes.start_all(WORKER, configs)

    def forget_words(self) -> None:
        (self.root / "words").unlink(missing_ok=True)


@contextmanager
def open_place() -> Iterator[Place]:
    with open_processes() as processes:
        yield Place(processes)


def collect(process: Process, seconds: float) -> Counts:
    return msgspec.json.decode(collect_line(process, seconds), type=Counts)


def run_all(place: Place, configs: Sequence[Config], seconds: float) -> list[Counts]:
    processes = place.start_all(configs)
    begin_all(processes)
    return [collect(process, seconds) for process in processes]


def run_bare(place: Place, clients: int, seconds: float) -> list[float]:
    """I/Os a second of each client, without tokens."""
    return [sum(done.values()) / seconds for done in count_reads(place.processes, clients, seconds)]


def measure_profile(place: Place, seconds: float) -> Profile:
    return measure_processes(place.processes, seconds)


def run_two_sided(place: Place, clients: int, seconds: float) -> list[float]:
    """I/Os a second of each client through a server, which outlives them by a moment."""
    socket = str(place.root / f"socket-{clients}")
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
