"""One process of a live run: a monitor, a record server, or a client that reads as fast as it may.

    python -m bursar_lab.experiments.pools.worker CONFIG.json

It prints "ready", reads the moments to begin and to end (boot time, nanoseconds) from standard input,
and prints what it counted as JSON. One that is late by more than LATE_S says where it stands, and ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bursar.integrations.records.remote import RecordServer
from bursar.integrations.records.store import RecordStore
from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity, PrintedCapacity
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.profile.processes import await_beginning, end_when_late, wait_until
from bursar.runtime.clock import BootClock
from bursar.world import SECOND_NS
from bursar_lab.experiments.pools.config import POOL, Config, Counts
from bursar_lab.experiments.pools.pairs import PairReader
from bursar_lab.experiments.pools.reader import CardReader, Reader, open_words

Begin = Callable[[], tuple[int, int]]
"""Waits for the word to begin: the moments of the beginning and of the end."""


def make_estimate(config: Config) -> Capacity:
    match config.estimate:
        case "adaptive":
            return AdaptiveCapacity(config.capacity, config.sigma)
        case "printed":
            return PrintedCapacity(config.capacity, config.sigma)
        case _:
            return FixedCapacity(config.capacity)


def run_monitor(config: Config, begin: Begin) -> Counts:
    book = MonitorBook(
        POOL,
        make_estimate(config),
        period_ns=config.period_ns,
        client_capacity=config.client_capacity,
        convert=config.convert,
    )
    for tenant, reservation in config.reservations.items():
        book.join(tenant, reservation)
    clock = BootClock()
    monitor = Monitor(clock, open_words(Path(config.words)), book)
    counts = Counts()
    begun, until = begin()
    wait_until(begun)
    while clock.now() < until:
        monitor.check()
        if book.leading:
            counts.began[book.period] = book.accounts.began
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


def main(path: str) -> None:
    config = msgspec.json.decode(Path(path).read_bytes(), type=Config)
    end_when_late(config.seconds)
    prepared_s = 0.0

    def begin() -> tuple[int, int]:
        nonlocal prepared_s
        prepared_s = time.process_time()
        return await_beginning(config.seconds)

    if config.role == "monitor":
        counts = run_monitor(config, begin)
    elif config.role == "server":
        counts = run_server(config, begin)
    elif config.role == "pairs":
        pairs = PairReader(config)
        begin()
        counts = pairs.measure()
    else:
        reader = CardReader(config) if config.card is not None else Reader(config)
        counts = reader.run(*begin())
    counts.processor_s = time.process_time() - prepared_s
    sys.stdout.buffer.write(msgspec.json.encode(counts) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
