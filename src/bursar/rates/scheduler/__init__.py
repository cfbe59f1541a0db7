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

**Turns.** A turn is worth `weight` requests (section V, local priorities); where requests cost
several tokens it is worth `weight` times the largest cost about, so every turn serves at least
one request and tenants are even in tokens (deficit round robin). The paper walks the queues by
number; here a tenant that becomes eligible goes to the end, which takes the same few steps for
100,000 tenants as for ten, and gives the same order while all of them wait.

**Costs.** The caller keeps the queues. Where requests cost other than one token, it says with
`price` what the one at the front costs, whenever that changes. A request goes only if the
allowance covers it whole; with any priority token left it goes first.

**Pacing.** With `burst`, requests beyond the priority part are spread over the period: a tenant
is never further ahead of its pace (`pace` tokens a period, its allowance if not given) than
`burst` of a period, and what it did not use does not pile up. Then any window as long as a
period sees at most pace * (1 + burst) tokens and one request more, where two unpaced periods
back to back could show twice the limit. The priority part is charged to the pace but never held
back: tokens that the controller moves here late in a period must all be spent in the time left,
and a reservation is a promise where the smoothness of a limit is a courtesy. So a tenant that
spends a reservation late in one period and early in the next shows that much more in the window
between.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bursar.errors import UsageError
from bursar.rates.scheduler import kernels

Whole = npt.NDArray[np.int64]

UNBOUNDED = kernels.UNBOUNDED
"""The allowance of a tenant without a limit."""

WEIGHT_MAX = 2**20
COST_MAX = 2**30
BURST_DEFAULT = 0.05
BURST_MIN = 0.01
"""Paced tenants are released at 1024 moments of a period; a burst that does not span several of
them would hold a tenant below its pace."""


class Scheduler:
    """Queues without their contents, and the choice among them. Tenants are indices from 0.

    Not for use by several threads at once. Every method takes time independent of the number
    of tenants, except `open_period`, `grant_many` and growing.
    """

    def __init__(self, weights: Iterable[int] = (), *, burst: float | None = None) -> None:
        """`burst` is how far ahead of its pace a tenant may be, as a part of the period; None
        leaves the allowance unpaced."""
        if burst is not None and not BURST_MIN <= burst <= 1.0:
            raise UsageError(f"burst is {burst!r}: pass a part of the period from {BURST_MIN} to 1, or None")
        checked = [_check_weight(weight) for weight in weights]
        self._count = len(checked)
        self._table = np.zeros((max(8, self._count), kernels.FIELDS), dtype=np.int64)
        self._heads = np.full(kernels.RINGS, kernels.NOBODY, dtype=np.int64)
        self._state = np.zeros(kernels.STATES, dtype=np.int64)
        self._paced = burst is not None
        self._state[kernels.BURST] = kernels.UNPACED if burst is None else _burst_ticks(burst)
        self._prepare_rows(0)
        self._table[: self._count, kernels.WEIGHT] = checked
        self.open_period()

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

    def set_weight(self, tenant: int, weight: int) -> None:
        """From the tenant's next turn on."""
        self._table[self._check(tenant), kernels.WEIGHT] = _check_weight(weight)

    def arrive(self, tenant: int, count: int = 1) -> None:
        """`count` requests joined the tenant's queue."""
        if count < 0:
            raise UsageError(f"count is {count}: pass how many requests arrived, or use withdraw")
        kernels.arrive(self._table, self._heads, self._state, self._check(tenant), count)

    def withdraw(self, tenant: int) -> None:
        """A waiting request of the tenant gave up. If it was the front one, `price` the next."""
        if self._table[self._check(tenant), kernels.WAITING] == 0:
            raise UsageError(f"tenant {tenant} has no waiting request to withdraw")
        kernels.arrive(self._table, self._heads, self._state, tenant, -1)

    def take(self, tenant: int, cost: int, now_fraction: float | None = None) -> bool:
        """Charge a request of the tenant now or not at all. Only while no tenant waits."""
        _check_cost(cost)
        ticks = self._ticks(now_fraction)
        return bool(kernels.take(self._table, self._heads, self._state, self._check(tenant), cost, ticks))

    def price(self, tenant: int, cost: int) -> None:
        """The request at the front of the tenant's queue costs `cost` tokens. It holds until the
        next call: a caller whose requests differ calls this whenever the front changes."""
        _check_cost(cost)
        kernels.price(self._table, self._heads, self._state, self._check(tenant), cost)

    def grant(self, tenant: int, allowance: int, priority: int = 0, pace: int | None = None) -> None:
        """What the tenant may have dispatched by the end of the present period, in all and of
        that with priority, both counted from the period's start. An allowance below what was
        dispatched already stops the tenant and takes nothing back."""
        if not 0 <= priority <= allowance <= UNBOUNDED:
            raise UsageError(
                f"tenant {tenant} was granted {allowance} tokens, {priority} of them with priority: "
                f"pass 0 <= priority <= allowance <= {UNBOUNDED} (UNBOUNDED for no limit)"
            )
        pace = allowance if pace is None else pace
        if pace < 0:
            raise UsageError(f"pace is {pace}: pass tokens a period, or None for the allowance")
        kernels.grant(
            self._table, self._heads, self._state, self._check(tenant), allowance, priority, _pace(pace)
        )

    def grant_many(
        self, tenants: Whole, allowance: Whole, priority: Whole, pace: Whole | None = None
    ) -> None:
        """`grant` for each of `tenants`, in one compiled pass."""
        if pace is None:
            pace = allowance
        columns = [np.ascontiguousarray(a, dtype=np.int64) for a in (tenants, allowance, priority, pace)]
        tenants, allowance, priority, pace = columns
        if any(column.shape != (tenants.size,) for column in columns):
            raise UsageError("grant_many takes arrays of one length: tenants, allowance, priority, pace")
        fault = kernels.find_fault(self._count, tenants, allowance, priority, pace)
        if fault == kernels.BAD_TENANT:
            raise UsageError(f"tenants are indices from 0 to {self._count - 1}")
        if fault == kernels.BAD_TOKENS:
            raise UsageError("grant_many needs 0 <= priority <= allowance <= UNBOUNDED and pace >= 0")
        pace = np.where(pace >= UNBOUNDED, 0, pace)
        kernels.grant_many(self._table, self._heads, self._state, tenants, allowance, priority, pace)

    def open_period(self) -> None:
        """Begin a period: nothing dispatched, nothing allowed. What waits goes on waiting."""
        kernels.open_period(self._table, self._heads, self._state)

    def choose(self, now_fraction: float | None = None) -> int:
        """The tenant whose front request goes now, already charged for it; -1 if none may.
        `now_fraction` is how much of the period has passed; only pacing needs it."""
        return int(kernels.choose(self._table, self._heads, self._state, self._ticks(now_fraction)))

    def choose_many(self, count: int, now_fraction: float | None = None) -> Whole:
        """The next `count` choices, or as many as there are. Only where no front request has to
        be priced in between."""
        chosen = np.empty(count, dtype=np.int64)
        filled = kernels.choose_many(self._table, self._heads, self._state, self._ticks(now_fraction), chosen)
        return chosen[: int(filled)]

    def find_release(self) -> float | None:
        """How much of the period will have passed when the next paced tenant may go on. None if
        time alone changes nothing before the next period: then only an arrival or a grant does,
        so a caller that was told -1 need not ask again before."""
        if not self._paced:
            return None
        tick = int(kernels.find_release(self._heads, self._state))
        return None if tick == kernels.NOBODY else tick / kernels.PERIOD_TICKS

    def find_due(self, tenant: int) -> float | None:
        """How much of the period will have passed when pacing lets the tenant go on; None if it
        does not hold it back."""
        due = int(self._table[self._check(tenant), kernels.CLEAR] - self._state[kernels.BURST])
        held = self._paced and due > self._state[kernels.NOW]
        return due / kernels.PERIOD_TICKS if held else None

    @property
    def pending(self) -> Whole:
        """Requests that wait, by tenant. Like the next three a read-only view of this moment:
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
    def priority_left(self) -> Whole:
        """Priority tokens not yet spent, by tenant."""
        left: Whole = np.maximum(self.priority - self.dispatched, 0)
        return left

    @property
    def visits(self) -> int:
        """How many rows of tenants all calls together have worked on: the cost of choosing."""
        return int(self._state[kernels.VISITS])

    def _ticks(self, fraction: float | None) -> int:
        if not self._paced:
            return 0
        if fraction is None:
            raise UsageError("a paced scheduler must be told how much of the period has passed")
        return int(min(max(fraction, 0.0), 1.0) * kernels.PERIOD_TICKS)

    def _column(self, field: int) -> Whole:
        column: Whole = self._table[: self._count, field]
        column.flags.writeable = False
        return column

    def _prepare_rows(self, start: int) -> None:
        self._table[start:, kernels.COST] = 1
        self._table[start:, kernels.RING] = kernels.NOBODY

    def _check(self, tenant: int) -> int:
        if not 0 <= tenant < self._count:
            raise UsageError(f"no tenant {tenant}: there are {self._count}; add() makes one more")
        return tenant


def compile_kernels() -> None:
    """Compile (or load from the cache) what a scheduler calls, before the first request waits
    for it: seconds the first time on a machine, a fraction of one later."""
    scheduler = Scheduler([1], burst=BURST_DEFAULT)
    scheduler.grant(0, 3, 1)
    one = np.zeros(1, dtype=np.int64)
    scheduler.grant_many(one, one + 3, one)
    scheduler.arrive(0, 2)
    scheduler.withdraw(0)
    scheduler.price(0, 1)
    scheduler.choose(0.0)
    scheduler.choose_many(1, 0.0)
    scheduler.take(0, 1, 0.0)
    scheduler.find_release()


def _check_cost(cost: int) -> None:
    if not 1 <= cost <= COST_MAX:
        raise UsageError(f"a request costs {cost} tokens: pass 1 to {COST_MAX}, or split it")


def _check_weight(weight: int) -> int:
    if not isinstance(weight, (int, np.integer)) or not 1 <= weight <= WEIGHT_MAX:
        raise UsageError(f"weight is {weight!r}: pass a whole number from 1 to {WEIGHT_MAX}")
    return int(weight)


def _burst_ticks(burst: float) -> int:
    return round(burst * kernels.PERIOD_TICKS)


def _pace(pace: int) -> int:
    return 0 if pace >= UNBOUNDED else pace
