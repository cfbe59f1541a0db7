"""The loop of one target (section III-A of the paper): statistics, allocation, rules, clear.

Each target is alone: nothing here talks to another one. Where the tokens are spent is an
`Enforcer`'s business: a filter of bursar's own (`bursar.shares.resource`,
`bursar_lab.storage`), the kernel's I/O controller (`bursar.integrations.blkio`), or
Lustre's (`bursar.integrations.lustre`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bursar.errors import BursarError, CrashedError
from bursar.shares.book import TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.filter import Filter
from bursar.shares.handout import Handout
from bursar.units import Rate
from bursar.world import SECOND_NS, Journal, World

PROBLEMS_KEPT = 20
SNAPSHOT_EVERY_NS = SECOND_NS
REWRITE_EVERY = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """One interval's statistics, tokens by tenant. `demand` where requests are seen as they
    arrive, `served` where only finished I/O is; the other is None. `problems` are entries that
    could not be read and were left out; `saturated` says whether requests waited inside of the target,
    past all rules, where that is known; `sizes` how many times its terms' weight each has, where
    somebody knows: the nodes of a job."""

    demand: Mapping[str, int] | None = None
    served: Mapping[str, int] | None = None
    problems: tuple[str, ...] = ()
    saturated: bool | None = None
    sizes: Mapping[str, int] | None = None


class Enforcer(Protocol):
    """The place where a target's tokens are spent."""

    async def collect(self) -> Seen:
        """What happened since the last call; counting begins anew. Raises BursarError when
        nothing can be learnt: the interval is skipped and the rules stay as they are."""

    async def apply(self, handout: Handout) -> None:
        """Make the rules what the handout says: a rule for each of its tenants, none for
        others. Raises BursarError when a rule could not be set; the next interval tries again."""

    async def release(self) -> None:
        """Remove every rule: nobody is held back when bursar is gone."""


@dataclass(slots=True)
class Progress:
    """What the loop has done so far."""

    intervals: int = 0
    skipped: int = 0
    tokens: int = 0
    problems: deque[str] = field(default_factory=lambda: deque(maxlen=PROBLEMS_KEPT))


class Target:
    """Runs one target's book against its enforcer until stopped.

    A failure of the enforcer costs an interval, never the loop: no tokens are handed out for it,
    records stay as they are, and the rules in force go on."""

    def __init__(
        self,
        world: World,
        name: str,
        book: TargetBook,
        enforcer: Enforcer,
        *,
        journal: Journal | None = None,
        probe: CapacityProbe | None = None,
    ) -> None:
        self.name = name
        self.book = book
        self.progress = Progress()
        self._world = world
        self._enforcer = enforcer
        self._journal = journal
        self._probe = probe
        self._ends_at = 0
        self._closed_at = 0
        self._written = b""
        self._written_at = 0
        self._appended = 0
        self._stopping = False

    def start(self) -> None:
        """Take in what an earlier life knew, and begin."""
        if self._journal is not None:
            self.book.replay(self._journal.replay())
        self._closed_at = self._world.clock.now()
        self._ends_at = self._closed_at + self.book.interval_ns
        self._world.spawn(self._run(), f"share.{self.name}")

    async def stop(self) -> None:
        """Stop after the interval under way, remove every rule and remember the records."""
        self._stopping = True
        await self._enforcer.release()
        await self._remember(force=True)

    def interval_ends_at(self, now: int) -> int:
        """When the interval of that moment ends; also while the loop is late to close one."""
        late_ns = now - self._ends_at
        missed = 0 if late_ns < 0 else late_ns // self.book.interval_ns + 1
        return self._ends_at + missed * self.book.interval_ns

    async def _run(self) -> None:
        clock = self._world.clock
        while not self._stopping:
            await clock.sleep(self._ends_at - clock.now())
            if self._stopping:
                return
            self._ends_at += self.book.interval_ns
            await self.step()
            # After a pause the missed intervals are over: their tokens were not handed out.
            self._ends_at = max(self._ends_at, clock.now())

    async def step(self) -> Handout | None:
        """Close one interval and open the next; None if it had to be skipped."""
        try:
            seen = await self._enforcer.collect()
            handout = self._close(seen)
            await self._enforcer.apply(handout)
        except CrashedError:
            raise
        except BursarError as error:
            self.progress.skipped += 1
            self._note(str(error))
            return None
        await self._remember()
        return handout

    def _close(self, seen: Seen) -> Handout:
        now = self._world.clock.now()
        elapsed_ns, self._closed_at = now - self._closed_at, now
        for problem in seen.problems:
            self._note(problem)
        if seen.sizes is not None:
            self.book.set_sizes(seen.sizes)
        if seen.demand is not None:
            handout = self.book.close(seen.demand, elapsed_ns)
        else:
            handout = self.book.close_served(seen.served or {}, elapsed_ns, saturated=bool(seen.saturated))
            self._learn_capacity(seen, elapsed_ns)
        for problem in handout.problems:
            self._note(problem)
        self.progress.intervals += 1
        self.progress.tokens += handout.tokens
        self._world.trace(
            "share.handout",
            target=self.name,
            number=handout.number,
            tokens=handout.tokens,
            active=len(handout.lines),
        )
        return handout

    def _learn_capacity(self, seen: Seen, elapsed_ns: int) -> None:
        if self._probe is None or not seen.served:
            return
        self._probe.add(
            sum(seen.served.values()),
            elapsed_ns,
            backlogged=self.book.is_backlogged(),
            contended=len(self.book.handout.lines) > 1,
            saturated=seen.saturated,
        )
        self.book.set_capacity(Rate.of(self._probe.rate, self.book.capacity.unit))

    def _note(self, problem: str) -> None:
        self.progress.problems.append(problem)
        self._world.trace("share.problem", target=self.name, what=problem)

    async def _remember(self, *, force: bool = False) -> None:
        """Write the records now and then: a restart knows who owes whom, up to a second ago."""
        now = self._world.clock.now()
        if self._journal is None or (not force and now - self._written_at < SNAPSHOT_EVERY_NS):
            return
        snapshot = self.book.snapshot()
        if snapshot == self._written:
            return
        self._written, self._written_at = snapshot, now
        self._appended += 1
        if self._appended % REWRITE_EVERY == 0:
            await self._journal.rewrite([snapshot])
            return
        self._journal.append(snapshot)
        await self._journal.sync()


class FilterRules:
    """Holds the tenants of a filter to what the handouts say: of two that are due the heavier one goes
    first, and a tenant without tokens is held to rate 1, since the fallback queue has no limit."""

    def __init__(self, filter_: Filter[Any]) -> None:
        self._filter = filter_

    def apply(self, handout: Handout, now: int) -> None:
        lines = handout.lines
        self._filter.hold(lines.names, lines.rate.tolist(), (-lines.weight).tolist(), now)

    def clear(self, now: int) -> None:
        self._filter.hold((), (), (), now)
