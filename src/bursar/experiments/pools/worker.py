"""One process of a live run: a monitor, a record server, or a client that reads as fast as it may.

    python -m bursar.experiments.pools.worker CONFIG.json

It prints "ready", reads the moment to begin (boot time, nanoseconds) from standard input, and prints
what it counted as JSON.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from bursar.errors import Refused
from bursar.integrations.records.client import RecordClient
from bursar.integrations.records.remote import RecordServer, RemoteStore
from bursar.integrations.records.store import RecordStore
from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.runtime.clock import BootClock
from bursar.runtime.words import SharedWords
from bursar.world import SECOND_NS

POOL = "records"
AT_ONCE = 512
BACKLOG = 1 << 26
"""Requests that a client with unlimited demand says are waiting."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does. `demand` is a period's; None: as much as it gets. `audit`: what is
    spent is also counted in shared words, which outlive a client that is killed."""

    role: Literal["monitor", "server", "client"]
    store: str
    words: str
    socket: str | None = None
    tenant: str = ""
    seconds: float = 5.0
    period_ns: int = SECOND_NS
    tokens: bool = True
    many: bool = True
    paced: bool = True
    demand: int | None = None
    batch: int = 1000
    reservations: dict[str, int] = {}
    capacity: int = 0
    client_capacity: int | None = None
    adaptive: bool = False
    convert: bool = True
    audit: bool = False
    seed: int = 0


class Counts(msgspec.Struct):
    """done: I/Os by period; a monitor: what each period's estimate was, and what was issued."""

    done: dict[int, int] = {}
    capacity: dict[int, int] = {}
    issued: dict[int, int] = {}
    used: dict[int, int] = {}


def audit_word(period: int) -> str:
    return f"audit/{period}"


def wait_until(at_ns: int) -> None:
    clock = BootClock()
    while (left_ns := at_ns - clock.now()) > 0:
        time.sleep(min(left_ns / SECOND_NS, 0.05))


def run_monitor(config: Config, begin: Any) -> Counts:
    estimate: Capacity = (AdaptiveCapacity if config.adaptive else FixedCapacity)(config.capacity)
    book = MonitorBook(
        POOL,
        estimate,
        period_ns=config.period_ns,
        client_capacity=config.client_capacity,
        convert=config.convert,
    )
    for tenant, reservation in config.reservations.items():
        book.join(tenant, reservation)
    clock = BootClock()
    monitor = Monitor(clock, SharedWords(Path(config.words)), book)
    counts = Counts()
    begun = begin()
    while clock.now() < begun + int(config.seconds * SECOND_NS):
        monitor.check()
        if book.leading:
            counts.capacity[book.period] = book.accounts.capacity
            counts.issued[book.period] = book.accounts.issued()
            if book.outcome is not None:
                counts.used[book.period - 1] = book.outcome.used
        time.sleep(monitor.wait_ns() / SECOND_NS)
    return counts


def run_server(config: Config, begin: Any) -> Counts:
    assert config.socket is not None, "a server has a socket"
    server = RecordServer(RecordStore.open(Path(config.store)), Path(config.socket))
    threading.Thread(target=server.run, daemon=True).start()
    begun = begin()
    wait_until(begun + int(config.seconds * SECOND_NS))
    server.close()
    return Counts()


class Reader:
    """A client's loop: whole periods of reads, with or without tokens."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.clock = BootClock()
        local = RecordStore.open(Path(config.store))
        self.store: Any = local if config.socket is None else RemoteStore(Path(config.socket), local.size)
        random = np.random.default_rng(config.seed)
        self.ids = random.integers(0, local.count, (64, AT_ONCE if config.many else 1024))
        self.out = np.empty((AT_ONCE, local.size // 8), dtype=np.uint64)
        self.client: RecordClient | None = None
        self.book: EngineBook | None = None
        if config.tokens:
            self.book = EngineBook(
                POOL, config.tenant, period_ns=config.period_ns, batch=config.batch, paced=config.paced
            )
            self.words = SharedWords(Path(config.words))
            engine = Engine(self.clock, self.words, self.book)
            self.client = RecordClient(self.store, engine)
        self.store.read_many(self.ids[0][:4])  # compile
        self.store.read(0)

    def run(self, begun: int) -> Counts:
        wait_until(begun)
        counts = Counts()
        done = counts.done
        until = begun + int(self.config.seconds * SECOND_NS)
        row = 0
        while (now := self.clock.now()) < until:
            period = self._period(begun, now)
            left = None if self.config.demand is None else self.config.demand - done.get(period, 0)
            if self.book is not None:
                self.book.pending = BACKLOG if left is None else max(0, left)
            if left is not None and left <= 0:
                time.sleep(0.001)
                continue
            row = (row + 1) % len(self.ids)
            count = self._read(self.ids[row], AT_ONCE if left is None else min(AT_ONCE, left))
            period = self._period(begun, now)
            done[period] = done.get(period, 0) + count
        return counts

    def _period(self, begun: int, now: int) -> int:
        return self.book.period if self.book is not None else (now - begun) // self.config.period_ns

    def _read(self, ids: Any, count: int) -> int:
        """Read some records; how many. None while there are no tokens."""
        if self.config.many:
            return self._read_many(ids[:count])
        if self.client is None:
            read, numbers = self.store.read, ids.tolist()
            for number in numbers[:count]:
                read(number)
            return count
        return self._read_singly(ids[:count].tolist())

    def _read_many(self, ids: Any) -> int:
        if self.client is None:
            self.store.read_many(ids, self.out)
            return len(ids)
        taken = self.client.engine.take_up_to(len(ids))
        if taken == 0:
            time.sleep(0.0005)
            return 0
        if self.config.audit and self.book is not None:
            self.words.fetch_add(audit_word(self.book.period), taken)
        self.store.read_many(ids[:taken], self.out)
        return taken

    def _read_singly(self, numbers: list[int]) -> int:
        assert self.client is not None, "with tokens"
        read = self.client.read
        done = 0
        try:
            for number in numbers:
                read(number)
                done += 1
        except Refused:
            time.sleep(0.0005)
        return done


def main(path: str) -> None:
    config = msgspec.json.decode(Path(path).read_bytes(), type=Config)

    def begin() -> int:
        print("ready", flush=True)
        return int(sys.stdin.readline())

    if config.role == "monitor":
        counts = run_monitor(config, begin)
    elif config.role == "server":
        counts = run_server(config, begin)
    else:
        reader = Reader(config)
        counts = reader.run(begin())
    sys.stdout.buffer.write(msgspec.json.encode(counts) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
