"""When holds expire: by a clock that cannot be set, counted from when they were last heard of."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from bursar.quotas.balances import Hold
from bursar.quotas.ledger import Ledger

SPARE = 1_000
"""Entries of holds that are over, or were put off, are kept until they outnumber the others by this."""


class Expiry:
    """The holds of one ledger, by their time. `hold_ns` is what holds have that say nothing of it."""

    def __init__(self, hold_ns: int) -> None:
        self.hold_ns = hold_ns
        self._times: list[tuple[int, int]] = []

    def put_off(self, now: int, hold: Hold) -> None:
        """Its holder was heard of."""
        hold.expires_at = now + (hold.hold_ns or self.hold_ns)
        heapq.heappush(self._times, (hold.expires_at, hold.number))

    def renew(self, now: int, holds: Iterable[Hold]) -> None:
        """Their time begins anew: nobody knows since when, or it is another."""
        self._times = []
        for hold in holds:
            self.put_off(now, hold)

    def find_due(self, now: int, ledger: Ledger) -> Iterator[Hold]:
        """Each once. One that is put off is due again later."""
        if len(self._times) > 2 * len(ledger.holds) + SPARE:
            self._times = [(at, n) for at, n in self._times if _is_at(ledger.holds.get(n), at)]
            heapq.heapify(self._times)
        while self._times and self._times[0][0] <= now:
            at, number = heapq.heappop(self._times)
            hold = ledger.holds.get(number)
            if hold is not None and hold.expires_at == at:
                yield hold


def _is_at(hold: Hold | None, at: int) -> bool:
    return hold is not None and hold.expires_at == at
