"""The compiled choice of the token scheduler, for the live server and for simulations alike.

A scheduler is three arrays of whole numbers:

- `table`, one row a tenant (FIELDS columns, side by side so that a choice touches one or two
  cache lines);
- `heads`, the first tenant of each ring, or NOBODY. Ring FIRST holds the tenants that wait and
  have priority tokens, ring REST those that wait under their allowance, the further rings are
  the slots of a timing wheel where paced tenants stay until they may go on;
- `state`, a handful of numbers of the scheduler as a whole.

A tenant is in at most one ring. Whatever changes a tenant (an arrival, a grant, a dispatch) ends
in `_settle`, which moves it to the ring where it now belongs, at the end. So the head of a ring
is always a right choice, and nothing is ever searched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]

WAITING, COST, DISPATCHED, ALLOWANCE, PRIORITY, WEIGHT = range(6)
CREDIT, RING, NEXT, PREVIOUS, PACE, CLEAR = range(6, 12)
FIELDS = 12
"""WAITING requests in the queue, the one at its front costs COST tokens; DISPATCHED tokens of
ALLOWANCE, the first PRIORITY of which go before others; CREDIT what is left of the turn; RING,
NEXT, PREVIOUS the place; PACE tokens a period, CLEAR the tick at which what was dispatched would
have been dispatched at that pace."""

QUANTUM, NOW, BURST, SLOT, CURSOR, VISITS = range(6)
STATES = 6
"""QUANTUM the tokens of a turn of weight 1; NOW the last tick seen; BURST how many ticks a tenant
may be ahead of its pace, UNPACED for any; SLOT the next of the wheel to be released; CURSOR the
tenant after the one served last; VISITS how often a tenant's row was worked on, ever."""

FINE, BAD_TENANT, BAD_TOKENS = range(3)

UNBOUNDED = 2**62
"""The allowance of a tenant without a limit."""

NOBODY = -1
UNPACED = -1
FIRST, REST = 0, 1
_WHEEL = 2
SLOTS = 1024
RINGS = _WHEEL + SLOTS

PERIOD_TICKS = 2**32
_SLOT_TICKS = PERIOD_TICKS // SLOTS
_RELEASES_MAX = 8


@njit(cache=True, nogil=True, inline="always")
def _link(table: Whole, heads: Whole, tenant: int, ring: int) -> None:
    head = heads[ring]
    table[tenant, RING] = ring
    if head == NOBODY:
        heads[ring] = tenant
        table[tenant, NEXT] = tenant
        table[tenant, PREVIOUS] = tenant
        return
    last = table[head, PREVIOUS]
    table[tenant, NEXT] = head
    table[tenant, PREVIOUS] = last
    table[last, NEXT] = tenant
    table[head, PREVIOUS] = tenant


@njit(cache=True, nogil=True, inline="always")
def _unlink(table: Whole, heads: Whole, tenant: int) -> None:
    ring = table[tenant, RING]
    following = table[tenant, NEXT]
    if following == tenant:
        heads[ring] = NOBODY
    else:
        before = table[tenant, PREVIOUS]
        table[before, NEXT] = following
        table[following, PREVIOUS] = before
        if heads[ring] == tenant:
            heads[ring] = following
    table[tenant, RING] = NOBODY
    table[tenant, CREDIT] = 0


@njit(cache=True, nogil=True, inline="always")
def _ring_of(table: Whole, state: Whole, tenant: int) -> int:
    """Where the tenant belongs now; NOBODY for no ring."""
    dispatched = table[tenant, DISPATCHED]
    if table[tenant, WAITING] == 0 or dispatched + table[tenant, COST] > table[tenant, ALLOWANCE]:
        return NOBODY
    if dispatched < table[tenant, PRIORITY]:
        return FIRST
    if state[BURST] == UNPACED:
        return REST
    due = table[tenant, CLEAR] - state[BURST]
    if due <= state[NOW]:
        return REST
    slot = (due + _SLOT_TICKS - 1) // _SLOT_TICKS
    return _WHEEL + slot if slot < SLOTS else NOBODY


@njit(cache=True, nogil=True, inline="always")
def _settle(table: Whole, heads: Whole, state: Whole, tenant: int) -> None:
    state[VISITS] += 1
    ring = _ring_of(table, state, tenant)
    if ring == table[tenant, RING]:
        return
    if table[tenant, RING] != NOBODY:
        _unlink(table, heads, tenant)
    if ring != NOBODY:
        _link(table, heads, tenant, ring)


@njit(cache=True, nogil=True)
def arrive(table: Whole, heads: Whole, state: Whole, tenant: int, count: int) -> None:
    """`count` requests join the tenant's queue (leave it, where negative)."""
    table[tenant, WAITING] += count
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def price(table: Whole, heads: Whole, state: Whole, tenant: int, cost: int) -> None:
    """The request at the front of the tenant's queue costs this many tokens."""
    table[tenant, COST] = cost
    if cost > state[QUANTUM]:
        state[QUANTUM] = cost
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def grant(
    table: Whole, heads: Whole, state: Whole, tenant: int, allowance: int, priority: int, pace: int
) -> None:
    """Replace what the tenant may have dispatched by the end of the period."""
    table[tenant, ALLOWANCE] = allowance
    table[tenant, PRIORITY] = priority
    table[tenant, PACE] = pace
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def grant_many(
    table: Whole, heads: Whole, state: Whole, tenants: Whole, allowance: Whole, priority: Whole, pace: Whole
) -> None:
    """`grant` for many, going on where the last period's turns ended: begun at the first tenant
    each time, the first ones would get a turn more in every period."""
    count = tenants.size
    start = state[CURSOR] % max(count, 1)
    for k in range(count):
        i = start + k if start + k < count else start + k - count
        grant(table, heads, state, tenants[i], allowance[i], priority[i], pace[i])


@njit(cache=True, nogil=True)
def find_fault(count: int, tenants: Whole, allowance: Whole, priority: Whole, pace: Whole) -> int:
    """What is wrong with a grant for many. Compiled: for ten tenants NumPy takes as long as all the
    rest of a grant."""
    for k in range(tenants.size):
        if not 0 <= tenants[k] < count:
            return BAD_TENANT
        if not 0 <= priority[k] <= allowance[k] <= UNBOUNDED or pace[k] < 0:
            return BAD_TOKENS
    return FINE


@njit(cache=True, nogil=True)
def open_period(table: Whole, heads: Whole, state: Whole) -> None:
    """Forget every grant and what was dispatched; what waits goes on waiting. A tenant that is
    ahead of its pace stays ahead of it: that is what makes two periods behave like one."""
    heads[:] = NOBODY
    quantum = 1
    for tenant in range(table.shape[0]):
        for field in (DISPATCHED, ALLOWANCE, PRIORITY, CREDIT, PACE):
            table[tenant, field] = 0
        table[tenant, RING] = NOBODY
        table[tenant, CLEAR] = max(0, table[tenant, CLEAR] - PERIOD_TICKS)
        quantum = max(quantum, table[tenant, COST])
    state[QUANTUM] = quantum
    state[NOW] = 0
    state[SLOT] = 0


@njit(cache=True, nogil=True)
def _release(table: Whole, heads: Whole, state: Whole) -> None:
    """Let paced tenants whose time has come join the rest, a few at a time, so that no choice
    takes long because many became due together."""
    left = _RELEASES_MAX
    while state[SLOT] < SLOTS and state[SLOT] * _SLOT_TICKS <= state[NOW]:
        tenant = heads[_WHEEL + state[SLOT]]
        if tenant == NOBODY:
            state[SLOT] += 1
        elif left == 0:
            return
        else:
            left -= 1
            _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True, inline="always")
def _dispatch(table: Whole, heads: Whole, state: Whole, tenant: int, ring: int) -> None:
    """Charge the tenant at the head of the ring with its front request; the turn passes on when
    its credit does not carry another one."""
    cost = table[tenant, COST]
    if table[tenant, CREDIT] < cost:
        table[tenant, CREDIT] += table[tenant, WEIGHT] * state[QUANTUM]
    table[tenant, CREDIT] -= cost
    table[tenant, WAITING] -= 1
    table[tenant, DISPATCHED] += cost
    if state[BURST] != UNPACED and table[tenant, PACE] > 0:
        pace = table[tenant, PACE]
        begun = max(table[tenant, CLEAR], state[NOW])
        table[tenant, CLEAR] = begun + (cost * PERIOD_TICKS + pace - 1) // pace
    state[CURSOR] = tenant + 1
    _settle(table, heads, state, tenant)
    if heads[ring] == tenant and table[tenant, CREDIT] < table[tenant, COST]:
        heads[ring] = table[tenant, NEXT]


@njit(cache=True, nogil=True)
def choose(table: Whole, heads: Whole, state: Whole, now: int) -> Any:
    """Algorithm 1 once: the tenant that was charged with a request, or NOBODY."""
    if state[BURST] != UNPACED:
        state[NOW] = max(state[NOW], now)
        _release(table, heads, state)
    for ring in (FIRST, REST):
        tenant = heads[ring]
        if tenant != NOBODY:
            _dispatch(table, heads, state, tenant, ring)
            return tenant
    return NOBODY


@njit(cache=True, nogil=True)
def take(table: Whole, heads: Whole, state: Whole, tenant: int, cost: int, now: int) -> Any:
    """Arrive and be chosen in one, where nobody waits: whether the request was charged. If it was
    not, it does not wait either."""
    price(table, heads, state, tenant, cost)
    arrive(table, heads, state, tenant, 1)
    if choose(table, heads, state, now) == tenant:
        return True
    arrive(table, heads, state, tenant, -1)
    return False


@njit(cache=True, nogil=True)
def choose_many(table: Whole, heads: Whole, state: Whole, now: int, chosen: Whole) -> Any:
    """Fill `chosen` as far as there is something to choose; how far."""
    for k in range(chosen.size):
        tenant = choose(table, heads, state, now)
        if tenant == NOBODY:
            return k
        chosen[k] = tenant
    return chosen.size


@njit(cache=True, nogil=True)
def find_release(heads: Whole, state: Whole) -> Any:
    """The tick at which the next paced tenant may go on, or NOBODY. At most SLOTS looks."""
    for slot in range(state[SLOT], SLOTS):
        if heads[_WHEEL + slot] != NOBODY:
            return slot * _SLOT_TICKS
    return NOBODY
