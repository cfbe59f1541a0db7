"""How a node decides when to ask, whom, and how much to pass on: bursar's rules and the paper's."""

from __future__ import annotations

from dataclasses import dataclass

from bursar.world import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True)
class Rules:
    """Times and factors of the re-allocation. None of them can break a promise of the ledger.

    paper         algorithms 1 and 2 as the paper's text has them: every child is asked, a node that
                  takes part answers PARTICIPATING, no hints, no scarcity, thresholds always kept
    by_rate_only  shares by eq. 5 and 6 alone; otherwise requests that wait are served first
    per_event     consumption rates as eq. 4 has them: part of the quota an aggregation, not a second
    alpha         weight of the newest rate (eq. 4)
    beta          stop aggregating when Q > beta * T (section IV-A). None: adaptive; a subtree
                  settles its own affairs if its units last at least `own_part` as long as the whole's
    margin        thresholds are `margin` times rate x theta (eq. 2 has 1)
    scarce_requests  root keeps what is left when it is less than so many mean requests a node
    extra_part    then each who asks gets, besides, this part of its share of the rest
    far_ns        where re-allocations take longer than this, the next three stand in for `scarce_requests`,
                  `own_part` and `beta_floor`: what is near is used first, and little is kept back at the
                  root, because waiting costs more there than messages do (quotas-forms, wan)
    """

    paper: bool = False
    by_rate_only: bool = False
    per_event: bool = False
    alpha: float = 0.5
    beta: int | None = None
    beta_floor: int = 10
    own_part: float = 0.25
    margin: float = 2.0
    scarce_requests: int = 20
    extra_part: float = 0.7
    far_ns: int = 50 * MILLISECOND_NS
    far_scarce_requests: int = 1
    far_own_part: float = 0.1
    far_beta_floor: int = 5
    theta_ns: int = 10 * MILLISECOND_NS
    sample_ns: int = 500 * MILLISECOND_NS
    patience_ns: int = 500 * MILLISECOND_NS
    waiting_ns: int = 1500 * MILLISECOND_NS
    retry_ns: int = 50 * MILLISECOND_NS
    retry_max_ns: int = 2 * SECOND_NS
    resend_ns: int = 3 * SECOND_NS
    resend_max_ns: int = 10 * SECOND_NS
    ack_ns: int = SECOND_NS
    memory_ns: int = SECOND_NS


BURSAR = Rules()
PAPER = Rules(
    paper=True,
    by_rate_only=True,
    beta=1,
    margin=1.0,
    retry_ns=MILLISECOND_NS,
    retry_max_ns=MILLISECOND_NS,
)
"""As printed."""
