"""A test's own coroutine on a node of the simulator: real deciders and doors, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario
from bursar.sim.simulation import Simulation
from bursar.world import SECOND_NS, World

Body = Callable[[World], Awaitable[None]]


class _OverError(Exception):
    """The body came to its end: nothing more needs to run."""


class _OneNode(Scenario):
    duration_ns = 3600 * SECOND_NS
    settle_ns = 0

    def __init__(self, body: Body) -> None:
        self._body = body
        self.over = False
        self.error: Exception | None = None

    def nodes(self) -> Mapping[str, Boot]:
        return {"node": self._boot}

    async def _boot(self, world: World) -> None:
        try:
            await self._body(world)
        except Exception as error:  # noqa: BLE001 - raised again, outside of the simulation
            self.error = error
        self.over = True
        raise _OverError


def run_in_virtual_time(body: Body) -> None:
    """Run it to its end, an hour of virtual time at most; what it raises is raised."""
    scenario = _OneNode(body)
    try:
        Simulation("test", scenario, 0, faults=Faults()).run()
    except Exception:
        if not scenario.over:
            raise
    assert scenario.over, "an hour was not enough"
    if scenario.error is not None:
        raise scenario.error
