"""Three bugs for the lease, each a small slip that a reader may well miss."""

from __future__ import annotations

from bursar.book import Effects
from bursar.world import Message
from bursar_lab.leases.book import HolderBook, OwnerBook
from bursar_lab.scenarios.lease import LeaseScenario, SmallLease


class TwiceOwner(OwnerBook):
    """Handles a message twice: a return that is repeated while the first is being synced."""

    def _is_writing(self, number: int) -> bool:
        return False


class HastyOwner(OwnerBook):
    """Lets a lease outlive its clock drift: waits as long as the lease lasts, by its own clock."""

    def __init__(self, total: int, tokens: int, holder: str, duration_ns: int, drift_ppm: int) -> None:
        super().__init__(total, tokens, holder, duration_ns, drift_ppm)
        self._wait_ns = duration_ns


class EarlyHolder(HolderBook):
    """Applies a credit before its journal sync."""

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        return super().receive(now, sender, message) + self._begin(now)

    def _begin(self, now: int) -> Effects:
        return [] if self._arriving is None else super()._begin(now)


class TwiceScenario(LeaseScenario):
    owner_book = TwiceOwner


class HastyScenario(LeaseScenario):
    owner_book = HastyOwner


class EarlyScenario(LeaseScenario):
    holder_book = EarlyHolder


class SmallTwice(SmallLease):
    owner_book = TwiceOwner


class SmallHasty(SmallLease):
    owner_book = HastyOwner


class SmallEarly(SmallLease):
    holder_book = EarlyHolder


TWICE = "a message handled twice"
HASTY = "a lease that outlives its clock drift"
EARLY = "a credit applied before its journal sync"

SCENARIOS = {TWICE: TwiceScenario, HASTY: HastyScenario, EARLY: EarlyScenario}
SMALL_WORLDS = {TWICE: SmallTwice, HASTY: SmallHasty, EARLY: SmallEarly}
FINDINGS = {TWICE: "tokens", HASTY: "at the same time", EARLY: "tokens"}
"""What each of them breaks."""
