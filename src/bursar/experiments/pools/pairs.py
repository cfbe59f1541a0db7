"""What tokens cost: one client in turns with and without them, in one process and one run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from bursar.experiments.pools.config import Counts
from bursar.experiments.pools.reader import Reader
from bursar.integrations.records.client import RecordClient
from bursar.world import SECOND_NS

WAIT_S = 5.0
"""For tokens: at the very first, and for a moment where one period ends and the next begins."""


class PairReader(Reader):
    """Reads through a `RecordClient`, as programs do, or straight from the store."""

    def measure(self) -> Counts:
        counts = Counts()
        self._take_turn()
        for pair in range(self.config.pairs):
            rates = {}
            for tokens in (False, True) if pair % 2 else (True, False):
                rates[tokens] = self._take_turn() if tokens else self._read_for(self.store)
            counts.ratios.append(rates[True] / rates[False])
        return counts

    def _take_turn(self) -> float:
        assert self.engine is not None, "a client with tokens"
        with closing(RecordClient(self.store, self.engine)) as client:
            return self._read_for(client, wait=WAIT_S)

    def _read_for(self, records: Any, **options: float) -> float:
        """Records a second."""
        rows = self.ids.tolist()
        done = row = 0
        begun = now = self.clock.now()
        until = begun + int(self.config.seconds * SECOND_NS)
        while now < until:
            row = (row + 1) % len(self.ids)
            if self.config.many:
                records.read_many(self.ids[row], self.out, **options)
            else:
                read = records.read
                for number in rows[row]:
                    read(number, **options)
            done += len(self.ids[row])
            now = self.clock.now()
        return done * SECOND_NS / (now - begun)
