"""Charged before it is dispatched, durably: how a killed server goes on with a long period.

A server that was killed has forgotten what it dispatched. While a period lasts a second, its next life
begins with nothing and waits for the next period. With a period of a minute nobody would wait so long,
and to begin anew would grant the limit twice. So where periods are longer than `JOURNALLED_ABOVE_NS`,
a server dispatches a tenant's tokens only up to a *ceiling*, and a ceiling is never above a level that
the server's journal states. What the journal states counts as dispatched when the next life reads it;
the difference, a step or two for each tenant, is what a crash costs.

Nobody waits for the disk while it keeps up: the ceiling stays a step below what is durable. Whoever
comes to the ceiling has it raised at once, and with that the next step is asked for. For the same
reason the first steps of the next period are stated with the opening of this one.

    dispatched <= ceiling <= durable <= asked

Lines, each one record of the journal:

    Began      from here on this life of the server writes
    Charged    up to so many tokens of each tenant may be dispatched in a period, and in the one after
               it; and when it began and ends, by the clock named there
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from bursar.decoding import make_reader
from bursar.errors import JournalError
from bursar.rates.messages import UNBOUNDED
from bursar.world import SECOND_NS

JOURNALLED_ABOVE_NS = SECOND_NS
"""Periods longer than this are journalled. A restart that waits for the next period takes up to a
period and the time to start; with a second that is within the two seconds in which a restarted node
is to decide again, with more it is not."""

STEP_NS = SECOND_NS // 2
STEP_PART = 200
STEP_MIN = 4
"""A step is what a tenant spends in `STEP_NS` if it spends evenly, or this part of its allowance, or so
many tokens, or its largest request: whichever is most. A crash costs two steps at most."""

AHEAD_STEPS = 2
LIVES_MAX = 32
"""Earlier lives that are remembered: more do not come and go within one period."""

Levels = dict[int, int]
"""By tenant, as indices."""


class Began(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    life: int


Rows = tuple[tuple[str, int], ...]


class Charged(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """`rows` of `period`, `following` of the one after it: of all lives from `since` on together, but
    of none before it. `origin` names the clock of the times."""

    since: int
    period: int
    rows: Rows
    following: Rows
    origin: str
    began_at: int
    ends_at: int


_encode = msgspec.msgpack.Encoder().encode
_decode = make_reader(Began | Charged, "line of a server's journal", error=JournalError)


class Past:
    """What the lines of earlier lives say.

    lives    those whose every token is in the lines
    since    the first of them
    levels   by period and tenant, what they may have dispatched
    """

    def __init__(self) -> None:
        self.lives: tuple[int, ...] = ()
        self.since = 0
        self.levels: dict[int, dict[str, int]] = {}
        self._last: Charged | None = None

    def add(self, line: Began | Charged) -> None:
        if isinstance(line, Began):
            self.lives = (*self.lives, line.life)[-LIVES_MAX:]
        else:
            self._charge(line)

    def _charge(self, line: Charged) -> None:
        if line.since > self.since or not self.knows(line.period):
            # A life that began anew beside what earlier ones held; or periods count from one again,
            # because the store was set up anew.
            self.levels = {}
        self._last, self.since = line, line.since
        self.lives = tuple(life for life in self.lives if life >= line.since)
        for period, rows in ((line.period, line.rows), (line.period + 1, line.following)):
            levels = self.levels.setdefault(period, {})
            for tenant, level in rows:
                levels[tenant] = max(levels.get(tenant, 0), level)
        self.levels = {period: self.levels[period] for period in self.levels if self.knows(period)}

    def knows(self, period: int) -> bool:
        """Whether all that these lives may have dispatched in the period is in `levels`: the newest
        period there is the one after that in which they wrote."""
        return not self.levels or period >= max(self.levels) - 1

    def span(self, period: int, origin: str) -> tuple[int, int] | None:
        """When the period began and ends, if that is known and the clock is the same."""
        last = self._last
        if last is None or last.period != period or not origin or last.origin != origin:
            return None
        return last.began_at, last.ends_at


class Page:
    """One period: the levels that lines state, and those that durable lines do."""

    def __init__(self, period: int, levels: Sequence[int]) -> None:
        self.period = period
        self.asked = list(levels)
        self.durable = list(levels)


class Blocks:
    """What this life of a server has charged.

    Invariants:
    - a ceiling is at most what a durable line states for the period, or there is none because the
      tenant has no limit;
    - so the lines that survive a crash state, of every period in which this life dispatched, at
      least what it dispatched; and none of them is of a life without a line that it began.
    """

    def __init__(
        self,
        life: int,
        tenants: Sequence[str] = (),
        *,
        period_ns: int,
        origin: str,
        step_ns: int = STEP_NS,
        step_min: int = STEP_MIN,
    ) -> None:
        self.past = Past()
        self.unwritten: list[bytes] = []
        self.wake: Callable[[], None] = _tell_nobody
        self.period_ns = period_ns
        self._life = life
        self._since = life
        self._tenants = list(tenants)
        self._origin = origin
        self._step_ns = step_ns
        self._step_min = step_min
        self._page = Page(0, self._nothing())
        self._following = Page(1, self._nothing())
        self._ceilings = self._nothing()
        self._largest = self._nothing()
        self._span = (0, 0)
        self._stated = True
        self._lines = 0
        self._under_way: deque[tuple[int, int, tuple[tuple[int, int], ...]]] = deque()

    def _nothing(self) -> list[int]:
        return [0] * len(self._tenants)

    def add_tenant(self, index: int, tenant: str) -> int:
        """One more, under a number that is new or free; what counts as dispatched of it, if it was there in
        the life that this one goes on from."""
        while index >= len(self._tenants):
            self._tenants.append("")
            for column in (*self._columns(), self._ceilings, self._largest):
                column.append(0)
        self._tenants[index] = tenant
        self._under_way = deque(
            (line, period, tuple(level for level in levels if level[0] != index))  # of who had the number
            for line, period, levels in self._under_way
        )
        resumed = self._since != self._life
        for page in (self._page, self._following):
            level = self.past.levels.get(page.period, {}).get(tenant, 0) if resumed else 0
            page.asked[index] = page.durable[index] = level
        self._largest[index] = 0
        self._ceilings[index] = self._page.durable[index]
        return self._ceilings[index]

    def _columns(self) -> list[list[int]]:
        return [column for page in (self._page, self._following) for column in (page.asked, page.durable)]

    # -- lives ------------------------------------------------------------------------------

    def replay(self, records: Iterable[bytes]) -> None:
        """Take in what earlier lives wrote, and begin this one."""
        for record in records:
            self.past.add(_decode(record))
        self._write(Began(self._life))

    def resume(self, period: int) -> list[int] | None:
        """Go on with a period of earlier lives: what counts as dispatched, by tenant. None if that is
        not known: then this life begins anew, and counts for itself."""
        if not self.past.knows(period):
            return None
        self._since = self.past.since
        self._page = self._recall(period)
        self._following = self._recall(period + 1)
        self._span = self.past.span(period, self._origin) or (0, 0)
        self._ceilings = list(self._page.durable)
        return list(self._page.durable)

    def _recall(self, period: int) -> Page:
        levels = self.past.levels.get(period, {})
        return Page(period, [levels.get(tenant, 0) for tenant in self._tenants])

    @property
    def span(self) -> tuple[int, int]:
        """When the resumed period began and ends, by this clock; (0, 0) if that is not known."""
        return self._span

    def compact(self) -> list[bytes]:
        """Lines that say all that is still of use."""
        lives = [_encode(Began(life)) for life in (*self.past.lives, self._life)[-LIVES_MAX:]]
        levels = [dict(enumerate(page.asked)) for page in (self._page, self._following)]
        return [*lives, _encode(self._state(*levels))]

    # -- charging ---------------------------------------------------------------------------

    def open_period(self, period: int, began_at: int, ends_at: int) -> None:
        """Another period begins, with the steps that were stated ahead, if it is the following one."""
        ahead = self._following.period == period
        self._page = self._following if ahead else Page(period, self._nothing())
        self._following = Page(period + 1, self._nothing())
        self._ceilings = self._nothing()
        self._span = (began_at, ends_at)
        self._stated = False

    def grant(self, allowances: Sequence[int], dispatched: Sequence[int], ends_at: int) -> list[int]:
        """The tenants' allowances are these now. The ceilings to go with them; what is missing of the
        next steps is asked for."""
        self._span = (self._span[0], ends_at)
        wanted: Levels = {}
        following: Levels = {}
        for index, allowance in enumerate(allowances):
            if allowance >= UNBOUNDED:
                self._ceilings[index] = UNBOUNDED
                continue
            step = self._step(index, allowance)
            if self._page.asked[index] < min(allowance, dispatched[index] + step):
                wanted[index] = min(allowance, dispatched[index] + AHEAD_STEPS * step)
            if self._following.asked[index] == 0 < allowance:
                following[index] = min(allowance, AHEAD_STEPS * step)
            self._raise(index, dispatched[index] + step)
        self._ask(wanted, following)
        return list(self._ceilings)

    def grant_one(self, index: int, allowance: int) -> int:
        """A tenant that was added has this allowance. The ceiling to go with it: what comes to it asks for
        more."""
        if allowance >= UNBOUNDED:
            self._ceilings[index] = UNBOUNDED
        return self._ceilings[index]

    def reach(self, index: int, allowance: int, dispatched: int, cost: int) -> int | None:
        """A request of the tenant comes to its ceiling: a higher one that lets it go, or None while
        what it needs is not durable. The step after that is asked for."""
        needed = dispatched + cost
        if not self._ceilings[index] < needed <= allowance:
            return None
        self._largest[index] = max(self._largest[index], cost)
        step = self._step(index, allowance)
        if self._page.asked[index] < min(allowance, needed + step):
            self._ask({index: min(allowance, needed + AHEAD_STEPS * step)}, {})
        if self._page.durable[index] < needed:
            return None
        return self._raise(index, max(needed, dispatched + step))

    def is_short(self, index: int, allowance: int, dispatched: int, cost: int) -> bool:
        """Whether only the disk keeps a request from going."""
        return self._page.durable[index] < dispatched + cost <= allowance < UNBOUNDED

    def _step(self, index: int, allowance: int) -> int:
        evenly = allowance * self._step_ns // self.period_ns
        return max(evenly, allowance // STEP_PART, self._step_min, self._largest[index])

    def _raise(self, index: int, level: int) -> int | None:
        """The ceiling, at most there and never above what is durable; None if it stays."""
        level = min(level, self._page.durable[index])
        if level <= self._ceilings[index]:
            return None
        self._ceilings[index] = level
        return level

    def _ask(self, wanted: Levels, following: Levels) -> None:
        """Write lines that state these levels."""
        if self._stated and not wanted and not following:
            return
        self._stated = True
        self._write(self._state(wanted, following))
        for page, levels in ((self._page, wanted), (self._following, following)):
            self._under_way.append((self._lines, page.period, tuple(levels.items())))
            for index, level in levels.items():
                page.asked[index] = level

    def _state(self, levels: Levels, following: Levels) -> Charged:
        rows = self._name(levels), self._name(following)
        return Charged(self._since, self._page.period, *rows, self._origin, *self._span)

    def _name(self, levels: Levels) -> Rows:
        return tuple((self._tenants[index], level) for index, level in levels.items() if level)

    def _write(self, line: Began | Charged) -> None:
        self.unwritten.append(_encode(line))
        self._lines += 1
        self.wake()

    def synced(self, lines: int) -> None:
        """The first so many lines of this life are durable."""
        while self._under_way and self._under_way[0][0] <= lines:
            _, period, levels = self._under_way.popleft()
            for page in (self._page, self._following):
                for index, level in levels if page.period == period else ():
                    page.durable[index] = max(page.durable[index], level)


def _tell_nobody() -> None:
    """Until somebody wants to hear of lines to be written."""
