"""The lots in hand: what a door spends from without asking anybody."""

from __future__ import annotations

from collections import defaultdict

from bursar.resource.deadlines import Deadlines
from bursar.resource.decider import Decider, Seen
from bursar.resource.lots import Lot
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Granted

AHEAD_MAX = 2**40
"""A lot is asked for as "up to this"; how many come, the rules of lots say at the kind."""


class Hand:
    """One lot a tenant. `lots` is read by the door itself: spending is a decrement there."""

    def __init__(
        self, decider: Decider, deadlines: Deadlines, tallies: defaultdict[str, TallyCounter]
    ) -> None:
        self.lots: dict[str, Lot] = {}
        self.refilling: set[str] = set()
        self._decider = decider
        self._deadlines = deadlines
        self._tallies = tallies
        self._sated: set[str] = set()

    def ahead_for(self, tenant: str) -> int:
        """How many tokens to ask for ahead. They go to whoever used up its last lot, not to whoever
        let one pass; and one request of a tenant at a time asks for them."""
        if tenant in self.refilling:
            return 0
        if tenant in self._sated:
            self._sated.discard(tenant)
            return 0
        return AHEAD_MAX

    def put(self, tenant: str, granted: Granted) -> None:
        """A lot came: it takes the place of the one before."""
        self.end(tenant)
        lot = self.lots[tenant] = Lot(tenant, granted.lot or granted)
        lot.deadline = self._deadlines.add(lot.until, self._expire, lot)

    def _expire(self, lot: Lot) -> None:
        """Its time is over. What was left of it was not wanted."""
        if self.lots.get(lot.tenant) is lot:
            if lot.left:
                self._sated.add(lot.tenant)
            self.end(lot.tenant)

    def end(self, tenant: str) -> int:
        """The tenant's lot is over: what was left of it goes back to the kind, and is returned."""
        lot = self.lots.pop(tenant, None)
        if lot is None:
            return 0
        lot.deadline.done = True
        left, lot.left = lot.left, 0
        lot.size -= left
        self._tallies[tenant].add(lot.spent, lot.requests)
        self._decider.end_lot(tenant, lot.granted, Seen(lot.tell(), 0, lot.requests), left)
        return left

    def forget(self, tenant: str) -> None:
        self.end(tenant)
        self._sated.discard(tenant)

    def end_all(self) -> None:
        for tenant in list(self.lots):
            self.end(tenant)

    def tell(self) -> None:
        """Tell the kind what was spent up to now: it is about to look at demand."""
        for tenant, lot in self.lots.items():
            news = lot.tell()
            if news:
                self._decider.observe(tenant, lot.granted, Seen(news))

    def give_back(self, lot: Lot, unused: int) -> None:
        """A grant from a lot was settled for less."""
        if self.lots.get(lot.tenant) is lot:
            lot.left += unused
            lot.returned += unused
        else:
            self._decider.take_back(lot.tenant, lot.granted, unused)
