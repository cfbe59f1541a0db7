"""A pool under every fault (`world`), and in every order of operations of a small one (`small`)."""

from bursar.sim.scenarios.pool.small import SmallPool
from bursar.sim.scenarios.pool.world import CountingDecider, PoolScenario

__all__ = ["SCENARIO", "SMALL_WORLD", "CountingDecider", "PoolScenario", "SmallPool"]

SCENARIO = PoolScenario
SMALL_WORLD = SmallPool
