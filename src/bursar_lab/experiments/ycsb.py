"""The core workloads of YCSB: which operation comes next, and on which record.

| workload | operations                            | records                    |
|----------|---------------------------------------|----------------------------|
| A        | 50 % read, 50 % update                | Zipfian                    |
| B        | 95 % read, 5 % update                 | Zipfian                    |
| C        | reads                                 | Zipfian                    |
| D        | 95 % read, 5 % insert                 | the latest, Zipfian        |
| E        | 95 % scan (1 to 100), 5 % insert      | Zipfian                    |
| F        | 50 % read, 50 % read-modify-write     | Zipfian                    |

Record k is as likely as 1/(k+1)^0.99. YCSB scatters the popular records over the keys by hashing;
so does `Workload`, by a multiplication that is one to one, so that no two records share a key.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from bursar.errors import UsageError

Operation = Literal["read", "update", "insert", "scan", "modify"]

EXPONENT = 0.99
RECORD_BYTES = 1024
SCAN_MAX = 100
_SCATTER = 2_654_435_761

MIXES: dict[str, tuple[tuple[Operation, float], ...]] = {
    "A": (("read", 0.5), ("update", 0.5)),
    "B": (("read", 0.95), ("update", 0.05)),
    "C": (("read", 1.0),),
    "D": (("read", 0.95), ("insert", 0.05)),
    "E": (("scan", 0.95), ("insert", 0.05)),
    "F": (("read", 0.5), ("modify", 0.5)),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One operation on a record; a scan reads `length` records from there on."""

    operation: Operation
    record: int
    length: int = 1

    @property
    def key(self) -> str:
        return name_record(self.record)

    @property
    def keys(self) -> list[str]:
        """All that it touches."""
        return [name_record(self.record + step) for step in range(self.length)]


class Zipfian:
    """Ranks from 0, the first the most likely. The first `count` ranks are kept as a table; those
    added later (`grow`) extend it, so a draw stays one search in it."""

    def __init__(self, count: int, exponent: float = EXPONENT) -> None:
        if count < 1 or exponent < 0:
            raise UsageError(f"{count} records with exponent {exponent}: pass at least 1, and 0 or more")
        self._exponent = exponent
        self._sums = list(accumulate((rank + 1) ** -exponent for rank in range(count)))

    def __len__(self) -> int:
        return len(self._sums)

    def grow(self) -> None:
        """One record more."""
        self._sums.append(self._sums[-1] + (len(self._sums) + 1) ** -self._exponent)

    def draw(self, chance: random.Random) -> int:
        return min(bisect.bisect_left(self._sums, chance.random() * self._sums[-1]), len(self._sums) - 1)


class Workload:
    """An endless stream of requests of one of the workloads "A" to "F"."""

    def __init__(
        self, letter: str, chance: random.Random, *, records: int = 10_000, record_bytes: int = RECORD_BYTES
    ) -> None:
        if letter not in MIXES:
            raise UsageError(f"there is no YCSB workload {letter!r}; there is {', '.join(MIXES)}")
        self.letter = letter
        self._chance = chance
        self._ranks = Zipfian(records)
        self._records = records
        self._operations = [operation for operation, _ in MIXES[letter]]
        self._parts = list(accumulate(part for _, part in MIXES[letter]))
        self._value = chance.randbytes(record_bytes)

    @property
    def records(self) -> int:
        """How many records there are now, the inserted ones with them."""
        return len(self._ranks)

    def keys(self) -> Iterator[str]:
        """The keys to load before the first request."""
        return map(name_record, range(self._records))

    def value(self) -> bytes:
        """What to write: as many random bytes as a record has, not the same twice in a row."""
        at = self._chance.randrange(len(self._value))
        return self._value[at:] + self._value[:at]

    def draw(self) -> Request:
        drawn = self._chance.random() * self._parts[-1]
        operation = self._operations[bisect.bisect_right(self._parts, drawn, hi=len(self._parts) - 1)]
        if operation == "insert":
            self._ranks.grow()
            return Request("insert", len(self._ranks) - 1)
        length = self._chance.randint(1, SCAN_MAX) if operation == "scan" else 1
        return Request(operation, self._record_of(self._ranks.draw(self._chance)), length)

    def _record_of(self, rank: int) -> int:
        if self.letter == "D":
            return len(self._ranks) - 1 - rank
        return _scatter(rank, self._records) if rank < self._records else rank


def _scatter(rank: int, records: int) -> int:
    """Another order of 0..records-1: the multiplier is a prime that does not divide `records`."""
    return rank * _SCATTER % records if records % _SCATTER else rank


def name_record(record: int) -> str:
    return f"user{record}"
