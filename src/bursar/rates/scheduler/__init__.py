"""The token scheduler of one server: which tenant's request goes next (algorithm 1).

Every tenant has a queue, an *allowance* (what may be dispatched for it in the present period,
counted from the period's start) and a *priority* part of it. A request is chosen

1. from the tenants that wait and have dispatched less than their priority part, in turn;
2. if there is none, from those that wait and have dispatched less than their allowance, in turn;
3. otherwise not at all.

The paper keeps two counters that go down, R-tokens and L-tokens. Here both are bounds on one
counter that goes up. So a request served without priority counts towards the reservation by
itself, a grant that comes twice changes nothing, and one that was computed from an old report is
right about what has been dispatched since.

**Turns.** Tenants that wait for the same step go in the order of virtual time (self-clocked fair
queueing): a request's place is what it costs, divided by its tenant's weight, after the moment at which
it came to the front. So tenants that wait are even in tokens, by weight (section V, local priorities),
whatever their requests cost, and what one of them asks for changes nothing for the others. The paper
walks the queues by number; where all requests cost one token and weights are equal, this is the same
order, and takes the same few steps for 100,000 tenants as for ten; other costs take a step more each time
that the number of those who wait doubles.

**Costs.** The caller keeps the queues. Where requests cost other than one token, it says with
`price` what the one at the front costs, whenever that changes. A request goes only if the
allowance covers it whole; with any priority token left it goes first. What it takes beyond its
tenant's priority part is *owed*, if it is not a trifle: so many priority tokens fewer are the tenant's in
the next periods. A reservation is so met in whole requests (in a single period to within one, where they
are large), and no others' reservations are used up for it.

**How long a request waits.** One of cost c at the front of its queue, of a tenant of weight w whose
allowance and pace cover it, goes at the latest when the server has served, without priority,

    c * W / w  +  the largest cost and the weight of each other tenant that waits

tokens, where c is at least w, and W the weights of all that wait, its own among them. A waiting request
keeps its place when a period ends, and while it lacks tokens.

**Pacing.** With `period_ns`, a tenant's tokens are spread over the period: it is never further
ahead of its pace (`pace` tokens a period) than its burst, `burst_ns` at that pace. So a window as
long as a period sees at most pace + burst tokens, where two unpaced periods back to back could show
twice the limit. The pace begins with the period. A tenant whose requests wait, for others or for
tokens that come late, does not lose the time: it may catch up with its pace within the period, or a
limit (and with it a reservation) could not be used up. One that has nothing to send saves nothing
up. The priority part is paced like the rest, because the pace is the limit's and so never below
the reservation's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bursar.errors import UsageError
from bursar.rates.scheduler import kernels

Whole = npt.NDArray[np.int64]

UNBOUNDED = kernels.UNBOUNDED
"""The allowance of a tenant without a limit."""

WEIGHT_MAX = 2**20
COST_MAX = 2**30
BURST_MAX_NS = 2**58
"""Nine years."""


class Scheduler:
    """Queues without their contents, and the choice among them. Tenants are indices from 0.

    Not for use by several threads at once. Every method takes time independent of the number of
    tenants (or, for requests whose cost is not the weight, nearly so), except `open_period`,
    `grant_many` and growing.
    """

    def __init__(self, weights: Iterable[int] = (), *, period_ns: int | None = None) -> None:
        """`period_ns` is the length of a period, over which tenants with a pace are spread; None
        leaves everybody unpaced."""
        if period_ns is not None and period_ns < 1:
            raise UsageError(f"period_ns is {period_ns!r}: pass nanoseconds, or None for no pacing")
        checked = [_check_weight(weight) for weight in weights]
        self._count = len(checked)
        self._table = np.zeros((max(8, self._count), kernels.FIELDS), dtype=np.int64)
        self._heads = np.full(kernels.RINGS, kernels.NOBODY, dtype=np.int64)
        self._state = np.zeros(kernels.STATES, dtype=np.int64)
        self._paced = period_ns is not None
        self._state[kernels.PERIOD] = period_ns or 0
        self._prepare_rows(0)
        self._table[: self._count, kernels.WEIGHT] = checked
        kernels.open_period(self._table, self._heads, self._state)

    def __len__(self) -> int:
        return self._count

    def add(self, weight: int = 1) -> int:
        """One more tenant; its index."""
        checked = _check_weight(weight)
        if self._count == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._prepare_rows(self._count)
        tenant = self._count
        self._table[tenant, kernels.WEIGHT] = checked
        self._count += 1
        return tenant

    def reset(self, tenant: int, weight: int = 1) -> None:
        """The number is another tenant's now, which has nothing yet and nothing in its queue."""
        if self._table[self._check(tenant), kernels.RING] != kernels.NOBODY or self.pending[tenant]:
            raise UsageError(f"tenant {tenant} has requests that wait: withdraw them first")
        self._table[tenant, : kernels.HEAP] = 0  # the heaps' columns are no tenant's
        self._prepare_rows(tenant, tenant + 1)
        self._table[tenant, kernels.WEIGHT] = _check_weight(weight)

    def is_unused(self, tenant: int) -> bool:
        """Whether nothing of the tenant waits, nothing was charged to it in this period, and it is not
        ahead of its pace either."""
        row = self._table[self._check(tenant)]
        ahead = self._paced and row[kernels.CLEAR] > self._state[kernels.NOW]
        return not (row[kernels.WAITING] or row[kernels.DISPATCHED] or ahead)

    def set_pacing(self, period_ns: int | None) -> None:
        """Pace from now on, over so long a period, or (None) no more."""
        if period_ns is not None and period_ns < 1:
            raise UsageError(f"period_ns is {period_ns!r}: pass nanoseconds, or None for no pacing")
        self._paced = period_ns is not None
        kernels.set_period(self._table[: self._count], self._heads, self._state, period_ns or 0)

    def set_weight(self, tenant: int, weight: int) -> None:
        """From the tenant's next request on."""
        self._table[self._check(tenant), kernels.WEIGHT] = _check_weight(weight)

    def set_burst(self, tenant: int, burst_ns: int) -> None:
        """How far ahead of its pace the tenant may be: so long at that pace."""
        if not 0 <= burst_ns <= BURST_MAX_NS:
            raise UsageError(f"burst_ns is {burst_ns}: pass nanoseconds up to {BURST_MAX_NS}")
        self._table[self._check(tenant), kernels.BURST] = burst_ns

    def arrive(self, tenant: int, count: int = 1, now: int | None = None) -> None:
        """`count` requests joined the tenant's queue."""
        if count < 0:
            raise UsageError(f"count is {count}: pass how many requests arrived, or use withdraw")
        moment = self._moment(now)
        kernels.join(self._table, self._heads, self._state, self._check(tenant), count, moment)

    def withdraw(self, tenant: int) -> None:
        """A waiting request of the tenant gave up. If it was the front one, `price` the next."""
        if self._table[self._check(tenant), kernels.WAITING] == 0:
            raise UsageError(f"tenant {tenant} has no waiting request to withdraw")
        kernels.arrive(self._table, self._heads, self._state, tenant, -1)

    def take(
        self, tenant: int, cost: int, now: int | None = None, *, more: int = 0, first_only: bool = False
    ) -> int | None:
        """Charge a request of the tenant now or not at all (then None): not if anybody waits who
        could go, or another request of the tenant does. Up to `more` tokens are charged with it, for
        requests to come; how many is returned."""
        _check_cost(cost)
        moment, index = self._moment(now), self._check(tenant)
        got = kernels.take(self._table, self._heads, self._state, index, cost, more, moment, first_only)
        return None if got == kernels.NOBODY else int(got)

    def give_back(self, tenant: int, tokens: int, now: int | None = None) -> None:
        """So many tokens that were charged to the tenant in this period were not used."""
        if tokens < 0:
            raise UsageError(f"tokens is {tokens}: pass how many come back")
        moment = self._moment(now)
        kernels.give_back(self._table, self._heads, self._state, self._check(tenant), tokens, moment)

    def price(self, tenant: int, cost: int) -> None:
        """The request at the front of the tenant's queue costs `cost` tokens. It holds until the
        next call: a caller whose requests differ calls this whenever the front changes."""
        _check_cost(cost)
        kernels.price(self._table, self._heads, self._state, self._check(tenant), cost)

    def grant(
        self, tenant: int, allowance: int, priority: int = 0, pace: int = 0, now: int | None = None
    ) -> None:
        """What the tenant may have dispatched by the end of the present period, in all and of
        that with priority, both counted from the period's start; `pace` tokens a period, 0 for as
        fast as it likes. An allowance below what was dispatched already stops the tenant and takes
        nothing back."""
        if not 0 <= priority <= allowance <= UNBOUNDED:
            raise UsageError(
                f"tenant {tenant} was granted {allowance} tokens, {priority} of them with priority: "
                f"pass 0 <= priority <= allowance <= {UNBOUNDED} (UNBOUNDED for no limit)"
            )
        if pace < 0:
            raise UsageError(f"pace is {pace}: pass tokens a period, or 0 for no pace")
        self._see(now)
        kernels.grant(self._table, self._heads, self._state, self._check(tenant), allowance, priority, pace)

    def grant_many(
        self,
        tenants: Whole,
        allowance: Whole,
        priority: Whole,
        pace: Whole | None = None,
        now: int | None = None,
    ) -> None:
        """`grant` for each of `tenants`, in one compiled pass."""
        if pace is None:
            pace = np.zeros(len(tenants), np.int64)
        columns = [np.ascontiguousarray(a, dtype=np.int64) for a in (tenants, allowance, priority, pace)]
        tenants, allowance, priority, pace = columns
        if any(column.shape != (tenants.size,) for column in columns):
            raise UsageError("grant_many takes arrays of one length: tenants, allowance, priority, pace")
        fault = kernels.find_fault(self._count, tenants, allowance, priority, pace)
        if fault == kernels.BAD_TENANT:
            raise UsageError(f"tenants are indices from 0 to {self._count - 1}")
        if fault == kernels.BAD_TOKENS:
            raise UsageError("grant_many needs 0 <= priority <= allowance <= UNBOUNDED and pace >= 0")
        self._see(now)
        kernels.grant_many(self._table, self._heads, self._state, tenants, allowance, priority, pace)

    def cap_many(self, ceilings: Sequence[int]) -> None:
        """The most that each tenant may have dispatched for now, whatever its allowance: what was
        charged durably, where that is asked for. A period begins without ceilings."""
        if len(ceilings) != self._count:
            raise UsageError(f"cap_many takes {self._count} ceilings, one for each tenant")
        kernels.cap_many(self._table, self._heads, self._state, np.array(ceilings, np.int64))

    def cap(self, tenant: int, ceiling: int) -> None:
        """The same for one tenant."""
        kernels.cap(self._table, self._heads, self._state, self._check(tenant), ceiling)

    def find_short(self) -> list[int]:
        """The tenants that wait and would go but for their ceiling."""
        found: list[int] = []
        tenant = int(self._heads[kernels.SHORT])
        while tenant != kernels.NOBODY and tenant not in found[:1]:
            found.append(tenant)
            tenant = int(self._table[tenant, kernels.NEXT])
        return found

    def front_cost(self, tenant: int) -> int:
        """What the request at the front of the tenant's queue costs, or did when there was one."""
        return int(self._table[self._check(tenant), kernels.COST])

    def spend(self, tenant: int, tokens: int) -> None:
        """Count tokens as dispatched in this period that were, or may have been, elsewhere."""
        self._table[self._check(tenant), kernels.DISPATCHED] += tokens

    def open_period(self, now: int | None = None) -> None:
        """Begin a period: nothing dispatched, nothing allowed. What waits goes on waiting."""
        self._see(now)
        kernels.open_period(self._table, self._heads, self._state)

    def choose(self, now: int | None = None, *, first_only: bool = False) -> int:
        """The tenant whose front request goes now, already charged for it; -1 if none may. Only
        pacing needs to know the time. `first_only`: of those with priority tokens."""
        return int(kernels.choose(self._table, self._heads, self._state, self._moment(now), first_only))

    def choose_many(self, count: int, now: int | None = None) -> Whole:
        """The next `count` choices, or as many as there are. Only where no front request has to
        be priced in between."""
        chosen = np.empty(count, dtype=np.int64)
        filled = kernels.choose_many(self._table, self._heads, self._state, self._moment(now), chosen)
        return chosen[: int(filled)]

    def find_release(self) -> int | None:
        """When the next paced tenant may go on, or should at least be looked at again. None if time
        alone changes nothing before the next period: then only an arrival or a grant does, so a
        caller that was told -1 need not ask again before."""
        moment = int(kernels.find_release(self._heads, self._state))
        return None if moment == kernels.NOBODY else moment

    def find_due(self, tenant: int, cost: int = 1) -> int:
        """The moment from which pacing lets a request of the tenant go; 0 if it does not hold it."""
        return int(kernels.find_due(self._table, self._state, self._check(tenant), cost))

    def count_ready(self, tenant: int, now: int | None = None) -> int:
        """Tokens that allowance and pace have for the tenant now."""
        self._see(now)
        return int(kernels.count_ready(self._table, self._state, self._check(tenant)))

    @property
    def beyond(self) -> int:
        """What the last request that was chosen or taken took without priority."""
        return self._state.item(kernels.BEYOND)

    def is_first(self, tenant: int) -> bool:
        """Whether a request of the tenant would go with priority."""
        row = self._table[self._check(tenant)]
        return bool(row[kernels.DISPATCHED] + row[kernels.OWED] < row[kernels.PRIORITY])

    def read_dispatched(self, tenant: int) -> int:
        """One tenant's, as a plain number. Like the next two, for those who ask with every request."""
        return self._table.item(tenant, kernels.DISPATCHED)

    def read_allowance(self, tenant: int) -> int:
        return self._table.item(tenant, kernels.ALLOWANCE)

    def read_pace(self, tenant: int) -> int:
        return self._table.item(tenant, kernels.PACE)

    @property
    def pending(self) -> Whole:
        """Requests that wait, by tenant. Like the next four a read-only view of this moment:
        it follows later choices, but not the growth of the scheduler."""
        return self._column(kernels.WAITING)

    @property
    def dispatched(self) -> Whole:
        """Tokens charged since the period's start, with priority and without."""
        return self._column(kernels.DISPATCHED)

    @property
    def allowance(self) -> Whole:
        return self._column(kernels.ALLOWANCE)

    @property
    def priority(self) -> Whole:
        return self._column(kernels.PRIORITY)

    @property
    def pace(self) -> Whole:
        """Tokens a period, 0 for as fast as it likes."""
        return self._column(kernels.PACE)

    @property
    def priority_left(self) -> Whole:
        """Priority tokens not yet spent, nor owed, by tenant."""
        left: Whole = np.maximum(self.priority - self.dispatched - self._column(kernels.OWED), 0)
        return left

    @property
    def visits(self) -> int:
        """How many rows of tenants all calls together have worked on: the cost of choosing."""
        return int(self._state[kernels.VISITS])

    def _moment(self, now: int | None) -> int:
        if now is None:
            if self._paced:
                raise UsageError("a paced scheduler must be told the time")
            return 0
        return now

    def _see(self, now: int | None) -> None:
        self._state[kernels.NOW] = max(int(self._state[kernels.NOW]), self._moment(now))

    def _column(self, field: int) -> Whole:
        column: Whole = self._table[: self._count, field]
        column.flags.writeable = False
        return column

    def _prepare_rows(self, start: int, end: int | None = None) -> None:
        self._table[start:end, kernels.COST] = 1
        self._table[start:end, kernels.RING] = kernels.NOBODY
        self._table[start:end, kernels.CEILING] = kernels.UNBOUNDED

    def _check(self, tenant: int) -> int:
        if not 0 <= tenant < self._count:
            raise UsageError(f"no tenant {tenant}: there are {self._count}; add() makes one more")
        return tenant


def compile_kernels() -> None:
    """Compile (or load from the cache) what a scheduler calls, before the first request waits
    for it: seconds the first time on a machine, a fraction of one later."""
    scheduler = Scheduler([1], period_ns=kernels.SLOTS)
    scheduler.grant(0, 3, 1, 1, 0)
    one = np.zeros(1, dtype=np.int64)
    scheduler.grant_many(one, one + 3, one, one + 1, 0)
    scheduler.arrive(0, 2, 0)
    scheduler.withdraw(0)
    scheduler.price(0, 1)
    scheduler.choose(0)
    scheduler.choose_many(1, 0)
    scheduler.take(0, 1, 0)
    scheduler.give_back(0, 1, 0)
    scheduler.find_release()
    scheduler.find_due(0)
    scheduler.count_ready(0, 0)
    scheduler.cap(0, 1)
    scheduler.cap_many([1])


def _check_cost(cost: int) -> None:
    if not 1 <= cost <= COST_MAX:
        raise UsageError(f"a request costs {cost} tokens: pass 1 to {COST_MAX}, or split it")


def _check_weight(weight: int) -> int:
    if not isinstance(weight, (int, np.integer)) or not 1 <= weight <= WEIGHT_MAX:
        raise UsageError(f"weight is {weight!r}: pass a whole number from 1 to {WEIGHT_MAX}")
    return int(weight)
