"""The client of a live run: reads as fast as it may, and counts what it did."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from bursar.integrations.records.remote import RemoteStore
from bursar.integrations.records.store import RecordStore
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.profile.client import AT_ONCE
from bursar.profile.client import Reader as BareReader
from bursar.profile.processes import wait_until
from bursar.runtime.clock import BootClock
from bursar.runtime.words import SharedWords
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools.card import ClientCard, NodeCard
from bursar_lab.experiments.pools.config import BACKLOG, IDLE_S, POOL, Config, Counts, audit_word

SENT_AT_ONCE = 64
WINDOW = 2 * SENT_AT_ONCE
"""Requests that a client has under way on a card; the paper's clients had 64."""


def open_words(path: Path) -> SharedWords:
    """The words, with their kernels loaded: that would take a tenth of a second of the run."""
    words = SharedWords(path)
    words.write("warm", words.read("warm"))
    words.compare_and_swap("warm", 0, 0)
    return words


class Reader:
    """A client's loop: whole periods of reads, with or without tokens."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.clock = BootClock()
        local = RecordStore.open(Path(config.store))
        self.store: Any = local if config.socket is None else RemoteStore(Path(config.socket), local.size)
        self.bare = BareReader(self.store, records=local.count, many=config.many, seed=config.seed)
        self.ids = self.bare.ids
        self.engine: Engine | None = None
        if config.tokens:
            book = EngineBook(
                POOL, config.tenant, period_ns=config.period_ns, batch=config.batch, paced=config.paced
            )
            self.words = open_words(Path(config.words))
            self.engine = Engine(self.clock, self.words, book)

    def run(self, begun: int, until: int) -> Counts:
        wait_until(begun)
        counts = Counts()
        done = counts.done
        row = 0
        while (now := self.clock.now()) < until:
            period = self._period(begun, now)
            left = None if self.config.demand is None else self.config.demand - done.get(period, 0)
            if self.engine is not None:
                self.engine.book.pending = BACKLOG if left is None else max(0, left)
            if left is not None and left <= 0:
                self._rest()
                continue
            row = (row + 1) % len(self.ids)
            count = self._read(self.ids[row][: AT_ONCE if left is None else min(AT_ONCE, left)])
            period = self._period(begun, now)
            done[period] = done.get(period, 0) + count
        return counts

    def _period(self, begun: int, now: int) -> int:
        """With tokens it is the engine's, which changes only when this loop asks it for tokens."""
        if self.engine is not None:
            return self.engine.book.period
        return (now - begun) // self.config.period_ns

    def _rest(self) -> None:
        time.sleep(IDLE_S)
        if self.engine is not None:
            self.engine.tick()

    def _read(self, ids: Any) -> int:
        """Read some records; how many. None while there are no tokens."""
        if self.engine is not None:
            return self._read_some(self.engine, ids)
        self.bare.read(ids)
        return len(ids)

    def _read_some(self, engine: Engine, ids: Any) -> int:
        """As many as there are tokens for."""
        taken = engine.take_up_to(len(ids))
        if taken == 0:
            time.sleep(IDLE_S)
            return 0
        if self.config.audit:
            self.words.fetch_add(audit_word(engine.book.period), taken)
        self.bare.read(ids[:taken])
        if taken < len(ids) // 2:
            time.sleep(IDLE_S)  # let some come due: many reads at once cost less than a few
        return taken


class CardReader(Reader):
    """A client behind cards: requests are sent a few at a time, with a bounded number under way, and
    the records are read when the node's card has passed them."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.card is not None, "the card of the node"
        self._node = NodeCard(Path(config.card))
        self._own = ClientCard(config.own)
        self._flying: deque[tuple[int, Any]] = deque()
        self._under_way = 0
        self._period_seen = -1
        self._period_at = self._sent = 0

    def run(self, begun: int, until: int) -> Counts:
        wait_until(begun)
        counts = Counts()
        row = 0
        while (now := self.clock.now()) < until:
            self._land(now, counts.done)
            self._see_period(begun, now)
            wanted = self._wanted(now)
            sent = 0
            if wanted > 0 and now >= self._own.free_at and self._under_way + wanted <= WINDOW:
                row = (row + 1) % len(self.ids)
                sent = self._send(now, self.ids[row][:wanted])
            elif wanted == 0 and self.engine is not None:
                self.engine.tick()
            if sent == 0:
                self._wait(now)
        return counts

    def _see_period(self, begun: int, now: int) -> None:
        period = self._period(begun, now)
        if period != self._period_seen:
            self._period_seen, self._period_at, self._sent = period, now, 0

    def _wanted(self, now: int) -> int:
        """Requests to send now: those of this period that have come and were not sent."""
        demand = self.config.demand
        waiting = BACKLOG
        if demand is not None:
            due = demand
            if self.config.even:
                due = min(demand, demand * (now - self._period_at) // self.config.period_ns)
            waiting = max(0, due - self._sent)
        if self.engine is not None:
            self.engine.book.pending = waiting
        return min(SENT_AT_ONCE, waiting)

    def _send(self, now: int, ids: Any) -> int:
        count = len(ids) if self.engine is None else self.engine.take_up_to(len(ids))
        if count == 0:
            return 0
        self._own.send(now, count)
        self._flying.append((self._node.send(now, count), ids[:count]))
        self._under_way += count
        self._sent += count
        return count

    def _land(self, now: int, done: dict[int, int]) -> None:
        while self._flying and self._flying[0][0] <= now:
            passed_at, ids = self._flying.popleft()
            self.bare.read(ids)
            self._under_way -= len(ids)
            at_ms = passed_at // MILLISECOND_NS
            done[at_ms] = done.get(at_ms, 0) + len(ids)

    def _wait(self, now: int) -> None:
        """Until requests have passed, the own card is free, or for a while."""
        until = now + int(IDLE_S * SECOND_NS)
        if self._flying:
            until = min(until, self._flying[0][0])
        if self._own.free_at > now:
            until = min(until, self._own.free_at)
        time.sleep(max(0, until - now) / SECOND_NS)
