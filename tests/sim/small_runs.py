"""Runs of a few nodes for the tests of the simulator itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario
from bursar.sim.simulation import Run, Simulation
from bursar.world import SECOND_NS, Message, World

Work = Callable[[Simulation], Coroutine[Any, Any, None]]


class Ping(Message, frozen=True):
    number: int


class Pong(Message, frozen=True):
    number: int


class Plain(Scenario):
    """Nodes and one workload, given by the test."""

    settle_ns = SECOND_NS

    def __init__(self, nodes: Mapping[str, Boot], work: Work | None = None) -> None:
        self._nodes = nodes
        self._work = work
        self.deaths: list[str] = []

    def nodes(self) -> Mapping[str, Boot]:
        return self._nodes

    def workloads(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {} if self._work is None else {"work": self._work(self.sim)}

    def crashed(self, name: str) -> None:
        self.deaths.append(name)


def run_nodes(
    nodes: Mapping[str, Boot], work: Work | None = None, *, seed: int = 1, faults: Faults | None = None
) -> Run:
    return Simulation("plain", Plain(nodes, work), seed, faults=faults or Faults()).run()


def idle(world: World) -> None:
    """A node that does nothing."""


def sleep(sim: Simulation, duration_ns: int) -> Coroutine[Any, Any, None]:
    from bursar.sim.loop import sleep_until

    return sleep_until(sim.loop, sim.now_ns + duration_ns)
