"""What tokens cost: one client in turns with and without them, in one process and one run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from bursar.integrations.records.client import RecordClient
from bursar_lab.experiments.pools.config import Counts
from bursar_lab.experiments.pools.reader import Reader

SLICES = 20
"""A pair is so many short slices with tokens and as many without, in turn: what a virtual machine has of
its processors changes from one tenth of a second to the next."""

ROWS_MANY, ROWS_SINGLE = 200, 50
"""Of 512 records each, in a slice: about 50 ms."""

WAIT_S = 5.0
"""For tokens: at the very first, and for a moment where one period ends and the next begins."""


class PairReader(Reader):
    """Reads through a `RecordClient`, as programs do, or straight from the store."""

    def measure(self) -> Counts:
        counts = Counts()
        self._take_turn()
        for pair in range(self.config.pairs):
            took_ns = {True: 0, False: 0}
            for _ in range(SLICES):
                for tokens in (False, True) if pair % 2 else (True, False):
                    took_ns[tokens] += self._take_turn() if tokens else self._read_for(self.store)
            counts.ratios.append(took_ns[False] / took_ns[True])
        return counts

    def _take_turn(self) -> int:
        assert self.engine is not None, "a client with tokens"
        with closing(RecordClient(self.store, self.engine)) as client:
            return self._read_for(client, wait=WAIT_S)

    def _read_for(self, records: Any, **options: float) -> int:
        """Nanoseconds for a slice's records."""
        begun = self.clock.now()
        for row in range(ROWS_MANY if self.config.many else ROWS_SINGLE):
            ids = self.ids[row % len(self.ids)]
            if self.config.many:
                records.read_many(ids, self.bare.out, **options)
            else:
                read = records.read
                for number in ids.tolist():
                    read(number, **options)
        return self.clock.now() - begun
