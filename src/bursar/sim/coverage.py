"""What the scenarios of each kind exercised: keys of policies, verbs, faults; and what none of them did."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from multiprocessing import get_context

from bursar.errors import UsageError
from bursar.policy.values import KINDS, Kind
from bursar.sim.errors import RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.recording import FLEET, Name, Recorder
from bursar.sim.scenarios import make_scenario
from bursar.sim.simulation import Simulation
from bursar.sim.terms import list_keys, read_defaults

CHUNK_SEEDS = 5

_PLACE = "bursar.sim.scenarios"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "rate": (
        "rate",
        "rate_restarts",
        "rate_costs",
        "rate_zones",
        f"{_PLACE}.rate:ChangingRateScenario",
        f"{_PLACE}.rate:LearntRateScenario",
        f"{_PLACE}.rate.fleet:FleetRateScenario",
    ),
    "share": ("share",),
    "pool": ("pool",),
    "quota": (
        "quota",
        f"{_PLACE}.quota:FastQuotaScenario",
        f"{_PLACE}.quota:LossyQuotaScenario",
        f"{_PLACE}.quota:WindowedQuotaScenario",
        f"{_PLACE}.quota:FleetQuotaScenario",
        f"{_PLACE}.quota:LeavingQuotaScenario",
    ),
    "claim": ("claim", "claim_counts", "claim_more", "claim_storm", f"{_PLACE}.claim:LeavingClaimScenario"),
    "door": ("door",),
    FLEET: ("fleet",),
}
"""By kind; and those of what all kinds share."""

FAULTS = tuple(each.name for each in fields(Faults) if not each.name.endswith("_ns"))


@dataclass
class Coverage:
    """What some runs exercised. `failures`: the commands that replay those that failed."""

    seeds: int = 0
    values: dict[Name, set[str]] = field(default_factory=dict)
    offered: set[Name] = field(default_factory=set)
    done: Counter[Name] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def merge(self, other: Coverage) -> None:
        self.seeds += other.seeds
        for name, values in other.values.items():
            self.values.setdefault(name, set()).update(values)
        self.offered |= other.offered
        self.done += other.done
        self.struck += other.struck
        self.failures += other.failures

    def kinds(self) -> list[Kind]:
        """Those of which a resource was opened."""
        found = {kind for kind, _ in self.values}
        return [kind for kind in KINDS if kind in found]

    def list_keys_missed(self) -> list[Name]:
        """Keys that had no value but their default."""
        keys = [(kind, key) for kind in self.kinds() for key in list_keys(kind)]
        return [name for name in keys if not self._is_varied(name)]

    def _is_varied(self, name: Name) -> bool:
        kind, key = name
        default = read_defaults(kind).get(key)
        return any(value != default for value in self.values.get(name, ()))

    def list_defaults_missed(self) -> list[Name]:
        """Keys that never had their default."""
        defaults = [(kind, key, value) for kind in self.kinds() for key, value in _defaults(kind)]
        return [(kind, key) for kind, key, value in defaults if value not in self.values.get((kind, key), ())]

    def list_verbs_missed(self) -> list[Name]:
        return sorted(name for name in self.offered if name not in self.done)

    def list_faults_missed(self) -> list[str]:
        return [fault for fault in FAULTS if fault not in self.struck]


def _defaults(kind: Kind) -> Iterator[tuple[str, str]]:
    yield from read_defaults(kind).items()


def cover(of: str | None, seeds: int, workers: int | None = None) -> dict[str, Coverage]:
    """Run so many seeds of each scenario of one kind, or of all, and say what each kind's exercised."""
    if of is not None and of not in SCENARIOS:
        raise UsageError(f"there are no scenarios of {of!r}: choose from {', '.join(SCENARIOS)}")
    chunks = [
        (kind, name, begin, min(begin + CHUNK_SEEDS, seeds))
        for kind in ([of] if of is not None else SCENARIOS)
        for name in SCENARIOS[kind]
        for begin in range(0, seeds, CHUNK_SEEDS)
    ]
    found: dict[str, Coverage] = {}
    for kind, part in _run_chunks(chunks, workers):
        found.setdefault(kind, Coverage()).merge(part)
    return found


Chunk = tuple[str, str, int, int]


def _run_chunks(chunks: list[Chunk], workers: int | None) -> Iterator[tuple[str, Coverage]]:
    workers = min(workers or os.cpu_count() or 1, len(chunks))
    if workers <= 1:
        yield from map(_run_chunk, chunks)
        return
    # Started afresh: a fork would carry along whatever threads the caller has.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run_chunk, chunks)


def _run_chunk(chunk: Chunk) -> tuple[str, Coverage]:
    kind, name, begin, end = chunk
    found = Coverage()
    for seed in range(begin, end):
        found.merge(record_seed(name, seed))
    return kind, found


def record_seed(name: str, seed: int) -> Coverage:
    """One run, and what it exercised, also if it failed."""
    recorder = Recorder()
    failures = []
    with recorder.recording():
        simulation = Simulation(name, make_scenario(name), seed, keep=1)
        try:
            simulation.run()
        except RunFailedError as failure:
            failures.append(f"{failure.replay}: {failure.why}")
    struck = simulation.fabric.struck
    return Coverage(1, recorder.values, recorder.offered, recorder.done, struck, failures)


def list_missed(found: dict[str, Coverage]) -> dict[str, list[str]]:
    """What nothing exercised, of all that was run: keys, defaults, verbs and faults."""
    whole = Coverage()
    for each in found.values():
        whole.merge(each)
    return {
        "keys": [".".join(name) for name in whole.list_keys_missed()],
        "defaults": [".".join(name) for name in whole.list_defaults_missed()],
        "verbs": [".".join(name) for name in whole.list_verbs_missed()],
        "faults": whole.list_faults_missed(),
    }
