"""The queues before one server: who waits, who goes next, and when.

Requests wait in a queue for each tenant until the scheduler chooses them, the server's book says
that its tokens are good, and the server has room: at most `capacity` tokens a second, and at most
`concurrency` requests at a time, where these are given.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bursar.courier import Alarm
from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import REFUSE, WithoutBursar
from bursar.rates.server import ServerBook
from bursar.world import MILLISECOND_NS, SECOND_NS, World

ResultT = TypeVar("ResultT")

AHEAD_NS = 5 * MILLISECOND_NS
"""How far ahead of its capacity a server may run. It then rests until all of that is used up, so
that it wakes two hundred times a second at most, and not for every request."""

BEHIND_NS = 50 * MILLISECOND_NS
"""How much unused time it may make up for: a busy machine wakes late, and that is not idleness."""

PAUSE_NS = MILLISECOND_NS
"""Between two bursts while it makes up for lost time: those who were served send again meanwhile. A
tenant with priority and few requests outstanding would otherwise leave most of a long burst to
others."""

TURNOVER_NS = 50 * MILLISECOND_NS
"""Between the end of one period and the first tokens of the next: bursar's own pause, which a request
that wants no wait is not told of."""

START_NS = SECOND_NS
"""The same for the very first tokens, after the start."""

DEADLINES_SPARE = 64
"""Deadlines of requests that went already are kept until they outnumber those that wait by this."""

QUEUE_MAX = 100_000
"""Requests that may wait for one tenant; the next one is refused at once."""


class Waiter:
    """A request in a queue; `gone` once it gave up."""

    __slots__ = ("cost", "future", "gone", "index")

    def __init__(self, index: int, cost: int, future: asyncio.Future[int]) -> None:
        self.index = index
        self.cost = cost
        self.future = future
        self.gone = False


class Dispatcher:
    """Queues, scheduler and book of one server. `dispatched` is called with (tenant, period,
    tokens) for every request that goes: how the simulator and the metrics see the truth."""

    def __init__(
        self,
        world: World,
        book: ServerBook,
        *,
        period_ns: int,
        capacity: float | None = None,
        concurrency: int | None = None,
        without_bursar: WithoutBursar = REFUSE,
        dispatched: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.book = book
        self.period_ns = period_ns
        self.in_service = 0
        self._started_at = 0
        self._world = world
        self._capacity = capacity
        self._concurrency = concurrency
        self.without_bursar = without_bursar
        self._dispatched = dispatched
        self._queues: list[deque[Waiter]] = [deque() for _ in book.tenants]
        self._waiting = 0
        self._free_at = 0
        self._rests_until = 0
        self._burst_at = 0
        self._burst_ns = 0
        self._busy_since: int | None = None
        self._pump_at: int | None = None
        self._deadlines: list[tuple[int, int, Waiter]] = []
        self._asked = 0
        self._alarm = Alarm(world, f"rate/{book.name}/queues", self._wake_at, self._wake)

    def start(self) -> None:
        self._started_at = self._world.clock.now()
        self._alarm.start()

    # -- asking -----------------------------------------------------------------------------

    def try_take(self, tenant: str, cost: int = 1) -> bool:
        """Take tokens now or not at all. False while others of the same tenant wait."""
        index = self._find(tenant)
        if not self._waiting:
            taken = self._take_at_once(index, cost)
            if not taken:
                self.book.observed.arrived[index] += cost
            return taken
        if self._queues[index]:
            return False
        waiter = self._join(index, cost)
        if waiter.future.done():
            return True
        self._leave(waiter)
        return False

    async def take(self, tenant: str, cost: int, wait_ns: int) -> int:
        """Wait for one's turn, at most `wait_ns`. Returns the period that was charged."""
        index = self._find(tenant)
        if len(self._queues[index]) >= QUEUE_MAX:
            why = f"{QUEUE_MAX} requests of {tenant} wait at {self.book.name} already"
            raise Refused(why, limit=QUEUE_MAX, remaining=0)
        if not self._waiting and self._take_at_once(index, cost):
            return self.book.period
        waiter = self._join(index, cost)
        if not waiter.future.done():
            wait_ns = max(wait_ns, self._pause_left())
            if wait_ns <= 0:
                self._leave(waiter)
                raise self._refusal(tenant, index)
            self._set_deadline(waiter, wait_ns)
            try:
                await waiter.future
            except asyncio.CancelledError:
                self._abandon(waiter)
                raise
            if waiter.gone:
                raise self._refusal(tenant, index)
        return waiter.future.result()

    def _take_at_once(self, index: int, cost: int) -> bool:
        """The same as joining and being let go, where nobody waits: most requests go this way."""
        now = self._world.clock.now()
        if now < self._rests_until or not self._may_dispatch(now) or not self._has_room(now):
            return False
        if not self.book.scheduler.take(index, cost, self._fraction(now)):
            return False
        self.book.observed.arrived[index] += cost
        self._charge(now, index, cost)
        return True

    def _pause_left(self) -> int:
        """How long the pause between two periods, or before the first, may still last."""
        now = self._world.clock.now()
        if self.book.may_dispatch(now):
            return 0
        ends_at = self.book.expires_at + TURNOVER_NS if self.book.period else self._started_at + START_NS
        return ends_at - now

    def _abandon(self, waiter: Waiter) -> None:
        """Whoever asked is gone: leave the queue, or the place that it was given meanwhile."""
        if waiter.future.done() and not waiter.future.cancelled() and not waiter.gone:
            self.finished()
        else:
            self._leave(waiter)

    def _set_deadline(self, waiter: Waiter, wait_ns: int) -> None:
        self._asked += 1
        heapq.heappush(self._deadlines, (self._world.clock.now() + wait_ns, self._asked, waiter))
        if len(self._deadlines) > 2 * self._waiting + DEADLINES_SPARE:
            self._deadlines = [each for each in self._deadlines if not each[2].future.done()]
            heapq.heapify(self._deadlines)
        self._alarm.set()

    def _give_up(self, now: int) -> None:
        """Tell those whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heapq.heappop(self._deadlines)[2]
            if not waiter.future.done():
                self._leave(waiter)
                waiter.future.set_result(0)

    async def submit(
        self, tenant: str, work: Coroutine[Any, Any, ResultT], *, cost: int = 1, wait_ns: int = 60 * SECOND_NS
    ) -> ResultT:
        """Run `work` when it is the tenant's turn."""
        try:
            await self.take(tenant, cost, wait_ns)
        except BaseException:
            work.close()
            raise
        try:
            return await work
        finally:
            self.finished()

    def finished(self) -> None:
        """A request that was dispatched is done: there is room for another."""
        self.in_service -= 1
        if self.in_service == 0:
            self._count_busy()
            self._busy_since = None
        if self._concurrency is not None:
            self.pump()

    def _find(self, tenant: str) -> int:
        index = self.book.index(tenant)
        if index is None:
            raise UsageError(f"tenant {tenant!r} is not in the policy; add it to the resource's tenants")
        return index

    def _join(self, index: int, cost: int) -> Waiter:
        waiter = Waiter(index, cost, asyncio.get_running_loop().create_future())
        queue = self._queues[index]
        queue.append(waiter)
        if len(queue) == 1:
            self.book.observed.began_to_wait(index, self._world.clock.now())
            self.book.scheduler.price(index, cost)
        self.book.scheduler.arrive(index)
        self.book.observed.arrived[index] += cost
        self._waiting += 1
        self.pump()
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        """A waiting request gave up."""
        if waiter.gone:
            return
        waiter.gone = True
        self._waiting -= 1
        self._queues[waiter.index].remove(waiter)
        self.book.scheduler.withdraw(waiter.index)
        self._price_front(waiter.index)

    def _price_front(self, index: int) -> None:
        queue = self._queues[index]
        if queue:
            self.book.scheduler.price(index, queue[0].cost)
        else:
            self.book.observed.ran_empty(index, self._world.clock.now())

    def _refusal(self, tenant: str, index: int) -> Refused | Unknown:
        now = self._world.clock.now()
        book = self.book
        if not book.may_dispatch(now):
            return Unknown(f"no controller has granted tokens to {book.name} for this period")
        allowance = int(book.scheduler.allowance[index])
        remaining = max(0, allowance - int(book.scheduler.dispatched[index]))
        if remaining:
            retry_at, reason = self._find_delay(now, index)
            why = f"{tenant} has {remaining} tokens left at {book.name}, but {reason}"
        else:
            retry_at = book.expires_at
            why = f"{tenant} has used its {allowance} tokens at {book.name} for this period"
        retry_after = max(0, retry_at - now) / SECOND_NS
        return Refused(why, limit=allowance, remaining=remaining, retry_after=retry_after)

    def _find_delay(self, now: int, index: int) -> tuple[int, str]:
        """(when to try again, why it does not go now) for a tenant that has tokens left."""
        if now < self._rests_until:
            return self._rests_until, "the server is at its capacity"
        due = self.book.scheduler.find_due(index)
        if due is not None:
            return self._released_at(due), "pacing spreads them over the period"
        return self.book.expires_at, "others came first"

    def waiting(self, tenant: str) -> int:
        """Requests of the tenant in the queue."""
        return len(self._queues[self._find(tenant)])

    def left(self, tenant: str) -> int:
        """Tokens that the tenant has here beyond what its waiting requests need."""
        index = self._find(tenant)
        scheduler = self.book.scheduler
        return int(scheduler.allowance[index] - scheduler.dispatched[index]) - len(self._queues[index])

    def add_tenant(self, tenant: str, weight: int) -> None:
        self.book.add_tenant(tenant, weight)
        self._queues.append(deque())

    # -- choosing ---------------------------------------------------------------------------

    def pump(self) -> None:
        """Let go all that may go now."""
        if not self._waiting:
            return
        now = self._world.clock.now()
        if now < self._rests_until:
            if self._pump_at is None:
                self._pump_by(self._rests_until)
            return
        if not self._may_dispatch(now):
            return
        scheduler = self.book.scheduler
        fraction = self._fraction(now)
        while self._waiting and self._has_room(now):
            index = scheduler.choose(fraction)
            if index < 0:
                self._wait_for_tokens(now)
                return
            self._let_go(now, index)

    def _may_dispatch(self, now: int) -> bool:
        return self.book.may_dispatch(now) or self._goes_on_alone(now)

    def _fraction(self, now: int) -> float:
        """How much of the period has passed."""
        return min(1.0, (now - self.book.began_at) / self.period_ns)

    def _wait_for_tokens(self, now: int) -> None:
        """Nobody may go. Pacing lets somebody go at a known time; else only a grant, an arrival or
        the end of these tokens changes that."""
        release = self.book.scheduler.find_release()
        if release is None:
            self._pump_by(self.book.expires_at)
        else:
            self._pump_by(self._released_at(release))

    def _released_at(self, release: float) -> int:
        return min(self.book.expires_at, self.book.began_at + int(release * self.period_ns) + 1)

    def _goes_on_alone(self, now: int) -> bool:
        """A whole period without tokens: bursar cannot be reached. Do as the policy says."""
        mode = self.without_bursar.mode
        if mode == "refuse" or self.book.period == 0:
            return False
        alone_at = self.book.expires_at + (0 if self.book.alone else self.period_ns)
        if now < alone_at:
            self._pump_by(alone_at)
            return False
        rate = self.without_bursar.rate
        self.book.go_on_alone(now, self.period_ns, rate.per(self.period_ns) if rate else None)
        self._world.trace("rate.alone", server=self.book.name, mode=mode)
        return True

    def _has_room(self, now: int) -> bool:
        if self._concurrency is not None and self.in_service >= self._concurrency:
            return False
        if self._capacity is None:
            return True
        if now >= self._burst_at + PAUSE_NS:
            self._burst_at, self._burst_ns = now, 0
        ahead = self._free_at > now + AHEAD_NS
        if ahead or self._burst_ns > AHEAD_NS:
            self._rests_until = self._free_at if ahead else self._burst_at + PAUSE_NS
            self._pump_by(self._rests_until)
            return False
        return True

    def _let_go(self, now: int, index: int) -> None:
        waiter = self._queues[index].popleft()
        self._price_front(index)
        self._waiting -= 1
        if waiter.future.cancelled():
            # Whoever asked is gone and has not left the queue yet: the tokens are spent on nobody.
            waiter.gone = True
            return
        self._charge(now, index, waiter.cost)
        waiter.future.set_result(self.book.period)

    def _charge(self, now: int, index: int, cost: int) -> None:
        """The scheduler let a request go: count it."""
        self.in_service += 1
        if self._busy_since is None:
            self._busy_since = now
        self.book.observed.served += cost
        if self._capacity is not None:
            self._free_at = max(self._free_at, now - BEHIND_NS) + int(cost * SECOND_NS / self._capacity)
        if self._dispatched is not None:
            self._dispatched(self.book.tenants[index], self.book.period, cost)

    def _pump_by(self, moment_ns: int) -> None:
        self._pump_at = moment_ns if self._pump_at is None else min(self._pump_at, moment_ns)
        self._alarm.set()

    def _wake_at(self) -> int | None:
        deadline = self._deadlines[0][0] if self._deadlines else None
        if self._pump_at is None or deadline is None:
            return deadline if self._pump_at is None else self._pump_at
        return min(self._pump_at, deadline)

    def _wake(self, now: int) -> None:
        self._give_up(now)
        if self._pump_at is not None and self._pump_at <= now:
            self._pump_at = None
            self.pump()

    def _count_busy(self) -> None:
        """Add the time since the last count to what the next report says."""
        now = self._world.clock.now()
        if self._busy_since is not None:
            self.book.observed.busy_ns += now - self._busy_since
            self._busy_since = now
