"""What the policy of one resource means for a fleet of Envoys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar.errors import UsageError
from bursar.integrations.envoy.fleet import FILL_S, FleetBook
from bursar.integrations.envoy.split import UNLIMITED, Terms
from bursar.policy import Policy, RatePolicy
from bursar.units import Rate
from bursar.world import SECOND_NS

REPORT_S = 5
"""How often Envoy reports, whatever its configuration says (seen in 1.40)."""

KEEP_S = 86_400
"""The time to live that stands for "keep": Envoy 1.40 does not honour `reuse_last_assignment`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """time_to_live_s  of an assignment; longer than a report, or it would lapse between two
    overlap         how much beyond the limit may be in force while shares move (see `fleet`)
    burst_s         seconds of its rate that an Envoy may let through at once"""

    time_to_live_s: int = 8
    overlap: float = 0.5
    burst_s: float = 0.2

    def __post_init__(self) -> None:
        if not REPORT_S < self.time_to_live_s <= 3600:
            raise UsageError(f"the time to live is {self.time_to_live_s} s: pass {REPORT_S + 1} to 3600")
        if not 0.0 <= self.overlap <= 1.0:
            raise UsageError(f"the overlap is {self.overlap}: pass 0 (strict) to 1")
        if not 0.01 <= self.burst_s <= 10.0:
            raise UsageError(f"the burst is {self.burst_s} s: pass 0.01 to 10")


def find_resources(policy: Policy) -> dict[str, RatePolicy]:
    """The resources that Envoys can enforce. Raises UsageError if there is none."""
    found = {name: r for name, r in policy.resources.items() if isinstance(r, RatePolicy)}
    if not found:
        raise UsageError(f'{policy.source} has no resource of kind "rate"; Envoy enforces only those')
    return found


def make_terms(policy: RatePolicy) -> Terms:
    """Tokens a fill interval. The capacity of the service behind is that of its servers together;
    if one of them is "auto" there is none: Envoy's reports do not tell when a service is full."""
    tenants = policy.tenants.values()
    capacities = [server.capacity for server in policy.servers.values()]
    known = [capacity for capacity in capacities if capacity is not None]
    capacity = sum(_tokens(c) for c in known) if len(known) == len(capacities) else UNLIMITED
    return Terms(
        np.array([_tokens(tenant.reservation) for tenant in tenants], np.int64),
        np.array([UNLIMITED if t.limit is None else _tokens(t.limit) for t in tenants], np.int64),
        np.array([tenant.weight for tenant in tenants], np.int64),
        capacity,
    )


def make_book(policy: RatePolicy, settings: Settings, now: int, *, fresh: bool) -> FleetBook:
    return FleetBook(
        list(policy.tenants),
        make_terms(policy),
        now,
        hold_ns=settings.time_to_live_s * SECOND_NS,
        overlap=settings.overlap,
        fresh=fresh,
        keeps=policy.without_bursar.mode == "keep",
    )


def wire_time_to_live_s(policy: RatePolicy, settings: Settings) -> int:
    return KEEP_S if policy.without_bursar.mode == "keep" else settings.time_to_live_s


def _tokens(rate: Rate) -> int:
    return min(rate.per(FILL_S * SECOND_NS), UNLIMITED)
