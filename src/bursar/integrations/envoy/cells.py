"""What one Envoy was told for one tenant, and what its reports say that it wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar.world import SECOND_NS

FILL_S = 600
"""Envoy's buckets are told in tokens for this time, and fill evenly: so the smallest rate is one in
ten minutes."""

DENY = 0
ALLOW_ALL = -1
ABANDON = -2

REPORT_NS = 5 * SECOND_NS
TIME_TO_LIVE_S = 8
"""Longer than a report and the time that Envoy takes to come back to another node."""

MARGIN_NS = SECOND_NS
"""For what is under way when an assignment ends."""

SUSPECT_NS = REPORT_NS + SECOND_NS
PEAKS = 3
"""Reports that say something. The first and the last report of a busy stretch cover only a part of it, so of
three in a row one says what the load really is; load that stays moves within as many."""

REPORTS = 5
"""Among so many, so that two that say nothing may come between: with the three last of all, load that goes
round three Envoys every seven seconds was given 0.28 of the limit, where fixed thirds give 0.33."""


@dataclass(slots=True)
class Terms:
    """Of a tenant: tokens a second, and at once."""

    limit: float
    burst: float
    period_s: float = 1.0


FindTerms = Callable[[str], Terms | None]
"""None for a tenant that there is not."""


@dataclass(slots=True)
class Line:
    """One Envoy's stream."""

    slot: int
    heard_at: int


@dataclass(slots=True)
class Cell:
    """One tenant at one Envoy. Rates are tokens in FILL_S, as they are told; None: it was told nothing.

    most     the highest rate that it may hold, if what was sent since it was last heard of was lost
    until    when what it was told is over
    due      what fell due of it, and is not known to be used or not
    reports  requests a second, of the last of them"""

    line: Line
    rate: int | None = None
    burst: int = 0
    most: int = 0
    until: int = 0
    due: float = 0.0
    seen_at: int = 0
    busy_at: int = 0
    carry: int = 0
    carry_s: int = 0
    new: bool = True
    gone: bool = False
    remembered: float = 0.0
    peak: float = 0.0
    reports: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTS))

    def note(self, demand: float) -> None:
        """What a report says that it wants. It wants nothing once as many in a row as count say so."""
        self.reports.append(demand)
        last = list(self.reports)
        if len(last) >= PEAKS and not any(last[-PEAKS:]):
            self.forget()
            return
        self.peak = max([each for each in last if each][-PEAKS:], default=0.0)

    def forget(self) -> None:
        """Nothing is known of what it wants."""
        self.reports.clear()
        self.peak = 0.0

    def in_force(self, now: int) -> float:
        """Tokens a second that it may be letting through."""
        if now >= self.until:
            return 0.0
        # Of one that was told to forget, nothing is heard any more.
        silent = self.rate is not None and now - self.line.heard_at > SUSPECT_NS
        return (self.most if silent or self.gone else self.rate or 0) / FILL_S
