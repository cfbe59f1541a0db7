"""What a controller knows and means to send: servers as it sees them, grants in the making.

Tenants are numbers in the controller's `Roll`, and whatever is said of many of them is a column by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bursar.rates.columns import EMPTY, NOTHING_SEEN, UNNAMED, Seen
from bursar.rates.messages import NO_PART, Part, Report
from bursar.rates.roll import Roll
from bursar.rates.terms import Terms

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Triple = tuple[int, int, int]
Listed = Mapping[str, Mapping[str, Triple]]
"""Targets by server and tenant, one by one: allowance, priority part, pace."""


class Rows(NamedTuple):
    """The targets of one server, of the tenants of these numbers: allowances and priority parts, absolute in
    the period, and paces."""

    numbers: Whole
    allowances: Whole
    priorities: Whole
    paces: Whole


NO_ROWS = Rows(EMPTY, EMPTY, EMPTY, EMPTY)


@dataclass(frozen=True)
class Targets(Mapping[str, Mapping[str, Triple]]):
    """Where the tokens of the named tenants should be: `rows` by server, and everywhere else `levels` and
    `paces`, by number. A tenant that is not named (UNNAMED) has its part, everywhere."""

    names: Sequence[str]
    levels: Whole
    paces: Whole
    rows: Mapping[str, Rows]

    def fill(self, server: str) -> Rows:
        """Of all numbers."""
        count = self.levels.size
        filled = Rows(np.arange(count), self.levels.copy(), np.zeros(count, np.int64), self.paces.copy())
        rows = self.rows.get(server, NO_ROWS)
        for column, values in zip(filled[1:], rows[1:], strict=True):
            column[rows.numbers] = values
        return filled

    def __getitem__(self, server: str) -> Mapping[str, Triple]:
        if server not in self.rows:
            raise KeyError(server)
        filled = zip(self.names, *(column.tolist() for column in self.fill(server)[1:]), strict=False)
        return {name: (level, first, pace) for name, level, first, pace in filled if level != UNNAMED}

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


NO_TARGETS = Targets((), EMPTY, EMPTY, {})


def make_targets(wanted: Listed, picture: Picture) -> Targets:
    """The same of targets that are listed one by one. Who is named and listed nowhere has nothing."""
    if isinstance(wanted, Targets):
        return wanted
    levels = np.where(picture.named, 0, UNNAMED)
    position = {name: number for number, name in enumerate(picture.names) if picture.named[number]}
    rows = {}
    for server, listed in wanted.items():
        known = {position[tenant]: triple for tenant, triple in listed.items() if tenant in position}
        table = np.array(list(known.values()), np.int64).reshape(-1, 3)
        rows[server] = Rows(np.array(list(known), np.int64), *table.T)
    return Targets(picture.names, levels, np.zeros_like(levels), rows)


def scale(amounts: Whole, by: int, of: int) -> Whole:
    """Each `amount * by // of`, exactly: products may be more than 64 bits hold."""
    if int(amounts.max(initial=0)) <= 2**62 // max(by, 1):
        scaled: Whole = amounts * by // of
        return scaled
    return np.array([amount * by // of for amount in amounts.tolist()], np.int64)


@dataclass(frozen=True, slots=True)
class Held:
    """What one life of a server may take, or has: `levels` by number. Of those that are UNNAMED, or came into
    the roll later, it is the part."""

    server: str
    levels: Whole = field(default_factory=lambda: EMPTY)
    part: Part = NO_PART

    def count_all(self, roll: Roll) -> Whole:
        """Of everyone in the roll."""
        levels = roll.widen(self.levels)
        if self.part.of == 0:
            return np.maximum(levels, 0)
        unnamed = levels == UNNAMED
        return (
            np.where(unnamed, roll.count_parts(self.server, self.part), levels) if unnamed.any() else levels
        )


NOTHING = Held("")


class Sent(NamedTuple):
    """A grant that was sent: what whoever takes it has, and how many names of the roll it then knows."""

    sequence: int
    held: Held
    known: int


@dataclass(slots=True)
class ServerView:
    """One server as this leader knows it.

    seen     what the last report that said anything said of its tenants; `rows_at` is when it was sent, by
             the server's clock, and `seen_ns` what time it covers
    acknowledged, unacknowledged   what it was last known to hold, and what was sent since
    known    how many names of the roll it has acknowledged
    part     what grants to it say of tenants without a level, in this period
    left     it has said that it dispatches nothing more
    heard_at, asked_at   when it was last heard, and the newest poll that it has answered
    """

    name: str
    incarnation: int
    heard_at: int
    asked_at: int
    report: Report
    seen: Seen = NOTHING_SEEN
    rows_at: int = 0
    seen_ns: int = 0
    acknowledged: Held = NOTHING
    unacknowledged: list[Sent] = field(default_factory=list)
    known: int = 0
    part: Part = NO_PART
    left: bool = False

    @property
    def life(self) -> tuple[str, int]:
        return self.name, self.incarnation

    def count_all(self, roll: Roll) -> Whole:
        """The bounds: the most that the server may still take as each tenant's allowance. They rise when a
        grant is sent, and fall only by an acknowledgement."""
        bounds = self.acknowledged.count_all(roll)
        for sent in self.unacknowledged:
            bounds = np.maximum(bounds, sent.held.count_all(roll))
        return bounds

    def list_held(self) -> list[Held]:
        return [self.acknowledged, *(sent.held for sent in self.unacknowledged)]

    def acknowledge(self, roll: Roll, sequence: int, raised: Iterable[tuple[str, int]]) -> None:
        """The server took this grant; those sent before it are void, those after it still count."""
        taken = [sent for sent in self.unacknowledged if sent.sequence == sequence]
        if not taken:
            return
        held, above = taken[0].held, dict(raised)
        if above:
            numbers = roll.number_all(above)
            levels = roll.widen(held.levels).copy()
            levels[numbers] = list(above.values())
            held = Held(self.name, levels, held.part)
        self.acknowledged, self.known = held, max(self.known, taken[0].known)
        self.unacknowledged = [sent for sent in self.unacknowledged if sent.sequence > sequence]

    def begin_period(self, part: Part, alone: Part) -> None:
        """With this part; and with that one, perhaps, if it has begun the period alone."""
        self.acknowledged = Held(self.name, EMPTY, alone) if alone.of else NOTHING
        self.unacknowledged = []
        self.part = part

    def leave(self, held: Held) -> None:
        """It dispatches nothing more, and has dispatched this of the period."""
        self.left = True
        self.acknowledged, self.unacknowledged = held, []

    def renumber(self, numbers: Whole) -> None:
        """There is another roll; of those that are not in it nothing was seen."""
        self.known = 0
        renumbered = self.seen._replace(numbers=numbers[self.seen.numbers])
        self.seen = renumbered.keep(renumbered.numbers >= 0)


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a placement may look at: data, taken at one moment. By number: the names, who is `named`,
    so that tokens are to be placed for it, what it is promised, and what servers may have of the period's
    tokens that are not in `servers`, gone or silent (`held`). `bound` are those that may not use every
    server, with the ones that they may. `before` are the levels of the last targets in this period."""

    now: int
    time_left_ns: int
    period_ns: int
    interval_ns: int
    servers: tuple[ServerView, ...]
    period: int
    names: Sequence[str]
    named: Flags
    limits: Whole
    reservations: Whole
    paces: Whole
    bound: Mapping[int, tuple[str, ...]]
    held: Whole
    before: Whole

    def is_named(self, tenant: str) -> bool:
        return any(self.names[number] == tenant for number in np.flatnonzero(self.named).tolist())


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


class Steps(Protocol):
    """A placement under way."""

    def go_on(self) -> Targets | None:
        """The next step; the targets once it was the last."""


Place = Callable[[Picture], Listed | Steps]
"""Where each tenant's tokens should be, at every server of the picture: a mapping, `Targets` or another, or
steps that lead to `Targets`."""


def draw_picture(
    now: int,
    time_left_ns: int,
    period_ns: int,
    interval_ns: int,
    servers: tuple[ServerView, ...],
    roll: Roll,
    period: int,
) -> Picture:
    """Of everyone in the roll, all of whose tokens are at these servers."""
    count = len(roll)
    bound = {number: terms.servers or () for number, terms in roll.bound.items()}
    promised = (roll.limits, roll.reservations, roll.paces)
    nobody, named = np.zeros(count, np.int64), np.ones(count, np.bool_)
    unsaid = np.full(count, UNNAMED, np.int64)
    return Picture(
        now,
        time_left_ns,
        period_ns,
        interval_ns,
        servers,
        period,
        roll.names,
        named,
        *promised,
        bound,
        nobody,
        unsaid,
    )
