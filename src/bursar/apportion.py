"""Whole tokens out of fractions: exact sums, nobody off by a whole token, ties to the earlier.

Weights may be whole numbers, fractions or floats; the arithmetic is exact in every case, so the
answer does not depend on the machine, and totals may be as large as one likes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from bursar.errors import UsageError

Weight = int | float | Fraction


def apportion(total: int, weights: Sequence[Weight]) -> list[int]:
    """Divide `total` in proportion to the weights (the method of largest remainders).

    The parts sum to `total` and each is its exact share rounded down or up. All weights zero:
    every part is zero if the total is, otherwise there is nobody to give it to.
    """
    scaled = _scale(total, weights)
    whole = sum(scaled)
    if whole == 0:
        if total == 0:
            return [0] * len(scaled)
        raise UsageError(f"{total} cannot be divided: every weight is zero; pass one above zero")
    shares = [divmod(total * weight, whole) for weight in scaled]
    parts = [share for share, _ in shares]
    left = total - sum(parts)
    for k in heapq.nsmallest(left, range(len(parts)), key=lambda k: (-shares[k][1], k)):
        parts[k] += 1
    return parts


def apportion_within(total: int, weights: Sequence[Weight], caps: Sequence[int]) -> list[int]:
    """As `apportion`, but no part exceeds its cap: what a capped part cannot take goes to the
    others by weight. The parts sum to min(total, the caps of those with a weight above zero).
    """
    if len(caps) != len(weights) or any(cap < 0 for cap in caps):
        raise UsageError("caps: pass one whole number, zero or more, for each weight")
    scaled = _scale(total, weights)
    left = min(total, sum(cap for cap, weight in zip(caps, scaled, strict=True) if weight))
    parts = [0] * len(scaled)
    open_parts = [k for k, weight in enumerate(scaled) if weight]
    while left > 0:
        whole = sum(scaled[k] for k in open_parts)
        full = [k for k in open_parts if left * scaled[k] >= caps[k] * whole]
        if not full:
            break
        for k in full:
            parts[k] = caps[k]
        left -= sum(caps[k] for k in full)
        filled = set(full)
        open_parts = [k for k in open_parts if k not in filled]
    if left > 0:
        for k, part in zip(open_parts, apportion(left, [scaled[k] for k in open_parts]), strict=True):
            parts[k] = part
    return parts


def _scale(total: int, weights: Sequence[Weight]) -> list[int]:
    """The weights as whole numbers in the same proportion."""
    if total < 0:
        raise UsageError(f"total is {total}: pass zero or more")
    for k, weight in enumerate(weights):
        if not math.isfinite(weight) or weight < 0:
            raise UsageError(f"weight {k} is {weight}: pass a finite number, zero or more")
    if all(isinstance(weight, int) for weight in weights):
        return [int(weight) for weight in weights]
    exact = [Fraction(weight) for weight in weights]
    unit = math.lcm(*(weight.denominator for weight in exact))
    return [int(weight * unit) for weight in exact]
