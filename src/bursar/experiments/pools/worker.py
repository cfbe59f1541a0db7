"""One process of a live run: a monitor, a record server, or a client that reads as fast as it may.

    python -m bursar.experiments.pools.worker CONFIG.json

It prints "ready", reads the moments to begin and to end (boot time, nanoseconds) from standard input,
and prints what it counted as JSON. One that is late by more than LATE_S says where it stands, and ends.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
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
IDLE_S = 0.002
"""A rest: longer than the half millisecond of idleness below which Linux brings no other process to the
processor that was left."""

LATE_S = 60.0
"""So long after its time a process of a run is given up."""

BACKLOG = 1 << 26
"""Requests that a client with unlimited demand says are waiting."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does. `demand` is a period's; None: as much as it gets. `plenty`: tokens never
    run out. `audit`: what is spent is also counted in shared words, which outlive a client that is
    killed."""

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
    plenty: bool = False
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


def open_words(config: Config) -> SharedWords:
    """The words, with their kernels loaded: that would take a tenth of a second of the run."""
    words = SharedWords(Path(config.words))
    words.write("warm", words.read("warm"))
    words.compare_and_swap("warm", 0, 0)
    return words


Begin = Callable[[], tuple[int, int]]
"""Waits for the word to begin: the moments of the beginning and of the end."""


def run_monitor(config: Config, begin: Begin) -> Counts:
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
    monitor = Monitor(clock, open_words(config), book)
    counts = Counts()
    begun, until = begin()
    wait_until(begun)
    while clock.now() < until:
        monitor.check()
        if book.leading:
            counts.capacity[book.period] = book.accounts.capacity
            counts.issued[book.period] = book.accounts.issued()
            if book.outcome is not None:
                counts.used[book.period - 1] = book.outcome.used
        time.sleep(monitor.wait_ns() / SECOND_NS)
    return counts


def run_server(config: Config, begin: Begin) -> Counts:
    assert config.socket is not None, "a server has a socket"
    server = RecordServer(RecordStore.open(Path(config.store)), Path(config.socket))
    threading.Thread(target=server.run, daemon=True).start()
    _, until = begin()
    wait_until(until)
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
        self.ids = random.integers(0, local.count, (64, AT_ONCE))
        self.out = np.empty((AT_ONCE, local.size // 8), dtype=np.uint64)
        self.engine: Engine | None = None
        self.client: RecordClient | None = None
        if config.tokens:
            book = EngineBook(
                POOL, config.tenant, period_ns=config.period_ns, batch=config.batch, paced=config.paced
            )
            self.words = open_words(config)
            self.engine = Engine(self.clock, self.words, book)
            if config.plenty:
                self.client = RecordClient(self.store, self.engine)
        self.store.read_many(self.ids[0][:4])  # compile
        self.store.read(0)

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
        if self.client is not None:
            return self._read_plenty(self.client, ids)
        if self.engine is not None:
            return self._read_some(self.engine, ids)
        if self.config.many:
            self.store.read_many(ids, self.out)
        else:
            read = self.store.read
            for number in ids.tolist():
                read(number)
        return len(ids)

    def _read_some(self, engine: Engine, ids: Any) -> int:
        """As many as there are tokens for."""
        taken = engine.take_up_to(len(ids))
        if taken == 0:
            time.sleep(IDLE_S)
            return 0
        if self.config.audit:
            self.words.fetch_add(audit_word(engine.book.period), taken)
        self.store.read_many(ids[:taken], self.out)
        if taken < len(ids) // 2:
            time.sleep(IDLE_S)  # let some come due: many reads at once cost less than a few
        return taken

    def _read_plenty(self, client: RecordClient, ids: Any) -> int:
        """As programs do it; before the first period there are no tokens."""
        done = 0
        try:
            if self.config.many:
                client.read_many(ids, self.out)
                return len(ids)
            read = client.read
            for number in ids.tolist():
                read(number)
                done += 1
        except Refused:
            time.sleep(IDLE_S)
        return done


def main(path: str) -> None:
    config = msgspec.json.decode(Path(path).read_bytes(), type=Config)
    faulthandler.dump_traceback_later(config.seconds + 2 * LATE_S, exit=True)

    def begin() -> tuple[int, int]:
        print("ready", flush=True)
        begun, until = sys.stdin.readline().split()
        return int(begun), int(until) if until != "-" else int(begun) + int(config.seconds * SECOND_NS)

    if config.role == "monitor":
        counts = run_monitor(config, begin)
    elif config.role == "server":
        counts = run_server(config, begin)
    else:
        reader = Reader(config)
        counts = reader.run(*begin())
    sys.stdout.buffer.write(msgspec.json.encode(counts) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
