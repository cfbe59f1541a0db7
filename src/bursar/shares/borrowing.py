"""How one interval's tokens are divided: by weight, lent where unused, paid back where owed.

Pure: arrays in, arrays out, one row for each active tenant. Equation numbers are the paper's;
`bursar.shares` says what differs from it and why.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bursar.errors import UsageError

Tokens = npt.NDArray[np.int64]
Parts = npt.NDArray[np.float64]

NO_CAP = 2**60
"""Stands for "no cap" in a column of caps."""

TOKENS_MAX = 2**52
"""The most tokens of one interval: up to here a float counts every single one."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of lending.

    needed_first  tokens go first to tenants with demand for them, lent or paid back; False is
                  the paper's rule, by which some go to tenants that leave them unused
    borrow_cap    the most tokens a tenant may owe: one number, or one for each; None: no cap
    lend_cap      the most tokens a tenant may be owed, likewise
    """

    needed_first: bool = True
    borrow_cap: Tokens | int | None = None
    lend_cap: Tokens | int | None = None

    def __post_init__(self) -> None:
        for name in ("borrow_cap", "lend_cap"):
            cap = getattr(self, name)
            if cap is not None and (np.asarray(cap) < 0).any():
                raise UsageError(f"{name} is a number of tokens from 0 on, or None, not {cap!r}")


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Allocation:
    """One interval's tokens, step by step. Each of the three sums to the interval's tokens.

    initial        by weight alone
    redistributed  after what was not needed was lent
    final          after debts were called in
    record         what each has lent (positive) or borrowed (negative) in all; the sum of the
                   rows is what it was before
    remainder      fractions of a token still due, carried to the next interval
    """

    initial: Tokens
    redistributed: Tokens
    final: Tokens
    record: Tokens
    remainder: Parts


def allocate(
    tokens: int,
    weight: Parts,
    demand: Tokens,
    record: Tokens,
    previous: Tokens,
    remainder: Parts,
    terms: Terms = DEFAULT_TERMS,
) -> Allocation:
    """Divide `tokens` among the active tenants, those with a demand of at least 1.

    `previous` is each one's final allocation in the interval before, 0 where it had none; then
    its own initial share stands in (a newcomer is measured by what it is due)."""
    _check(tokens, weight, demand, record, previous, remainder)
    priority = weight / _sum(weight)  # eq. 1
    initial, remainder = make_whole(tokens * priority, remainder, tokens)  # eq. 2
    score = demand / np.maximum(1, np.where(previous > 0, previous, initial))  # eq. 3
    factor = np.where(score > 1, score + score * priority, score * priority)  # eq. 6
    redistributed, remainder = _redistribute(initial, demand, record, factor, remainder, terms)
    record_lent = record + initial - redistributed  # eq. 8
    coefficient = _reclaim_coefficient(priority, score, demand, redistributed, record, record_lent)
    reclaim = _reclaimable(initial, redistributed, record, record_lent, coefficient)
    final, remainder = _recompense(
        reclaim, demand, redistributed, record, record_lent, factor, remainder, terms
    )
    return Allocation(initial, redistributed, final, record_lent + redistributed - final, remainder)


def _check(tokens: int, *columns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> None:
    if not 0 <= tokens <= TOKENS_MAX:
        raise UsageError(f"an interval has 0 to 2^52 tokens, not {tokens!r}; count larger units")
    weight, demand = columns[0], columns[1]
    if len(weight) == 0 or any(len(column) != len(weight) for column in columns):
        raise UsageError("allocate takes one row for each active tenant, and at least one")
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        raise UsageError("every weight must be a finite number above 0")
    if (demand < 1).any() or (demand > TOKENS_MAX).any():
        raise UsageError("an active tenant has a demand of 1 to 2^52; leave out those without")


def _redistribute(
    initial: Tokens, demand: Tokens, record: Tokens, factor: Parts, remainder: Parts, terms: Terms
) -> tuple[Tokens, Parts]:
    """Lend what tenants do not need (eq. 4, 5) by the distribution factor (eq. 7)."""
    offered = np.maximum(0, initial - demand)
    if terms.lend_cap is not None:
        offered = np.minimum(offered, np.maximum(0, terms.lend_cap - record))
    total = int(offered.sum())
    if total == 0:
        return initial, remainder
    room: Tokens | None = None
    if terms.borrow_cap is not None:
        room = np.minimum(total, np.maximum(0, terms.borrow_cap + record))
    need = np.maximum(0, demand - initial) if terms.needed_first else None
    given, remainder = _give(total, factor, room, need, remainder)
    kept = total - int(given.sum())
    if kept:
        # Nobody may borrow these: they stay with those who offered them, in proportion.
        returned, _ = make_whole(offered * (kept / total), np.zeros(len(offered)), kept, offered)
        offered = offered - returned
    return initial - offered + given, remainder


def _reclaim_coefficient(
    priority: Parts, score: Parts, demand: Tokens, redistributed: Tokens, record: Tokens, record_lent: Tokens
) -> float:
    """The part of a debtor's tokens that lenders may call in (eq. 9, 11 to 13): one number for
    the target, and at most 1, though the sum as printed can pass it."""
    lenders = (record > 0) & (record_lent > 0)
    future = demand / np.maximum(1, redistributed)
    wish = priority * (np.maximum(1.0, score) + np.maximum(0.0, 1.0 - future)) / 2
    return min(1.0, _sum(wish[lenders]))


def _reclaimable(
    initial: Tokens, redistributed: Tokens, record: Tokens, record_lent: Tokens, coefficient: float
) -> Tokens:
    """What each debtor (eq. 10) can give back (eq. 14): never more than it owed before or owes
    now, and never so much that it keeps less than half of its own share. At least one token
    where that leaves room: rounding down must not stop a payback for ever."""
    debtors = (record < 0) & (record_lent < 0)
    if coefficient == 0.0 or not debtors.any():
        return np.zeros(len(initial), np.int64)
    called_in = np.maximum(1, np.floor(coefficient * redistributed).astype(np.int64))
    spare = redistributed - (initial + 1) // 2
    reclaim = np.minimum(np.minimum(-record, -record_lent), np.minimum(called_in, spare))
    return np.where(debtors, np.maximum(0, reclaim), 0)


def _recompense(
    reclaim: Tokens,
    demand: Tokens,
    redistributed: Tokens,
    record: Tokens,
    record_lent: Tokens,
    factor: Parts,
    remainder: Parts,
    terms: Terms,
) -> tuple[Tokens, Parts]:
    """Call in debts and pay lenders (eq. 15 to 20), no lender beyond what it is owed."""
    owed = np.where((record > 0) & (record_lent > 0), record_lent, 0)
    if terms.needed_first:
        owed = np.minimum(owed, np.maximum(0, demand - redistributed))
    total = min(int(reclaim.sum()), int(owed.sum()))
    if total == 0:
        return redistributed, remainder
    if total < int(reclaim.sum()):
        even = np.zeros(len(reclaim))
        scaled = np.asarray(reclaim * (total / int(reclaim.sum())), np.float64)
        reclaim, _ = make_whole(scaled, even, total, reclaim)
    lenders = owed > 0
    raw = fill(total, factor[lenders], owed[lenders])
    paid = np.zeros(len(owed), np.int64)
    remainder = remainder.copy()
    paid[lenders], remainder[lenders] = make_whole(raw, remainder[lenders], total, owed[lenders])
    return redistributed - reclaim + paid, remainder


def _give(
    total: int, factor: Parts, room: Tokens | None, need: Tokens | None, remainder: Parts
) -> tuple[Tokens, Parts]:
    """Give `total` tokens, or as many as there is room for: first up to the need, if one is
    told, then the rest."""
    given = np.zeros(len(factor), np.int64)
    for want in (need, None):
        if want is None and room is None:
            more, remainder = make_whole(factor / _sum(factor) * total, remainder, total)
            return given + more, remainder
        limit = want if room is None else room - given if want is None else np.minimum(want, room)
        assert limit is not None, "one of the two bounds is there"
        amount = min(total, int(limit.sum()))
        if amount:
            more, remainder = make_whole(fill(amount, factor, limit), remainder, amount, limit)
            given, total = given + more, total - amount
        if total == 0:
            break
    return given, remainder


def fill(total: int, factor: Parts, limit: Tokens) -> Parts:
    """Divide `total` in proportion to `factor`, but give nobody more than its limit: what one
    cannot take goes to the others, in the same proportion."""
    assert 0 <= total <= int(limit.sum()), "the limits must have room"
    order = np.argsort(limit / factor, kind="stable")
    limits, factors = limit[order], factor[order]
    full = np.cumsum(limits) - limits  # taken by those who reach their limit earlier
    rest = np.cumsum(factors[::-1])[::-1]
    level = (total - full) / rest
    first = int(np.argmax(level * factors <= limits))
    if level[first] * factors[first] > limits[first]:
        return limit.astype(np.float64)
    shares: Parts = np.minimum(level[first] * factor, limit)
    return shares


def make_whole(raw: Parts, remainder: Parts, total: int, limit: Tokens | None = None) -> tuple[Tokens, Parts]:
    """Whole tokens that sum to `total`, nobody below 0 or above its limit (eq. 21 to 25).

    Each gets the floor of its raw share plus the fraction still due to it. Tokens left over go
    to the largest remainders, excess ones come off the smallest; ties go by position. Whoever
    is at its limit carries no claim over."""
    due = raw + remainder
    whole = np.maximum(0, np.floor(due)).astype(np.int64)
    if limit is not None:
        whole = np.minimum(whole, limit)
    remainder_new = due - whole
    missing = total - int(whole.sum())
    while missing:
        chosen, step = _choose(whole, remainder_new, missing, limit)
        whole[chosen] += step
        remainder_new[chosen] -= step
        missing -= step * len(chosen)
    if limit is not None:
        remainder_new = np.where(whole >= limit, remainder, remainder_new)
    return whole, remainder_new


def _choose(
    whole: Tokens, remainder: Parts, missing: int, limit: Tokens | None
) -> tuple[npt.NDArray[np.intp], int]:
    """Whose tokens change by `step` (one, but for rounding errors of huge numbers), so that at
    most `missing` are made up for."""
    if missing > 0:
        can = np.flatnonzero(whole < limit) if limit is not None else np.arange(len(whole))
        rank = -remainder[can]
    else:
        can = np.flatnonzero(whole > 0)
        rank = remainder[can]
    assert len(can), "there is room for what is missing, and something to take from"
    count = min(abs(missing), len(can))
    if count == len(can):
        return can, 1 if missing > 0 else -1
    edge = np.partition(rank, count - 1)[count - 1]
    before = can[rank < edge]
    ties = can[rank == edge][: count - len(before)]
    return np.concatenate([before, ties]), 1 if missing > 0 else -1


def _sum(parts: Parts) -> float:
    """The sum in order: a plain loop gets the same bits, which pairwise summing would not."""
    return float(np.cumsum(parts)[-1]) if len(parts) else 0.0


def settle(record: Tokens, leaving: int) -> Tokens:
    """The records of the others after a tenant left whose record was `leaving`.

    What it was owed is forgiven to those who owe, what it owed is lost by those who are owed,
    in proportion; so the sum stays zero. `record` holds the others, who sum to -leaving."""
    if leaving == 0:
        return record
    side = np.where(record < 0, -record, 0) if leaving > 0 else np.where(record > 0, record, 0)
    lost = portion(side, abs(leaving))
    return record + lost if leaving > 0 else record - lost


def decay(record: Tokens, amount: int) -> Tokens:
    """Forget `amount` tokens of what is owed, and as many of what is due: the sum stays zero."""
    lent, borrowed = np.maximum(0, record), np.maximum(0, -record)
    return record - portion(lent, amount) + portion(borrowed, amount)


def portion(side: Tokens, amount: int) -> Tokens:
    """`amount` tokens off one side of the records, in proportion to each."""
    total = int(side.sum())
    assert amount <= total, "records sum to zero, so each side covers what leaves the other"
    if amount == 0:
        return np.zeros(len(side), np.int64)
    raw = np.asarray(side * (amount / total), np.float64)
    whole, _ = make_whole(raw, np.zeros(len(side)), amount, side)
    return whole


def payback_bound(priority_of_lender: float, debts: Tokens, initial: Tokens) -> int:
    """Within how many intervals every debt is paid, if nobody lends anew, all who owe stay
    active and the lender stays backlogged: a debtor with an initial share of two tokens or more
    gives back at least floor(p * share / 2) in each, and at least one."""
    speed = np.maximum(1, np.floor(priority_of_lender * initial / 2).astype(np.int64))
    return int(np.max(-(-debts // speed), initial=0))
