"""The compiled choice of the token scheduler, for the live server and for simulations alike.

A scheduler is three arrays of whole numbers:

- `table`, one row a tenant (FIELDS columns, side by side so that a choice touches two or three
  cache lines);
- `heads`, the first tenant of each ring, or NOBODY. Ring FIRST holds tenants that wait and have
  priority tokens, ring REST those that wait under their allowance, ring SHORT those whom only their
  ceiling keeps from going; the further rings are the slots of a timing wheel (it turns round and
  round) where paced tenants stay until they may go on;
- `state`, a handful of numbers of the scheduler as a whole.

**Whose turn it is.** Beside each of the rings FIRST and REST stands a heap, and both are one queue
in the order of tags (self-clocked fair queueing): a tenant's tag is the queue's virtual time when its
front request came to the front, and what that request costs, divided by the tenant's weight; the
tenant of the lowest tag goes next, and its tag is the virtual time from then on. Requests that cost no
more than their tenant's weight, as most do, go in turns of `weight` tokens (deficit round robin): a turn
takes the same virtual time for everybody, so tags come up in the order in which tenants join the queue.
Those tenants are in the ring, where joining and going takes a few steps however many there are; all
others are in the heap.

A tenant is in at most one ring or heap. Whatever changes a tenant (an arrival, a grant, a dispatch)
ends in `_settle`, which moves it to where it now belongs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]

WAITING, COST, DISPATCHED, ALLOWANCE, PRIORITY, WEIGHT, OWED, CEILING = range(8)
RING, NEXT, PREVIOUS, PACE, TAG, ORDER, START, START_REST = range(8, 16)
CREDIT, CLEAR, BURST, EXCESS, HEAP, HEAP_REST = range(16, 22)
FIELDS = 22
"""WAITING requests in the queue, the one at its front costs COST tokens; DISPATCHED tokens of
ALLOWANCE, the first PRIORITY of which go before others, less the OWED ones: those that requests with
priority took beyond it in earlier periods, as EXCESS counts them in this one; CEILING the most that
may be dispatched for now, whatever the ALLOWANCE. RING, NEXT, PREVIOUS the place (in a heap NEXT is
the position); TAG the place in turn, by ORDER of coming where tags are equal; START and START_REST the
virtual times from which the front request is counted, with and without priority; CREDIT tokens that are
left of the last turn. PACE tokens a period,
0 for any number; CLEAR the moment at which what was dispatched would have been dispatched at that pace;
BURST how far CLEAR may be ahead of now, both in nanoseconds. HEAP and HEAP_REST are no tenant's: row k
has the tenant at position k of the heap."""

VIRTUAL, VIRTUAL_REST, SIZE, SIZE_REST, NOW, PERIOD, SLOT, CURSOR, VISITS, HELD, ORDERS, BEYOND = range(12)
STATES = 12
"""VIRTUAL and VIRTUAL_REST the virtual times, SIZE and SIZE_REST of the heaps; NOW the last moment seen;
PERIOD its length in nanoseconds, 0 where nobody is paced; SLOT the next of the wheel to be released,
counted from the beginning of time; CURSOR the tenant after the one served last; VISITS how often a
tenant's row was worked on, ever; HELD how many tenants are in the wheel; ORDERS how many came to wait
their turn, ever; BEYOND what the last choice took without priority."""

FINE, BAD_TENANT, BAD_TOKENS = range(3)

UNBOUNDED = 2**62
"""The allowance of a tenant without a limit."""

NOBODY = -1
FIRST, REST, SHORT, FIRST_HEAP, REST_HEAP = range(5)
_WHEEL = 5
SLOTS = 1024
RINGS = _WHEEL + SLOTS

TURN = 2**20
"""The virtual time that a token takes at weight 1: large, because what a request costs is divided by
its tenant's weight."""

SMALL, SMALL_BITS = 4, 6
"""Of requests up to so many tokens, or up to 1 / 2**6 of a tenant's priority part, nobody counts what the
last one takes beyond it: a tenant that is owed nothing would miss its reservation by that much."""

FEW = 20
"""Tokens a period, at most, of whom used them all at once and waits: then the next ones come one by one. More
are so close together that the last of them might come too late for the period."""

_SLOT_MAX_NS = 2**20
_SPAN_MAX = 2.0**60
_RELEASES_MAX = 8
_EXACT = 1e-6
"""Of a token: what the division of a whole number of them may lose."""


@njit(cache=True, nogil=True, inline="always")
def _slot_ns(state: Whole) -> Any:
    """A thousandth of a period, or of a second: who waits for longer than a turn of the wheel is
    looked at once in every turn."""
    return max(1, min(state[PERIOD] // SLOTS, _SLOT_MAX_NS))


@njit(cache=True, nogil=True, inline="always")
def _span(table: Whole, state: Whole, tenant: int, tokens: int) -> int:
    """How long so many tokens take at the tenant's pace."""
    return int(min(tokens * (state[PERIOD] / table[tenant, PACE]) + 0.5, _SPAN_MAX))


@njit(cache=True, nogil=True, inline="always")
def _is_paced(table: Whole, state: Whole, tenant: int) -> Any:
    return state[PERIOD] > 0 and table[tenant, PACE] > 0


@njit(cache=True, nogil=True, inline="always")
def _due(table: Whole, state: Whole, tenant: int, cost: int) -> Any:
    """When pacing lets a request of that cost go. One that is larger than the burst goes when
    nothing of the burst is used, and those after it wait the longer."""
    burst = table[tenant, BURST]
    return table[tenant, CLEAR] + min(_span(table, state, tenant, cost), burst) - burst


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


@njit(cache=True, nogil=True, inline="always")
def _goes_before(table: Whole, tenant: int, other: int) -> Any:
    tag, later = table[tenant, TAG], table[other, TAG]
    return tag < later or (tag == later and table[tenant, ORDER] < table[other, ORDER])


@njit(cache=True, nogil=True, inline="always")
def _put(table: Whole, rest: int, position: int, tenant: int) -> None:
    table[position, HEAP + rest] = tenant
    table[tenant, NEXT] = position


@njit(cache=True, nogil=True)
def _sift(table: Whole, state: Whole, rest: int, position: int) -> None:
    """Move the tenant at that position of a heap up or down to where it belongs."""
    tenant = table[position, HEAP + rest]
    while position > 0 and _goes_before(table, tenant, table[(position - 1) >> 1, HEAP + rest]):
        _put(table, rest, position, table[(position - 1) >> 1, HEAP + rest])
        position = (position - 1) >> 1
    size = state[SIZE + rest]
    below = 2 * position + 1
    while below < size:
        other = below + 1
        if other < size and _goes_before(table, table[other, HEAP + rest], table[below, HEAP + rest]):
            below = other
        if not _goes_before(table, table[below, HEAP + rest], tenant):
            break
        _put(table, rest, position, table[below, HEAP + rest])
        position = below
        below = 2 * position + 1
    _put(table, rest, position, tenant)


@njit(cache=True, nogil=True)
def _push(table: Whole, state: Whole, tenant: int, rest: int) -> None:
    table[tenant, RING] = FIRST_HEAP + rest
    position = state[SIZE + rest]
    state[SIZE + rest] += 1
    table[position, HEAP + rest] = tenant
    _sift(table, state, rest, position)


@njit(cache=True, nogil=True)
def _pull(table: Whole, state: Whole, tenant: int) -> None:
    rest = table[tenant, RING] - FIRST_HEAP
    state[SIZE + rest] -= 1
    last = table[state[SIZE + rest], HEAP + rest]
    position = table[tenant, NEXT]
    table[tenant, RING] = NOBODY
    if last != tenant:
        table[position, HEAP + rest] = last
        _sift(table, state, rest, position)


@njit(cache=True, nogil=True, inline="always")
def _leave(table: Whole, heads: Whole, state: Whole, tenant: int) -> None:
    ring = table[tenant, RING]
    if FIRST_HEAP <= ring <= REST_HEAP:
        _pull(table, state, tenant)
    else:
        state[HELD] -= ring >= _WHEEL
        _unlink(table, heads, tenant)


@njit(cache=True, nogil=True)
def _push_tagged(table: Whole, state: Whole, tenant: int, ring: int) -> None:
    """A request that costs more than a turn is worth, or less than what is left of one. Whoever was in
    the queue before and waited ever since, without tokens of its own, comes with what it is behind, but
    for no more than the request at its front: so a large one gets its turn, though periods end before it
    is reached, and nobody else waits for longer than that."""
    rest = ring - FIRST
    needed = max(0, table[tenant, COST] - table[tenant, CREDIT])
    span = needed * TURN // table[tenant, WEIGHT]
    start = max(table[tenant, START + rest], state[VIRTUAL + rest] - span)
    table[tenant, START + rest] = start
    table[tenant, TAG] = start + span
    _push(table, state, tenant, rest)


@njit(cache=True, nogil=True, inline="always")
def _wait_turn(table: Whole, heads: Whole, state: Whole, tenant: int, ring: int) -> None:
    """Join the queue."""
    state[ORDERS] += 1
    table[tenant, ORDER] = state[ORDERS]
    cost = table[tenant, COST]
    if table[tenant, CREDIT] < cost <= table[tenant, WEIGHT]:
        table[tenant, TAG] = state[VIRTUAL + ring - FIRST] + TURN
        _link(table, heads, tenant, ring)
    else:
        _push_tagged(table, state, tenant, ring)


@njit(cache=True, nogil=True, inline="always")
def _ring_of(table: Whole, state: Whole, tenant: int) -> Any:
    """Where the tenant belongs now; NOBODY for no ring."""
    dispatched = table[tenant, DISPATCHED]
    needed = dispatched + table[tenant, COST]
    if table[tenant, WAITING] == 0 or needed > table[tenant, ALLOWANCE]:
        return NOBODY
    if needed > table[tenant, CEILING]:
        return SHORT
    if _is_paced(table, state, tenant):
        due = _due(table, state, tenant, table[tenant, COST])
        if due > state[NOW]:
            slot = (due - 1) // _slot_ns(state) + 1
            return _WHEEL + min(slot, state[SLOT] + SLOTS - 1) % SLOTS
    return FIRST if dispatched + table[tenant, OWED] < table[tenant, PRIORITY] else REST


@njit(cache=True, nogil=True, inline="always")
def _join(table: Whole, heads: Whole, state: Whole, tenant: int, ring: int) -> None:
    if FIRST <= ring <= REST:
        _wait_turn(table, heads, state, tenant, ring)
    elif ring != NOBODY:
        state[HELD] += ring >= _WHEEL
        _link(table, heads, tenant, ring)


@njit(cache=True, nogil=True, inline="always")
def _settle(table: Whole, heads: Whole, state: Whole, tenant: int) -> None:
    state[VISITS] += 1
    ring, before = _ring_of(table, state, tenant), table[tenant, RING]
    if ring == before or (before == FIRST_HEAP + ring and FIRST <= ring <= REST):
        return
    if before != NOBODY:
        _leave(table, heads, state, tenant)
    _join(table, heads, state, tenant, ring)


@njit(cache=True, nogil=True)
def arrive(table: Whole, heads: Whole, state: Whole, tenant: int, count: int) -> None:
    """`count` requests join the tenant's queue (leave it, where negative). Whoever had none in it
    saved nothing up meanwhile, neither time nor turns: only waiting does."""
    if table[tenant, WAITING] == 0:
        table[tenant, CLEAR] = max(table[tenant, CLEAR], state[NOW])
        table[tenant, CREDIT] = 0
        table[tenant, START] = state[VIRTUAL]
        table[tenant, START_REST] = state[VIRTUAL_REST]
    table[tenant, WAITING] += count
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def price(table: Whole, heads: Whole, state: Whole, tenant: int, cost: int) -> None:
    """The request at the front of the tenant's queue costs this many tokens."""
    if cost != table[tenant, COST]:
        ring = table[tenant, RING]
        if FIRST <= ring <= REST or FIRST_HEAP <= ring <= REST_HEAP:
            _leave(table, heads, state, tenant)
        table[tenant, COST] = cost
        _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def grant(
    table: Whole, heads: Whole, state: Whole, tenant: int, allowance: int, priority: int, pace: int
) -> None:
    """Replace what the tenant may have dispatched by the end of the period. Where it is ahead of its
    pace, it stays as many tokens ahead of the new one."""
    table[tenant, ALLOWANCE] = allowance
    table[tenant, PRIORITY] = priority
    before = table[tenant, PACE]
    ahead = table[tenant, CLEAR] - state[NOW]
    if ahead > 0 and before > 0 and pace > 0 and pace != before:
        ahead = int(min(ahead * (before / pace), _SPAN_MAX))
        if pace <= FEW and table[tenant, DISPATCHED] == 0:
            ahead = min(ahead, table[tenant, BURST])
        table[tenant, CLEAR] = state[NOW] + ahead
    table[tenant, PACE] = pace
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def cap(table: Whole, heads: Whole, state: Whole, tenant: int, ceiling: int) -> None:
    """Replace the most that the tenant may have dispatched for now."""
    table[tenant, CEILING] = ceiling
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def cap_many(table: Whole, heads: Whole, state: Whole, ceilings: Whole) -> None:
    """`cap` for everybody."""
    for tenant in range(ceilings.size):
        cap(table, heads, state, tenant, ceilings[tenant])


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


@njit(cache=True, nogil=True, inline="always")
def _has_few(table: Whole, state: Whole, tenant: int) -> Any:
    """Whether a paced tenant waits that has used up a small limit."""
    few = _is_paced(table, state, tenant) and table[tenant, PACE] <= FEW
    used_up = table[tenant, DISPATCHED] + table[tenant, COST] > table[tenant, ALLOWANCE]
    return few and used_up and table[tenant, DISPATCHED] > 0 and table[tenant, WAITING] > 0


@njit(cache=True, nogil=True)
def open_period(table: Whole, heads: Whole, state: Whole) -> None:
    """Forget every grant and what was dispatched; what waits goes on waiting. A tenant that is
    ahead of its pace stays ahead of it, and one that is behind is not: the pace begins now. What is
    owed is paid with the priority tokens that were not used. Who has few tokens, and waited because they
    were used up, has them evenly from here on: they were used at once in the period before, and again at
    once in this one would be twice as many within a moment."""
    heads[:] = NOBODY
    state[HELD] = state[SIZE] = state[SIZE_REST] = 0
    for tenant in range(table.shape[0]):
        table[tenant, CLEAR] = max(table[tenant, CLEAR], state[NOW])
        if _has_few(table, state, tenant):
            spent = state[NOW] + table[tenant, BURST] - _span(table, state, tenant, table[tenant, COST])
            table[tenant, CLEAR] = max(table[tenant, CLEAR], spent)
        unused = max(0, table[tenant, PRIORITY] - table[tenant, DISPATCHED])
        table[tenant, OWED] = max(0, table[tenant, OWED] - unused) + table[tenant, EXCESS]
        for field in (DISPATCHED, ALLOWANCE, PRIORITY, EXCESS):
            table[tenant, field] = 0
        table[tenant, START] -= state[VIRTUAL]
        table[tenant, START_REST] -= state[VIRTUAL_REST]
        table[tenant, RING] = NOBODY
        table[tenant, CEILING] = UNBOUNDED
    state[VIRTUAL] = state[VIRTUAL_REST] = 0


@njit(cache=True, nogil=True)
def set_period(table: Whole, heads: Whole, state: Whole, period_ns: int) -> None:
    """Another length of the period, or (0) nobody is paced. Who waits in the wheel, whose slots are
    another length now, is looked at again."""
    for tenant in range(table.shape[0]):
        if table[tenant, RING] != NOBODY:
            _leave(table, heads, state, tenant)
    state[PERIOD] = period_ns
    state[SLOT] = state[NOW] // _slot_ns(state)
    for tenant in range(table.shape[0]):
        _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def _release(table: Whole, heads: Whole, state: Whole) -> None:
    """Let paced tenants whose time has come join the rest, a few at a time, so that no choice
    takes long because many became due together."""
    left = _RELEASES_MAX
    slot_ns = _slot_ns(state)
    while state[SLOT] * slot_ns <= state[NOW]:
        if state[HELD] == 0:
            state[SLOT] = state[NOW] // slot_ns + 1
            return
        tenant = heads[_WHEEL + state[SLOT] % SLOTS]
        if tenant == NOBODY:
            state[SLOT] += 1
        elif left == 0:
            return
        else:
            left -= 1
            _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True, inline="always")
def _find_next(table: Whole, heads: Whole, state: Whole, ring: int) -> Any:
    """Whose turn it is in that queue; NOBODY if it is empty."""
    tenant = heads[ring]
    if state[SIZE + ring - FIRST] == 0:
        return tenant
    other = table[0, HEAP + ring - FIRST]
    return tenant if tenant != NOBODY and _goes_before(table, tenant, other) else other


@njit(cache=True, nogil=True, inline="always")
def _dispatch(table: Whole, heads: Whole, state: Whole, tenant: int, ring: int) -> None:
    """Charge the tenant whose turn it is with its front request."""
    cost, in_ring = table[tenant, COST], table[tenant, RING] == ring
    if table[tenant, CREDIT] < cost:
        table[tenant, CREDIT] = table[tenant, CREDIT] + table[tenant, WEIGHT] if in_ring else cost
    table[tenant, CREDIT] -= cost
    state[VIRTUAL + ring - FIRST] = max(state[VIRTUAL + ring - FIRST], table[tenant, TAG])
    table[tenant, START + ring - FIRST] = table[tenant, TAG]
    beyond = cost
    if ring == FIRST:
        beyond = 0
        if cost > SMALL and cost > table[tenant, PRIORITY] >> SMALL_BITS:
            priority = table[tenant, PRIORITY] - table[tenant, OWED]
            beyond = max(0, cost + table[tenant, DISPATCHED] - priority)
            table[tenant, EXCESS] += beyond
    state[BEYOND] = beyond
    table[tenant, WAITING] -= 1
    table[tenant, DISPATCHED] += cost
    if _is_paced(table, state, tenant):
        table[tenant, CLEAR] += _span(table, state, tenant, cost)
    state[CURSOR] = tenant + 1
    state[VISITS] += 1
    after = _ring_of(table, state, tenant)
    if not in_ring or after != ring:
        _leave(table, heads, state, tenant)
        _join(table, heads, state, tenant, after)
    elif table[tenant, CREDIT] < cost:  # the turn passes on: from the front of the ring to its end
        state[ORDERS] += 1
        table[tenant, ORDER] = state[ORDERS]
        table[tenant, TAG] = state[VIRTUAL + ring - FIRST] + TURN
        heads[ring] = table[tenant, NEXT]


@njit(cache=True, nogil=True)
def choose(table: Whole, heads: Whole, state: Whole, now: int, first_only: bool) -> Any:
    """Algorithm 1 once: the tenant that was charged with a request, or NOBODY."""
    if state[PERIOD] > 0:
        state[NOW] = max(state[NOW], now)
        _release(table, heads, state)
    for ring in (FIRST, REST):
        tenant = _find_next(table, heads, state, ring)
        if tenant != NOBODY:
            _dispatch(table, heads, state, tenant, ring)
            return tenant
        if first_only:
            break
    return NOBODY


@njit(cache=True, nogil=True)
def join(table: Whole, heads: Whole, state: Whole, tenant: int, count: int, now: int) -> None:
    """`arrive`, at that moment."""
    state[NOW] = max(state[NOW], now)
    arrive(table, heads, state, tenant, count)


@njit(cache=True, nogil=True)
def take(
    table: Whole, heads: Whole, state: Whole, tenant: int, cost: int, more: int, now: int, first_only: bool
) -> Any:
    """Arrive and be chosen in one, where nobody waits who could go: NOBODY if the request was not
    charged, and then it does not wait either; else how many of `more` tokens were charged with it,
    for later ones."""
    state[NOW] = max(state[NOW], now)
    if table[tenant, WAITING] > 0 or not _is_idle(table, heads, state):
        return NOBODY
    price(table, heads, state, tenant, cost)
    arrive(table, heads, state, tenant, 1)
    if choose(table, heads, state, now, first_only) == tenant:
        return _take_more(table, state, tenant, more)
    arrive(table, heads, state, tenant, -1)
    return NOBODY


@njit(cache=True, nogil=True)
def _is_idle(table: Whole, heads: Whole, state: Whole) -> Any:
    """Whether all who wait, if anybody does, wait for tokens of their own."""
    if state[HELD] > 0:
        _release(table, heads, state)
        if state[HELD] > 0 and state[SLOT] * _slot_ns(state) <= state[NOW]:
            return False
    rings = heads[FIRST] == NOBODY and heads[REST] == NOBODY
    return rings and state[SIZE] == 0 and state[SIZE_REST] == 0


@njit(cache=True, nogil=True)
def _take_more(table: Whole, state: Whole, tenant: int, more: int) -> Any:
    """Charge up to `more` tokens: as many as allowance, ceiling and pace have at this moment."""
    under = table[tenant, CEILING] - table[tenant, DISPATCHED]
    tokens = min(more, under, count_ready(table, state, tenant))
    if tokens <= 0:
        return 0
    table[tenant, DISPATCHED] += tokens
    if _is_paced(table, state, tenant):
        table[tenant, CLEAR] += _span(table, state, tenant, tokens)
    return tokens


@njit(cache=True, nogil=True)
def count_ready(table: Whole, state: Whole, tenant: int) -> Any:
    """Tokens that allowance and pace have for the tenant at this moment."""
    tokens = table[tenant, ALLOWANCE] - table[tenant, DISPATCHED]
    if _is_paced(table, state, tenant):
        room_ns = state[NOW] + table[tenant, BURST] - max(table[tenant, CLEAR], state[NOW])
        tokens = min(tokens, int(room_ns * (table[tenant, PACE] / state[PERIOD]) + _EXACT))
    return max(0, tokens)


@njit(cache=True, nogil=True)
def give_back(table: Whole, heads: Whole, state: Whole, tenant: int, tokens: int, now: int) -> None:
    """So many tokens that were charged in this period were not used: as if they never had been. Time
    that has passed since then is not given back with them: nobody is further behind its pace."""
    state[NOW] = max(state[NOW], now)
    table[tenant, DISPATCHED] = max(0, table[tenant, DISPATCHED] - tokens)
    table[tenant, EXCESS] = max(0, table[tenant, EXCESS] - tokens)
    clear = table[tenant, CLEAR]
    if _is_paced(table, state, tenant):
        undone = clear - _span(table, state, tenant, tokens)
        table[tenant, CLEAR] = max(undone, min(clear, state[NOW]))
    _settle(table, heads, state, tenant)


@njit(cache=True, nogil=True)
def choose_many(table: Whole, heads: Whole, state: Whole, now: int, chosen: Whole) -> Any:
    """Fill `chosen` as far as there is something to choose; how far."""
    for k in range(chosen.size):
        tenant = choose(table, heads, state, now, False)
        if tenant == NOBODY:
            return k
        chosen[k] = tenant
    return chosen.size


@njit(cache=True, nogil=True)
def find_release(heads: Whole, state: Whole) -> Any:
    """The moment at which the next paced tenant is looked at, or NOBODY. At most SLOTS looks."""
    if state[HELD] == 0:
        return NOBODY
    slot = state[SLOT]
    while heads[_WHEEL + slot % SLOTS] == NOBODY:
        slot += 1
    return slot * _slot_ns(state)


@njit(cache=True, nogil=True)
def find_due(table: Whole, state: Whole, tenant: int, cost: int) -> Any:
    """The moment from which pacing does not hold such a request back."""
    return _due(table, state, tenant, cost) if _is_paced(table, state, tenant) else 0
