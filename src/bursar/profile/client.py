"""One process that reads records as fast as it can: `python -m bursar.profile.client ORDER.json`.

It prints what it read in each second as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bursar.integrations.records.store import RecordStore
from bursar.profile.processes import await_beginning, end_when_late, wait_until
from bursar.runtime.clock import BootClock
from bursar.world import SECOND_NS

AT_ONCE = 512
ROWS = 64


class Order(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    seconds: float
    many: bool
    seed: int


class Reader:
    """Reads records at random, many in a call or each in its own."""

    def __init__(self, store: Any, *, records: int, many: bool, seed: int) -> None:
        self._store, self._many = store, many
        self.ids = np.random.default_rng(seed).integers(0, records, (ROWS, AT_ONCE))
        self.out = np.empty((AT_ONCE, store.size // 8), dtype=np.uint64)
        store.read_many(self.ids[0][:4])  # compile
        store.read(0)

    def read(self, ids: Any) -> None:
        if self._many:
            self._store.read_many(ids, self.out)
            return
        read = self._store.read
        for number in ids.tolist():
            read(number)


def count_reads(reader: Reader, begun: int, until: int) -> dict[int, int]:
    """Read from then until then: how many in each second."""
    clock = BootClock()
    done: dict[int, int] = {}
    row = 0
    wait_until(begun)
    while (now := clock.now()) < until:
        row = (row + 1) % ROWS
        reader.read(reader.ids[row])
        second = (now - begun) // SECOND_NS
        done[second] = done.get(second, 0) + AT_ONCE
    return done


def main(path: str) -> None:
    order = msgspec.json.decode(Path(path).read_bytes(), type=Order)
    end_when_late(order.seconds)
    store = RecordStore.open(Path(order.store))
    reader = Reader(store, records=store.count, many=order.many, seed=order.seed)
    done = count_reads(reader, *await_beginning(order.seconds))
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
