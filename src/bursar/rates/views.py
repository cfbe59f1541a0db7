"""What a controller knows and means to send: servers as it sees them, grants in the making."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bursar.rates.messages import UNBOUNDED, Allowance, Report, Row


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy promises one tenant in a period. limit None: no limit. burst: tokens that it
    may use at once, ahead of its pace."""

    reservation: int
    limit: int | None
    weight: int = 1
    burst: int = 0


Targets = Mapping[str, Mapping[str, tuple[int, int, int]]]
"""By server, by tenant: (allowance, priority part), absolute in the period, and the pace."""


@dataclass(slots=True)
class ServerView:
    """One server as this leader knows it.

    bounds   by tenant, the most that the server may still take as its allowance: it rises when a
             grant is sent, and falls only by an acknowledgement
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
    acknowledged: dict[str, int] = field(default_factory=dict)
    unacknowledged: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)

    def sent(self, sequence: int, allowances: dict[str, int]) -> None:
        self.unacknowledged.append((sequence, allowances))
        for tenant, allowance in allowances.items():
            self.bounds[tenant] = max(self.bounds.get(tenant, 0), allowance)

    def acknowledge(self, sequence: int, raised: Iterable[tuple[str, int]]) -> None:
        """The server took this grant; those sent before it are void, those after it still count."""
        taken = [allowances for number, allowances in self.unacknowledged if number == sequence]
        if not taken:
            return
        self.acknowledged = {**taken[0], **dict(raised)}
        self.unacknowledged = [(n, a) for n, a in self.unacknowledged if n > sequence]
        self._rebuild()

    def _rebuild(self) -> None:
        self.bounds = dict(self.acknowledged)
        for _, allowances in self.unacknowledged:
            for tenant, allowance in allowances.items():
                self.bounds[tenant] = max(self.bounds.get(tenant, 0), allowance)

    def begin_period(self) -> None:
        self.acknowledged = {}
        self.unacknowledged = []
        self.bounds = {}


class Draft:
    """A grant in the making. `levels` are its allowances: a fall goes all the way to the target at
    once, a rise (in `rises`) begins at the bound, and is lifted as far as there is headroom."""

    def __init__(
        self, view: ServerView, targets: Mapping[str, tuple[int, int, int]], terms: Mapping[str, Terms]
    ) -> None:
        self.view = view
        self.targets = targets
        self.levels: dict[str, int] = {}
        self.rises: list[str] = []
        self.grew = False
        for tenant, (wanted, _, _) in targets.items():
            promise = terms.get(tenant)
            if promise is None or wanted == 0:  # who has no row has nothing
                continue
            bound = view.bounds.get(tenant, 0)
            if wanted > bound and promise.limit is not None:
                self.rises.append(tenant)
                wanted = bound
            self.levels[tenant] = wanted

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
            if level
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
