"""What a rate with zones rests on, taken out piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bursar.rates.controller import ControllerBook, Effects
from bursar.rates.messages import Grant, Life
from bursar.rates.terms import Terms
from bursar.rates.zones import ZoneBook
from bursar.sim.scenarios.rate_zones import ZonesRateScenario


class GivesUpAtOnce(ZoneBook):
    """A zone acknowledges a smaller grant as it stands, while its servers still have the tokens."""

    def _find_raised(self, grant: Grant) -> tuple[tuple[str, int], ...]:
        return ()


class KnowsNothingAndSaysSo(ZoneBook):
    """Whoever takes over a zone says that there is nothing, before its servers have said what they hold."""

    def _take_up(self, now: int, asked_for: int) -> None:
        self.period = self._knows_from = max(asked_for, self._book.state.period)


class TakesUpNothing(ZoneBook):
    """Whoever takes over a zone forgets what its servers hold."""

    def _resume(self) -> None:
        self._rows = {}
        self.terms, self.expires_at = self._book.state.terms, self._book.ends_at

    def narrow(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        known = self._book.state.period >= self._knows_from
        return super().narrow(terms) if self.granted or not known else dict(terms)

    def _find_raised(self, grant: Grant) -> tuple[tuple[str, int], ...]:
        return ()


class GivesOutTheWhole(ZoneBook):
    """A zone's controller takes the policy's limits for its own."""

    def narrow(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        return dict(terms)


class CountsOnePeriod(ControllerBook):
    """The global controller counts a zone's standing part of one period, and the zone has it of many."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._standing._periods = 1


class OpensUnasked(ControllerBook):
    """A zone opens the period after the one that it was granted when that is over, with what it had."""

    def _open_below(self, now: int, above: Any, lives: tuple[Life, ...]) -> Effects:
        if above.period == self.state.period and now >= self._over_at:
            above.period += 1
            above.expires_at += self._period_ns
        return super()._open_below(now, above, lives)


ZONE_BUGS: dict[str, type[ZoneBook | ControllerBook]] = {
    "gives up at once": GivesUpAtOnce,
    "knows nothing and says so": KnowsNothingAndSaysSo,
    "takes up nothing": TakesUpNothing,
    "gives out the whole": GivesOutTheWhole,
    "counts one period": CountsOnePeriod,
    "opens unasked": OpensUnasked,
}


def plant_zones(bug: str) -> ZonesRateScenario:
    scenario = ZonesRateScenario()
    part = ZONE_BUGS[bug]
    if issubclass(part, ZoneBook):
        scenario.zone_book = part
    else:
        scenario.controller_book = part
    return scenario
