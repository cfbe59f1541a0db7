"""Runs a monitor's book: a round every few milliseconds, through the shared words alone (II-E)."""

from __future__ import annotations

from bursar.errors import NetworkError
from bursar.pools.layout import CHECK_NS, perform
from bursar.pools.monitor_book import MonitorBook
from bursar.world import MILLISECOND_NS, Clock, Words

RETRY_NS = MILLISECOND_NS


class Monitor:
    """Leads the pool, or stands by to lead it when its monitor is gone. The monitor takes no part
    in any I/O and needs no answer from any client."""

    def __init__(self, clock: Clock, words: Words, book: MonitorBook) -> None:
        self.book = book
        self._clock = clock
        self._words = words
        self._stopped = False
        self.unreachable = 0

    def check(self) -> None:
        """One round. Words that cannot be reached end it: what was done counts, and the next round
        finds out the rest."""
        try:
            self._check()
        except NetworkError:
            self.unreachable += 1

    def _check(self) -> None:
        now = self._clock.now()
        book = self.book
        book.begin(now)
        operation = book.operation(now)
        while operation is not None:
            book.receive(now, operation, perform(self._words, operation))
            operation = book.operation(now)

    def wait_ns(self) -> int:
        """Until the next round: a period is opened when it is due, not at the check after."""
        if not self.book.leading:
            return CHECK_NS
        accounts = self.book.accounts
        due_ns = accounts.began + accounts.period_ns - self._clock.now()
        # It is due and was not opened: the words cannot be reached, which takes a moment to change.
        return RETRY_NS if due_ns <= 0 else min(CHECK_NS, due_ns)

    async def run(self) -> None:
        """Rounds until `stop`."""
        while not self._stopped:
            self.check()
            await self._clock.sleep(self.wait_ns())

    def stop(self) -> None:
        """No more rounds; whoever stands by opens the next period when it is due."""
        self._stopped = True
        operation = self.book.resign()
        try:
            if operation is not None:
                perform(self._words, operation)
        except NetworkError:
            self.unreachable += 1  # then it is found out, half a period later
