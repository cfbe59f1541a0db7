"""What a controller knows and means to send: servers as it sees them, grants in the making."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bursar.rates.messages import NO_PART, UNBOUNDED, Allowance, Part, Report, Row
from bursar.rates.parts import count_part
from bursar.rates.terms import Terms

Targets = Mapping[str, Mapping[str, tuple[int, int, int]]]
"""By server, by tenant: (allowance, priority part), absolute in the period, and the pace."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one life of a server may take, or has: by tenant, and by its part for those without a row."""

    server: str
    rows: Mapping[str, int]
    part: Part = NO_PART

    def count(self, tenant: str, terms: Terms | None) -> int:
        row = self.rows.get(tenant)
        return count_part(tenant, terms, self.server, self.part) if row is None else row


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

    def count_all(self, tenants: Iterable[str], terms: Mapping[str, Terms]) -> list[int]:
        """The bounds of many tenants."""
        if self.unacknowledged:
            return [self.count(tenant, terms.get(tenant)) for tenant in tenants]
        held, find = self.acknowledged, self.acknowledged.rows.get
        return [
            held.count(tenant, terms.get(tenant)) if (row := find(tenant)) is None else row
            for tenant in tenants
        ]

    def sent(self, sequence: int, allowances: dict[str, int]) -> None:
        self.unacknowledged.append((sequence, Held(self.name, allowances, self.part)))

    def acknowledge(self, sequence: int, raised: Iterable[tuple[str, int]]) -> None:
        """The server took this grant; those sent before it are void, those after it still count."""
        taken = [held for number, held in self.unacknowledged if number == sequence]
        if not taken:
            return
        self.acknowledged = Held(self.name, {**taken[0].rows, **dict(raised)}, taken[0].part)
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
    once, a rise (in `rises`) begins at the bound, and is lifted as far as there is headroom."""

    def __init__(
        self,
        view: ServerView,
        targets: Mapping[str, tuple[int, int, int]],
        limits: Mapping[str, int | None],
        opened_with: Mapping[str, Terms],
    ) -> None:
        """`limits` of those that have any terms; nobody else has a row."""
        self.view = view
        self.targets = targets
        self.levels: dict[str, int] = {}
        self.rises: list[str] = []
        self.grew = False
        for (tenant, (wanted, _, _)), bound in zip(
            targets.items(), view.count_all(targets, opened_with), strict=True
        ):
            if tenant in limits:
                rises = wanted > bound and limits[tenant] is not None
                self.levels[tenant] = bound if rises else wanted
                if rises:
                    self.rises.append(tenant)

    def lift(self, tenant: str, level: int, headroom: int) -> int:
        """Raise an allowance to `level`, by `headroom` at most; by how much it was."""
        growth = max(0, min(level - self.levels[tenant], headroom))
        self.levels[tenant] += growth
        self.grew |= growth > 0
        return growth

    def rows(self) -> tuple[Allowance, ...]:
        return tuple(
            Allowance(tenant, min(level, UNBOUNDED), min(priority, level), pace)
            for tenant, level in self.levels.items()
            for _, priority, pace in (self.targets[tenant],)
            if level or self.view.part.of  # who has no row has the server's part, if that has one
        )


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


Place = Callable[[Picture], Targets]
