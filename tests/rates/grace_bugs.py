"""What it rests on that a server may begin a period alone, taken out piece by piece."""

from __future__ import annotations

from bursar.rates.controller import ControllerBook, Effects, replace
from bursar.rates.grace import Grace
from bursar.rates.messages import Grant, State
from bursar.rates.server import ServerBook
from bursar.sim.faults import Faults
from bursar.sim.scenarios.rate.grace import SmallGrace, SmallGraceTakeOver
from bursar.sim.scenarios.rate.small import SmallRate
from bursar.sim.scenarios.rate.world import ChangingRateScenario, RateScenario
from bursar.world import MILLISECOND_NS


class ForgetsStandingParts(ControllerBook):
    """Whoever opens a period takes it for untouched."""

    def _begin_period(self, now: int, before: State) -> Effects:
        self._standing.open(self.state, inherited=False)
        return super()._begin_period(now, replace(before, standing=()))


class OpensTwice(ControllerBook):
    """A candidate takes over and opens the period once more that the other had opened."""

    def lead(self, stored: State) -> Effects:
        return super().lead(replace(stored, period=max(0, stored.period - 1), standing=()))


class Hasty(Grace):
    """The next period begins when the server's own tokens have ended, whatever other clocks say."""

    def find_start(self, expires_at: int) -> int | None:
        return expires_at if self._part.of else None


class BeginsAtOnce(ServerBook):
    def __init__(self, *args, period_ns: int = 0, **options) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, period_ns=period_ns, **options)
        self.grace = Hasty(period_ns)


class BeginsUnderOtherTerms(ServerBook):
    """Counts its part by whatever terms it has."""

    def _apply(self, now: int, grant: Grant) -> None:
        super()._apply(now, grant)
        self.grace._part = grant.standing


class LeadsOnAsItLikes(ControllerBook):
    """A new leader lets a period last a period from when it took over."""

    def _begin_leading(self, now: int) -> Effects:
        effects = super()._begin_leading(now)
        self._ends_at = now + self._period_ns
        return effects


class CountsNoneThatWasGiven(ControllerBook):
    """A new leader does not know what its predecessor's grants have said, and takes it for nothing."""

    def _begin_leading(self, now: int) -> Effects:
        effects = super()._begin_leading(now)
        for life in tuple(self._standing.given):
            self._standing.drop(life)
        return effects


DYING = Faults(crashes=3.0, loss=0.2, outage_ns=400 * MILLISECOND_NS, drift=True)

BUGS: dict[str, type[ServerBook | ControllerBook]] = {
    "forgets the standing parts": ForgetsStandingParts,
    "opens twice": OpensTwice,
    "begins at once": BeginsAtOnce,
    "leads on as it likes": LeadsOnAsItLikes,
    "counts none that was given": CountsNoneThatWasGiven,
    "begins under other terms": BeginsUnderOtherTerms,
}

WORLDS: dict[str, tuple[type[SmallRate], type[ServerBook | ControllerBook]]] = {
    "forgets the standing parts": (SmallGrace, ForgetsStandingParts),
    "opens twice": (SmallGraceTakeOver, OpensTwice),
    "begins at once": (SmallGrace, BeginsAtOnce),
    "counts none that was given": (SmallGraceTakeOver, CountsNoneThatWasGiven),
}
"""The small world in which a search finds it."""


def plant_scenario(bug: str) -> RateScenario:
    scenario = ChangingRateScenario() if bug == "begins under other terms" else RateScenario()
    _plant(scenario, BUGS[bug])
    return scenario


def plant_small_world(bug: str) -> SmallRate:
    make, part = WORLDS[bug]
    world = make()
    _plant(world, part)
    return world


def _plant(world: RateScenario | SmallRate, part: type[ServerBook | ControllerBook]) -> None:
    if issubclass(part, ServerBook):
        world.server_book = part
    else:
        world.controller_book = part
