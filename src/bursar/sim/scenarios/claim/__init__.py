"""Claims and tasks over a handful of names, under every fault."""

from bursar.sim.scenarios.claim.world import ClaimScenario, LeavingClaimScenario

__all__ = ["SCENARIO", "ClaimScenario", "LeavingClaimScenario"]

SCENARIO = ClaimScenario
