"""Who gets what in a fleet of Envoys: demands in, assignments out. Pure; whole tokens.

First the tenants, from what the service behind can do: each its reservation, as far as it wants
it, then by weight up to its limit or its demand, whichever is less; what nobody wants yet goes
by weight as headroom, so that a tenant that begins to send need not wait for the next report.
Then each tenant's Envoys, by their demand; headroom also to those where it has little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNLIMITED = 2**45
"""Stands for a limit, or a capacity, that there is not."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the tenants are promised, in tokens a fill interval; one entry for each."""

    reservation: Whole
    limit: Whole
    weight: Whole
    capacity: int = UNLIMITED


def share_out(terms: Terms, demand: Whole, member: Flags) -> Whole:
    """Assignments, tenants x Envoys. A tenant has something only where it is a `member`; its
    assignments sum to at most its limit, and all together to at most the capacity."""
    demand = np.where(member, demand, 0)
    wanted = np.minimum(demand.sum(axis=1), terms.limit)
    granted = _grant(terms, wanted)
    headroom = _give_headroom(terms, granted, np.asarray(member.any(axis=1)))
    evenly = np.where(member, demand + demand.mean(axis=1, keepdims=True).astype(np.int64) + 1, 0)
    return spread(granted, demand) + spread(headroom, evenly)


def shortfall(terms: Terms, demand: Whole) -> Whole:
    """By tenant: what of its reservation the capacity cannot give it, though it wants it."""
    reserved = np.minimum(terms.reservation, np.minimum(demand.sum(axis=1), terms.limit))
    missing: Whole = reserved - _scale(reserved, terms.capacity)
    return missing


def _grant(terms: Terms, wanted: Whole) -> Whole:
    reserved = _scale(np.minimum(terms.reservation, wanted), terms.capacity)
    left = terms.capacity - int(reserved.sum())
    return reserved + fill(left, terms.weight, wanted - reserved)


def _give_headroom(terms: Terms, granted: Whole, present: Flags) -> Whole:
    left = terms.capacity - int(granted.sum())
    return fill(left, terms.weight, np.where(present, terms.limit - granted, 0))


def _scale(amounts: Whole, most: int) -> Whole:
    """All of the amounts if they fit into `most`, else each its part of it."""
    total = int(amounts.sum())
    if total <= most:
        return amounts
    return (amounts.astype(np.float64) * (most / total)).astype(np.int64)


def fill(total: int, weights: Whole, caps: Whole) -> Whole:
    """`total` by weight, none above its cap: all rise together until they are full or it is used
    up. Rounded down, so the sum may stay below `total` by less than one token for each part."""
    whole = int(np.minimum(caps, UNLIMITED).sum(dtype=np.float64)) if caps.size else 0
    if total <= 0 or not caps.size:
        return np.zeros_like(caps)
    if whole <= total:
        return caps
    levels = caps / weights
    order = np.argsort(levels, kind="stable")
    used = np.cumsum(caps[order].astype(np.float64))
    sharing = weights[order][::-1].cumsum()[::-1].astype(np.float64)
    # With the first k full, the rest share what is left: the level at which that is consistent.
    before = np.concatenate(([0.0], used[:-1]))
    candidates = (total - before) / sharing
    full = int(np.argmax(candidates <= levels[order]))
    filled: Whole = np.minimum(caps, (candidates[full] * weights).astype(np.int64))
    return filled


def spread(totals: Whole, weights: Whole) -> Whole:
    """Each row's total over its columns by weight, exactly: what rounding leaves goes to the
    column with the most weight. A row without weights gets nothing."""
    sums = weights.sum(axis=1)
    share = totals / np.maximum(sums, 1)
    parts = np.floor(weights * share[:, None]).astype(np.int64)
    rest = np.where(sums > 0, totals - parts.sum(axis=1), 0)
    if weights.shape[1]:
        rows = np.arange(len(totals))
        parts[rows, weights.argmax(axis=1)] += rest
    exact: Whole = np.maximum(parts, 0)
    return exact
