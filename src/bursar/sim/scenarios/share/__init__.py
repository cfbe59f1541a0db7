"""A share through crashes, pauses and tenants that come, go and change their minds."""

from bursar.sim.scenarios.share.world import CountingDecider, ShareScenario

__all__ = ["SCENARIO", "CountingDecider", "ShareScenario"]

SCENARIO = ShareScenario
