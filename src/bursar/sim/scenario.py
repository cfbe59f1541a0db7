"""What a run consists of: the interface that every scenario of `sim.scenarios` fills in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from bursar.sim.errors import InvariantError
from bursar.sim.faults import Faults
from bursar.world import SECOND_NS, World

if TYPE_CHECKING:
    from bursar.sim.simulation import Simulation

Boot = Callable[[World], Coroutine[Any, Any, None] | None]
"""Starts a node: called with a new World at the beginning and after every crash. What it returns,
if it is a coroutine, runs as a task of the node. Keep what `check` looks at (the node's book) on
the scenario, and everything else in the node."""


class Scenario:
    """A small world with an owner of the truth: the scenario itself, which stands outside of the
    nodes, sees all of them, and is made anew for each run.

    `sim` is set before anything is called: `sim.now_ns` is the true time, `sim.node(name)` tells
    whether a node is `up` and what its `clock` shows, `sim.chance.stream(purpose)` is seeded
    chance, `sim.wake_at(when_ns)` makes sure that `check` is called at that moment.
    """

    sim: Simulation
    duration_ns = 10 * SECOND_NS
    settle_ns = 10 * SECOND_NS
    drift_ppm = 200
    session_timeout_ns = 2 * SECOND_NS

    def nodes(self) -> Mapping[str, Boot]:
        """The nodes, booted in this order at time zero."""
        raise NotImplementedError

    def faults(self) -> Faults:
        """What may go wrong; each seed takes a part of it."""
        return Faults.everything()

    def workloads(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Work that belongs to no node and stops when `duration_ns` is over. (Work of a node, such
        as a tenant that spends, is spawned by its boot function and dies with the node.)"""
        return {}

    def crashed(self, name: str) -> None:
        """A node has just died: note what dies with it. Its book is as it was at that moment."""

    def healed(self) -> None:
        """Faults are over, every node is up again; `settle_ns` remain before the audit."""

    def check(self) -> None:
        """What must hold after every single event; called often, so compare only what changed.
        Raise with `require`."""

    def audit(self) -> None:
        """What must hold at the end, when everything was healed and delivered."""


def require(holds: bool, why: str) -> None:
    """Ends the run unless it holds."""
    if not holds:
        raise InvariantError(why)
