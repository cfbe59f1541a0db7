"""A quota over four nodes under every fault, and its small worlds."""

from __future__ import annotations

from bursar.sim.scenarios.quota.fleet import FleetQuotaScenario, LeavingQuotaScenario
from bursar.sim.scenarios.quota.small import SmallQuota
from bursar.sim.scenarios.quota.variants import (
    FastQuotaScenario,
    LossyQuotaScenario,
    OwingQuotaScenario,
    RebuiltQuotaScenario,
    WindowedQuotaScenario,
    WorstQuotaScenario,
)
from bursar.sim.scenarios.quota.whole import WholeQuotaScenario
from bursar.sim.scenarios.quota.world import QuotaScenario

SCENARIO = QuotaScenario
SMALL_WORLD = SmallQuota

__all__ = [
    "SCENARIO",
    "SMALL_WORLD",
    "FastQuotaScenario",
    "FleetQuotaScenario",
    "LeavingQuotaScenario",
    "LossyQuotaScenario",
    "OwingQuotaScenario",
    "QuotaScenario",
    "RebuiltQuotaScenario",
    "SmallQuota",
    "WholeQuotaScenario",
    "WindowedQuotaScenario",
    "WorstQuotaScenario",
]
