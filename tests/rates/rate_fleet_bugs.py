"""What a rate of a fleet rests on, taken out piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from bursar.fleet.following import FleetView
from bursar.rates.controller import ControllerBook
from bursar.rates.messages import Left
from bursar.rates.server import ServerBook
from bursar.rates.views import NOTHING, Held
from bursar.sim.scenarios.rate.fleet import FleetRateScenario
from bursar.sim.scenarios.rate.small import SmallLeaving, SmallRate, SmallUnseen
from bursar.world import Check


class Unguarded(FleetView):
    """Periods are opened under whatever terms the node happens to run."""

    def guards(self) -> Sequence[Check]:
        return [Check(check.path) for check in super().guards()]


class MintsUnderOtherTerms(ControllerBook):
    """A leader takes the limit of a period that another opened for its own."""

    @property
    def _mints(self) -> bool:
        return self._complete


class CountsNoParts(ControllerBook):
    """Who was in no message holds nothing, as far as the leader knows."""

    @property
    def _knows_terms(self) -> bool:
        return False


class ForgetsInTheMidst(ServerBook):
    """A tenant is forgotten as soon as it is idle, whatever it has used of the period."""

    def may_forget(self, index: int) -> bool:
        return not self.scheduler.pending[index]

    def _find_idle(self) -> list[int]:
        return [index for index, tenant in enumerate(self.tenants) if tenant]


class LeavesAndGoesOn(ServerBook):
    """A server says that it has left, and goes on."""

    def leave(self, now: int) -> Left:
        left = super().leave(now)
        self.left = False
        return left


class ForgetsWhoLeft(ControllerBook):
    """What a server that left had used may be used again."""

    def _find_left(self, left: Left) -> Held:
        return NOTHING


FLEET_BUGS = {
    "guards: unguarded": Unguarded,
    "terms: mints under others": MintsUnderOtherTerms,
    "parts: are not counted": CountsNoParts,
    "forgetting: in the midst of a period": ForgetsInTheMidst,
    "leaving: goes on": LeavesAndGoesOn,
    "leaving: what was used is free": ForgetsWhoLeft,
}

SMALL_BUGS: dict[str, tuple[type[SmallRate], type[ServerBook | ControllerBook]]] = {
    "parts: are not counted": (SmallUnseen, CountsNoParts),
    "leaving: goes on": (SmallLeaving, LeavesAndGoesOn),
    "leaving: what was used is free": (SmallLeaving, ForgetsWhoLeft),
}
"""The small world in which a search finds it."""


def plant_fleet(bug: str) -> FleetRateScenario:
    scenario = FleetRateScenario()
    part = FLEET_BUGS[bug]
    if issubclass(part, FleetView):
        scenario.view = part
    elif issubclass(part, ServerBook):
        scenario.server_book = part
    else:
        scenario.controller_book = part
    return scenario


def plant_small_fleet(bug: str) -> SmallRate:
    make, part = SMALL_BUGS[bug]
    world = make()
    if issubclass(part, ServerBook):
        world.server_book = part
    else:
        world.controller_book = part
    return world
