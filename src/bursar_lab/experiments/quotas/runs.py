"""The algorithms that are compared, the networks on which they run, and one run of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from bursar.quotas.book import NodeBook
from bursar.quotas.rules import BURSAR, PAPER, Rules
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.quotas.grid import FANOUT, Grid, Latency, MeteredBook, Outcome
from bursar_lab.experiments.quotas.mesh import ParallelBook, SequentialBook
from bursar_lab.experiments.quotas.traces import Trace, make_world_cup, make_zipf

REQUESTS_A_NODE = 10_000
RUNS = 5
MORE = 1.02
"""Requests beyond the quota, so that it is surely used up."""

REGIONS = ("Frankfurt", "Virginia", "Oregon", "Singapore", "Sao Paulo")
ONE_WAY_MS = (
    (0.5, 44, 75, 80, 100),
    (44, 0.5, 32, 110, 58),
    (75, 32, 0.5, 82, 88),
    (80, 110, 82, 0.5, 160),
    (100, 58, 88, 160, 0.5),
)
"""Given, not measured: about what public tables of cloud regions say."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    name: str
    rules: Rules
    book: type[NodeBook]
    mesh: bool = False


_PATIENT = replace(PAPER, by_rate_only=False, patience_ns=600 * SECOND_NS, waiting_ns=600 * SECOND_NS)
BURSAR_TREE = Algorithm("bursar", BURSAR, MeteredBook)
PAPER_TREE = Algorithm("paper", PAPER, MeteredBook)
PAPER_WAITING = Algorithm("paper, waiting first", replace(PAPER, by_rate_only=False), MeteredBook)
SEQUENTIAL = Algorithm("sequential", _PATIENT, SequentialBook, mesh=True)
PARALLEL = Algorithm("parallel", _PATIENT, ParallelBook, mesh=True)
ALGORITHMS = (BURSAR_TREE, PAPER_TREE, SEQUENTIAL, PARALLEL)


@dataclass(frozen=True, slots=True)
class Network:
    """How long a message is under way, and how long each end works on it."""

    name: str
    handling_ns: int
    latency: Latency
    patience_ns: int = BURSAR.patience_ns
    waiting_ns: int = BURSAR.waiting_ns

    def parents(self, nodes: int) -> list[int | None]:
        """As nodes choose them: the nearest senior that has a free slot."""
        free = [FANOUT] * nodes
        parents: list[int | None] = [None]
        for node in range(1, nodes):
            nearest = min((self.latency(node, senior), senior) for senior in range(node) if free[senior])[1]
            free[nearest] -= 1
            parents.append(nearest)
        return parents

    def adjust(self, rules: Rules) -> Rules:
        return replace(
            rules,
            patience_ns=max(rules.patience_ns, self.patience_ns),
            waiting_ns=max(rules.waiting_ns, self.waiting_ns),
        )


def make_loopback(round_trip_ns: int) -> Network:
    """From a measured round trip: on loopback it is nearly all handling, four times of it."""
    handling_ns = round_trip_ns // 5
    return Network("loopback", handling_ns, lambda a, b: round_trip_ns // 2 - 2 * handling_ns)


def make_wan(handling_ns: int) -> Network:
    """Nodes in five regions, in turn."""

    def latency(a: int, b: int) -> int:
        return int(ONE_WAY_MS[a % len(REGIONS)][b % len(REGIONS)] * MILLISECOND_NS)

    return Network("wan", handling_ns, latency, 3 * SECOND_NS, 8 * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Result:
    """One run, until the quota is used up but for less than a request."""

    outcome: Outcome
    last_messages: int
    last_cost: int

    @property
    def messages(self) -> int:
        return self.outcome.messages + self.outcome.acks

    @property
    def response_ms(self) -> float:
        return mean(self.outcome.durations_ns) / MILLISECOND_NS if self.outcome.durations_ns else 0.0


def make_trace(name: str, nodes: int, seed: int, each: int = REQUESTS_A_NODE, size: int = 100) -> Trace:
    requests = int(each * nodes * MORE)
    if name == "world-cup":
        return make_world_cup(requests, seed, nodes=nodes)
    return make_zipf(nodes, requests, seed, size=size)


def run(
    algorithm: Algorithm,
    trace: Trace,
    network: Network,
    seed: int,
    *,
    quota: int | None = None,
    parents: Sequence[int | None] | None = None,
) -> Result:
    """`quota` is as many mean requests as the trace has, less what it has more, unless given."""
    mean_request = trace.mean
    quota = quota or int(trace.requests / MORE) * mean_request
    grid = Grid(
        trace,
        quota,
        network.adjust(algorithm.rules),
        network.latency,
        seed=seed,
        handling_ns=network.handling_ns,
        mesh=algorithm.mesh,
        book_class=algorithm.book,
        parents=parents,
    )
    outcome = grid.run(1 - mean_request / quota)
    before = next((point for point in outcome.curve if point[0] <= 0.1), (0.0, 0, 0))
    return Result(outcome, outcome.messages + outcome.acks - before[1], outcome.cost - before[2])


def average(runs: Sequence[Result], value: Callable[[Result], float]) -> float:
    return mean(value(result) for result in runs)


def judge(bar: str, found: float, met: bool) -> dict[str, Any]:
    """One bar, for the JSON and for people."""
    return {"bar": bar, "found": found, "met": met}
