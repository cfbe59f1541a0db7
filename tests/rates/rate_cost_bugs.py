"""What large requests rest on, taken out piece by piece."""

from __future__ import annotations

from bursar.rates.capacity import Capacity
from bursar.rates.controller import ControllerBook
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.placement import Placement, Placing
from bursar.rates.resource import RateDecider
from bursar.rates.views import Picture


class SplittingSteps(Placing):
    gather = staticmethod(lambda *arguments: None)


class Splits(Placement):
    """Tokens go where the demand is, whether they cover a request there or not."""

    def __call__(self, picture: Picture) -> Placing:
        return SplittingSteps(self, picture)


class SplitsTokens(RateDecider):
    def _make_controller(self, make: type[ControllerBook]) -> ControllerBook:
        self._place = Splits({})
        return super()._make_controller(make)


class Blocking(Capacity):
    """Everybody waits until a large request is done."""

    def spend(self, now: int, tokens: int, beyond: int = 0) -> None:
        super().spend(now, tokens)


class WaitsForLargeOnes(RateDecider):
    def _make_server(self, server: str, capacity: float | None) -> Dispatcher:
        dispatcher = super()._make_server(server, capacity)
        dispatcher.capacity = Blocking(capacity)
        return dispatcher


COST_BUGS = {
    "placement: tokens are split": SplitsTokens,
    "capacity: large requests block": WaitsForLargeOnes,
}
