"""Carries what the books of one process ask of words that are a round trip away.

The monitor and all engines ask at once, so a round is a handful of exchanges however many they are, and
opening a period is one: reports and tokens of the old one are read, the period is opened, and every
reservation is dispatched in it. Nobody stands still meanwhile: who takes tokens spends what is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from bursar.errors import NetworkError
from bursar.pools.engine import Engine
from bursar.pools.layout import TICK_NS
from bursar.pools.monitor_book import MonitorBook
from bursar.world import Clock, FarWords, WordOperation

PAUSE_NS = TICK_NS // 10
"""Between two rounds, however much they are called for."""


class Party(Protocol):
    """A book in a round: what it asks for, none of which needs an answer to another, until it has no more."""

    def operations(self, now: int) -> list[WordOperation]: ...

    def receive(self, now: int, operations: Sequence[WordOperation], values: Sequence[int]) -> None: ...


class MonitorParty:
    """The monitor's book in a round."""

    def __init__(self, book: MonitorBook) -> None:
        self._book = book

    def operations(self, now: int) -> list[WordOperation]:
        return self._book.operations(now)

    def receive(self, now: int, operations: Sequence[WordOperation], values: Sequence[int]) -> None:
        for operation, value in zip(operations, values, strict=False):  # it may have ended at a failed swap
            self._book.receive(now, operation, value)


class Rounds:
    """Rounds at every tick, and sooner when somebody waits or a period is due."""

    def __init__(
        self,
        clock: Clock,
        words: FarWords,
        book: MonitorBook,
        engines: Callable[[], list[Engine]],
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called after each round."""
        self._clock = clock
        self._words = words
        self._book = book
        self._engines = engines
        self._ended = ended
        self._called = asyncio.Event()
        self._began_at = clock.now()
        self.unreachable = 0

    def call(self) -> None:
        """Somebody would have a round soon."""
        self._called.set()

    async def round(self) -> None:
        """One round. Words that cannot be reached end it: the next one finds out what was done."""
        self._called.clear()
        self._began_at = self._clock.now()
        engines = self._engines()
        self._book.begin(self._clock.now())
        for engine in engines:
            engine.begin()
        try:
            while await self._exchange([MonitorParty(self._book), *engines]):
                pass
        except NetworkError:
            self.unreachable += 1
        self._ended()

    async def _exchange(self, parties: Sequence[Party]) -> bool:
        """Whether anybody asked for anything."""
        now = self._clock.now()
        asking = [(party, asked) for party in parties if (asked := party.operations(now))]
        if not asking:
            return False
        answers = await self._words.perform([asked for _, asked in asking])
        now = self._clock.now()
        for (party, asked), values in zip(asking, answers, strict=True):
            party.receive(now, asked, values)
        return True

    async def rest(self) -> None:
        """Until the next round is due."""
        await self._clock.sleep(PAUSE_NS)
        left_ns = self._began_at + TICK_NS - self._clock.now()
        if self._book.leading:
            accounts = self._book.accounts
            left_ns = min(left_ns, accounts.began + accounts.period_ns - self._clock.now())
        try:
            async with asyncio.timeout(max(left_ns, 0) / 1e9):
                await self._called.wait()
        except TimeoutError:
            return

    async def resign(self) -> None:
        """Say that this monitor leads no more, and let the words go."""
        operation = self._book.resign()
        try:
            if operation is not None:
                await self._words.perform([[operation]])
        except NetworkError:
            self.unreachable += 1  # then it is found out, half a period later
        await self._words.close()
