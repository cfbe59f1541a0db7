"""Claims and tasks over a handful of names, under every fault."""

from bursar.sim.scenarios.claim.small import LeavingClaims, SmallClaims
from bursar.sim.scenarios.claim.world import ClaimScenario, LeavingClaimScenario

__all__ = ["SCENARIO", "SMALL_WORLD", "ClaimScenario", "LeavingClaimScenario", "LeavingClaims", "SmallClaims"]

SCENARIO = ClaimScenario
SMALL_WORLD = SmallClaims
