"""What a controller knows and means to send: servers as it sees them, grants in the making."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bursar.rates.messages import NO_PART, UNBOUNDED, Allowance, Part, Report, Row
from bursar.rates.parts import count_part
from bursar.rates.terms import Terms

Whole = npt.NDArray[np.int64]
Triple = tuple[int, int, int]

Targets = Mapping[str, Mapping[str, Triple]]
"""By server, by tenant: (allowance, priority part), absolute in the period, and the pace."""


class Columns(Mapping[str, Triple]):
    """The targets of one server, by columns: there may be thousands of tenants at each of many servers, and
    a tuple for every one of them costs more than everything that is done with it."""

    def __init__(
        self,
        tenants: Sequence[str],
        columns: tuple[Whole, Whole, Whole],
        position: Mapping[str, int] | None = None,
    ) -> None:
        """`columns` are allowances, priority parts and paces; `position` says where a tenant is in them."""
        self.tenants = tenants
        self.allowances, self.priorities, self.paces = columns
        self._position = position

    def __getitem__(self, tenant: str) -> Triple:
        index = self.find_positions()[tenant]
        return int(self.allowances[index]), int(self.priorities[index]), int(self.paces[index])

    def __iter__(self) -> Iterator[str]:
        return iter(self.tenants)

    def __len__(self) -> int:
        return len(self.tenants)

    def find_positions(self) -> Mapping[str, int]:
        """By tenant, its place in the columns."""
        if self._position is None:
            self._position = {name: index for index, name in enumerate(self.tenants)}
        return self._position

    def keep(self, tenants: Mapping[str, object]) -> Columns:
        """Only these."""
        kept = [index for index, tenant in enumerate(self.tenants) if tenant in tenants]
        names = [self.tenants[index] for index in kept]
        return Columns(names, (self.allowances[kept], self.priorities[kept], self.paces[kept]))


def scale(amounts: Whole, by: int, of: int) -> Whole:
    """Each `amount * by // of`, exactly: products may be more than 64 bits hold."""
    if int(amounts.max(initial=0)) <= 2**62 // max(by, 1):
        scaled: Whole = amounts * by // of
        return scaled
    return np.array([amount * by // of for amount in amounts.tolist()], np.int64)


def add_up(columns: Sequence[Whole], rows: int) -> list[int]:
    """The sums of each row, exactly, as Python's numbers: no limit is as much as fits in 64 bits."""
    if not columns:
        return [0] * rows
    table = np.stack(columns)
    if int(table.max(initial=0)) <= 2**62 // len(columns):
        sums: list[int] = table.sum(axis=0).tolist()
        return sums
    return list(map(sum, table.T.tolist()))


def make_columns(targets: Mapping[str, Triple]) -> Columns:
    if isinstance(targets, Columns):
        return targets
    table = np.array(list(targets.values()), np.int64).reshape(-1, 3)
    return Columns(list(targets), (table[:, 0], table[:, 1], table[:, 2]))


@dataclass(frozen=True, slots=True)
class Held:
    """What one life of a server may take, or has: by tenant, and by its part for those without a row.
    `levels` is the same as a column of these `tenants`, where it was made of one."""

    server: str
    rows: Mapping[str, int]
    part: Part = NO_PART
    tenants: Sequence[str] | None = field(default=None, repr=False, compare=False)
    levels: Whole | None = field(default=None, repr=False, compare=False)

    def count(self, tenant: str, terms: Terms | None) -> int:
        row = self.rows.get(tenant)
        return count_part(tenant, terms, self.server, self.part) if row is None else row

    def count_all(self, tenants: Sequence[str], terms: Mapping[str, Terms]) -> Whole:
        """The same of many tenants. Whoever is asked about the list that a grant was made of, which is so
        round after round, has its column."""
        if self.levels is not None and self.tenants is tenants:
            return self.levels
        find = self.rows.get
        counts = [
            self.count(tenant, terms.get(tenant)) if (row := find(tenant)) is None else row
            for tenant in tenants
        ]
        return np.array(counts, np.int64)


NOTHING = Held("", {})


@dataclass(slots=True)
class ServerView:
    """One server as this leader knows it.

    acknowledged, unacknowledged   what it was last known to hold, and what was sent since
    part     what grants to it say of tenants without a row, in this period
    left     it has said that it dispatches nothing more
    heard_at, asked_at   when it was last heard, and the newest poll that it has answered
    rows_at  when the server sent `rows`, by its clock
    """

    name: str
    incarnation: int
    heard_at: int
    asked_at: int
    report: Report
    rows: dict[str, Row]
    rows_at: int = 0
    seen_ns: int = 0
    acknowledged: Held = NOTHING
    unacknowledged: list[tuple[int, Held]] = field(default_factory=list)
    part: Part = NO_PART
    left: bool = False
    _asking_of: dict[str, Row] | None = field(default=None, repr=False, compare=False)
    _asking: list[Row] = field(default_factory=list, repr=False, compare=False)

    @property
    def life(self) -> tuple[str, int]:
        return self.name, self.incarnation

    def count(self, tenant: str, terms: Terms | None) -> int:
        """The bound: the most that the server may still take as the tenant's allowance. It rises when a
        grant is sent, and falls only by an acknowledgement."""
        bound = self.acknowledged.count(tenant, terms)
        for _, held in self.unacknowledged:
            bound = max(bound, held.count(tenant, terms))
        return bound

    def count_all(self, tenants: Sequence[str], terms: Mapping[str, Terms]) -> Whole:
        """The bounds of many tenants."""
        bounds = self.acknowledged.count_all(tenants, terms)
        for _, held in self.unacknowledged:
            bounds = np.maximum(bounds, held.count_all(tenants, terms))
        return bounds

    def list_asking(self) -> list[Row]:
        """The rows that tell of any demand or use: few of them, where most of a server's tenants are idle.
        Gone through once a report."""
        if self._asking_of is not self.rows:
            self._asking_of = self.rows
            rows = self.rows.values()
            self._asking = [row for row in rows if row.pending or row.arrived or row.dispatched or row.front]
        return self._asking

    def sent(self, sequence: int, held: Held) -> None:
        self.unacknowledged.append((sequence, held))

    def acknowledge(self, sequence: int, raised: Iterable[tuple[str, int]]) -> None:
        """The server took this grant; those sent before it are void, those after it still count."""
        taken = [held for number, held in self.unacknowledged if number == sequence]
        if not taken:
            return
        held, above = taken[0], dict(raised)
        self.acknowledged = Held(self.name, {**held.rows, **above}, held.part) if above else held
        self.unacknowledged = [(n, held) for n, held in self.unacknowledged if n > sequence]

    def begin_period(self, part: Part, alone: Part) -> None:
        """With this part; and with that one, perhaps, if it has begun the period alone."""
        self.acknowledged = Held(self.name, {}, alone) if alone.of else NOTHING
        self.unacknowledged = []
        self.part = part

    def leave(self, rows: Mapping[str, int]) -> None:
        """It dispatches nothing more, and has dispatched this of the period."""
        self.left = True
        self.acknowledged, self.unacknowledged = Held(self.name, rows), []


class Draft:
    """A grant in the making. `levels` are its allowances: a fall goes all the way to the target at
    once, a rise (`rising`) begins at the bound, and is lifted as far as there is headroom."""

    def __init__(
        self,
        view: ServerView,
        targets: Columns,
        limited: npt.NDArray[np.bool_],
        opened_with: Mapping[str, Terms],
    ) -> None:
        """`limited`: which of these tenants, who all have terms, have a limit."""
        self.view = view
        self.targets = targets
        self.grew = False
        self._numbers: Whole | None = None
        wanted, bounds = targets.allowances, view.count_all(targets.tenants, opened_with)
        self.rising = (wanted > bounds) & limited
        self.levels: Whole = np.where(self.rising, bounds, wanted)

    def number(self, numbers: Mapping[str, int] | None) -> None:
        """Where the headroom of each of these tenants is; None: in the same order."""
        if numbers is not None:
            self._numbers = np.array([numbers[tenant] for tenant in self.targets.tenants], np.int64)

    def lift(self, places: Whole, levels: Whole, headroom: Whole) -> None:
        """Raise allowances to these levels, as far as there is headroom, which that takes."""
        numbers = places if self._numbers is None else self._numbers[places]
        growth = np.maximum(np.minimum(levels - self.levels[places], headroom[numbers]), 0)
        self.levels[places] += growth
        headroom[numbers] -= growth
        self.grew |= bool(growth.any())

    def finish(self) -> tuple[tuple[Allowance, ...], Held]:
        """The rows of the grant, and what whoever takes it has."""
        view, targets = self.view, self.targets
        levels: Whole = np.minimum(self.levels, UNBOUNDED)
        columns = (levels, np.minimum(targets.priorities, self.levels), targets.paces)
        names: Sequence[str] = targets.tenants
        if not view.part.of:  # who has no row has the server's part, if that has one
            given = np.flatnonzero(levels)
            columns = (columns[0][given], columns[1][given], columns[2][given])
            names = [names[index] for index in given.tolist()]
        allowances, priorities, paces = (column.tolist() for column in columns)
        rows = tuple(map(Allowance, names, allowances, priorities, paces))
        held = Held(view.name, dict(zip(names, allowances, strict=True)), view.part, targets.tenants, levels)
        return rows, held


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a placement may look at: pure data, taken at one moment. `held` is what servers
    may have of the period's tokens that are not in `servers`, gone or silent."""

    now: int
    time_left_ns: int
    period_ns: int
    interval_ns: int
    servers: tuple[ServerView, ...]
    terms: Mapping[str, Terms]
    period: int
    held: Mapping[str, int]


class Above(Protocol):
    """What a controller has from one that is above it: the period that there is, the name of its terms, and
    until when its tokens are good."""

    period: int
    terms: str
    expires_at: int

    def narrow(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        """What is here of what tenants are promised."""

    def find_named(self) -> Iterable[str]:
        """The tenants of which there is other than a part here."""

    def nest(self, part: Part) -> Part:
        """A server's part of what is here of everybody's limit."""


Place = Callable[[Picture], Targets]
