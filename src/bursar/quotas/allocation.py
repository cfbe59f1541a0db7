"""The arithmetic of a re-allocation (section III-B): pure functions over whole units."""

from __future__ import annotations

from collections.abc import Sequence

from bursar.world import SECOND_NS

LIFETIME_MAX_S = 10**9
RATE_MIN = 1e-3
"""Units a second below which nothing is worth keeping ready."""


class Burn:
    """How fast an account is being used at one node: an exponential moving average (eq. 4) of
    units a second. The paper averages parts of the quota *an aggregation* instead (`per_event`),
    so a node that is asked twice as often seems half as fast."""

    __slots__ = ("_at", "_is_guess", "_level", "alpha", "per_event", "quota", "rate", "sample_ns")

    def __init__(self, alpha: float, sample_ns: int, per_event: bool = False) -> None:
        self.alpha = alpha
        self.sample_ns = sample_ns
        self.per_event = per_event
        self.quota = 1
        self.rate = 0.0
        self._at: int | None = None
        self._level = 0
        self._is_guess = False

    def sample(self, now: int, used: int) -> float:
        """`used` counts every unit ever used here. Too soon after the last sample says nothing."""
        if self.per_event:
            return self.rate
        if self._at is None:
            self._at, self._level = now, used
        elapsed_ns = now - self._at
        if elapsed_ns >= self.sample_ns:
            if self._is_guess:
                self.rate, self._is_guess = 0.0, False
            self._average(max(0, used - self._level) * SECOND_NS / elapsed_ns)
            self._at, self._level = now, used
        elif self.rate == 0 and used > self._level and elapsed_ns > 0:
            # A burst of a moment is no rate, but all there is until the first sample is whole.
            self._average((used - self._level) * SECOND_NS / elapsed_ns)
            self._is_guess = True
        return self.rate

    def count_event(self, used: int) -> None:
        """An aggregation begins: the paper's moment for a sample."""
        if self.per_event:
            self._average(max(0, used - self._level) / self.quota)
            self._level = used

    def _average(self, fresh: float) -> None:
        self.rate = fresh if self.rate == 0 else (1 - self.alpha) * self.rate + self.alpha * fresh
        if self.rate < RATE_MIN and not self.per_event:
            self.rate = 0.0


def threshold(rate: float, theta_ns: int, margin: float) -> int:
    """Units that will be used while a re-allocation runs (eq. 2), rounded up."""
    return -int(-rate * margin * theta_ns // SECOND_NS)


def surplus(unspent: int, kept: int) -> int:
    """What a node can spare (eq. 3)."""
    return max(0, unspent - kept)


def split_by_rate(units: int, rates: Sequence[float], fallback: int) -> list[int]:
    """Whole shares in proportion to the rates (eq. 5 and 6), by cumulative rounding: they sum to
    `units` exactly. Where nobody uses anything, `fallback` (the requester) gets it all."""
    total = sum(rates)
    if total <= 0:
        return [units if place == fallback else 0 for place in range(len(rates))]
    shares, seen, given = [], 0.0, 0
    for rate in rates:
        seen += rate
        upto = min(units, int(units * (seen / total) + 0.5))
        shares.append(upto - given)
        given = upto
    shares[fallback] += units - given
    return shares


def serve_wants(units: int, wants: Sequence[int]) -> tuple[int, int | None]:
    """Serve waiting requests in order, each in full or not at all: (units used, the smallest that
    is not served). Splitting what was used over parts of the list, in the same order, serves the
    same ones."""
    used, unmet = 0, None
    for amount in wants:
        if amount <= units - used:
            used += amount
        elif unmet is None or amount < unmet:
            unmet = amount
    return used, unmet


def lifetime_ns(units: int, rate: float) -> int | None:
    """How long units last at a rate; None for ever (or so long that it is the same)."""
    if rate <= 0 or units >= rate * LIFETIME_MAX_S:
        return None
    return int(units * SECOND_NS / rate)
