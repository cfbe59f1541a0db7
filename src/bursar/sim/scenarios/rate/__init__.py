"""A rate: under every fault (`world`), and in every order of events of a small world (`small`)."""

from bursar.sim.scenarios.rate.small import (
    SMALL_WORLDS,
    SmallCrash,
    SmallNextPeriod,
    SmallRate,
    SmallTakeOver,
)
from bursar.sim.scenarios.rate.world import ChangingRateScenario, LearntRateScenario, RateScenario

__all__ = [
    "SCENARIO",
    "SMALL_WORLD",
    "SMALL_WORLDS",
    "ChangingRateScenario",
    "LearntRateScenario",
    "RateScenario",
    "SmallCrash",
    "SmallNextPeriod",
    "SmallRate",
    "SmallTakeOver",
]

SCENARIO = RateScenario
SMALL_WORLD = SmallRate
