"""Every order of events around the end of a period that its leader may not live to see: two servers that
begin the next one alone, or are told of it in time, or too late, by one leader or by another."""

from __future__ import annotations

from types import MappingProxyType

from bursar.sim.scenarios.rate.small import DRIFT_PPM, SmallRate
from bursar.sim.search import Budget
from bursar.world import MILLISECOND_NS


class SmallGrace(SmallRate):
    """The leader opens the next period while servers begin it, or one of them does. The search begins
    after the last tokens of a period were placed, just before it ends."""

    horizon_ns = 30 * MILLISECOND_NS
    flight_max = 2
    drift_ppm = MappingProxyType({"c1": DRIFT_PPM, "c2": DRIFT_PPM, "s1": DRIFT_PPM, "s2": -DRIFT_PPM})
    before_ms = (-420, -395, -295, -195, -95)
    budget = Budget(crashes=0, duplicates=0, drops=1, moves=0)


class SmallGraceTakeOver(SmallGrace):
    """The leader is gone. Another takes over just before they begin it, or when one has and the other has
    not."""

    budget = Budget(crashes=0, duplicates=1, drops=1, moves=0)
    standby_elected_at = 10 * MILLISECOND_NS
    leader_gone = True


class SmallGraceCrash(SmallGrace):
    """A server that may have begun it loses its memory."""

    horizon_ns = 17 * MILLISECOND_NS
    budget = Budget(crashes=1, duplicates=0, drops=0, moves=0)


class SmallGraceAfter(SmallGrace):
    """The leader is gone. Both begin it alone, and another leader finds them in the midst of it, or asks
    one that has not begun it yet."""

    horizon_ns = 50 * MILLISECOND_NS
    budget = Budget(crashes=0, duplicates=0, drops=1, moves=1)
    standby_elected_at = 18 * MILLISECOND_NS
    leader_gone = True


GRACE_WORLDS = (SmallGrace, SmallGraceTakeOver, SmallGraceCrash, SmallGraceAfter)
