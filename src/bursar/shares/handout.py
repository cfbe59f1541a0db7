"""What one interval hands out, and the terms it goes by.

What is said of all tenants stands in columns: a whole interval of ten thousand costs a few steps over
arrays, and an object only for whoever is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bursar.shares.borrowing import Tokens
from bursar.shares.rules import RATE_MAX
from bursar.world import SECOND_NS

BACKLOGGED_PART = 0.95
"""A tenant that used this part of its tokens is taken to want more."""

EXACT_MAX = 2**63 // SECOND_NS
"""Up to here a number of tokens times a second's nanoseconds is exact in 64 bits."""


class TenantTerms(msgspec.Struct, frozen=True):
    """What the policy says of a tenant: `bursar.policy.ShareTenant` has these fields."""

    weight: int = 1
    borrow: int | None = None
    lend: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One tenant's part of a handout, in tokens. `rate` is what a second of it is held to: the final
    tokens', or the initial ones' of a tenant whose demand is but estimated and lower (`close_served`)."""

    demand: int
    initial: int
    redistributed: int
    final: int
    record: int
    rate: int
    weight: int


class Demands(Mapping[str, int]):
    """What tenants wanted of an interval: `tokens` of each of `names`, all above 0."""

    __slots__ = ("_by_name", "names", "tokens")

    def __init__(self, names: Sequence[str], tokens: Tokens) -> None:
        self.names = names
        self.tokens = tokens
        self._by_name: dict[str, int] | None = None

    def __getitem__(self, tenant: str) -> int:
        if self._by_name is None:
            self._by_name = dict(zip(self.names, self.tokens.tolist(), strict=True))
        return self._by_name[tenant]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


COLUMNS = ("demand", "initial", "redistributed", "final", "record", "rate", "weight")
"""Those of `Line`, in its order."""


class Lines(Mapping[str, Line]):
    """The lines of a handout, by tenant; `names` and `columns` for whoever needs all of them."""

    __slots__ = ("_rows", "columns", "names")

    def __init__(self, names: Sequence[str] = (), columns: Sequence[Tokens] | None = None) -> None:
        self.names = names
        self.columns = [np.zeros(0, np.int64)] * len(COLUMNS) if columns is None else columns
        self._rows: dict[str, int] | None = None

    @classmethod
    def of(cls, lines: Mapping[str, Line]) -> Lines:
        columns = [
            np.array([getattr(line, column) for line in lines.values()], np.int64) for column in COLUMNS
        ]
        return cls(list(lines), columns)

    @property
    def rate(self) -> Tokens:
        return self.columns[5]

    @property
    def weight(self) -> Tokens:
        return self.columns[6]

    def sum_of(self, column: str) -> int:
        return int(self.columns[COLUMNS.index(column)].sum())

    def with_rate(self, rate: Tokens) -> Lines:
        return Lines(self.names, [*self.columns[:5], rate, self.columns[6]])

    def __getitem__(self, tenant: str) -> Line:
        if self._rows is None:
            self._rows = dict(zip(self.names, range(len(self.names)), strict=True))
        row = self._rows[tenant]
        return Line(*[int(column[row]) for column in self.columns])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Handout:
    """What one interval hands out. `lines` holds the active tenants only; `problems` says what
    was wrong with the statistics and was left out."""

    number: int
    tokens: int
    lines: Lines = field(default_factory=Lines)
    problems: tuple[str, ...] = ()


def per_second(tokens: Tokens, interval_ns: int) -> Tokens:
    """As rates: at least 1, since without a rule a tenant would have no limit at all."""
    if int(tokens.max(initial=0)) < EXACT_MAX:
        rate = tokens * SECOND_NS // interval_ns
    else:
        exact = (min(RATE_MAX, each * SECOND_NS // interval_ns) for each in tokens.tolist())
        rate = np.fromiter(exact, np.int64, len(tokens))
    return np.clip(rate, 1, RATE_MAX)
