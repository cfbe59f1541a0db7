"""Each of the five rules of the rate protocol, taken out in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from bursar.book import Effects as ServerEffects
from bursar.rates.columns import Whole
from bursar.rates.controller import ControllerBook, Effects
from bursar.rates.granting import Round
from bursar.rates.messages import Grant
from bursar.rates.resource import RateDecider
from bursar.rates.server import ServerBook
from bursar.rates.terms import Terms
from bursar.rates.views import ServerView
from bursar.resource import Granted, Seen, Ticket
from bursar.sim.faults import Faults
from bursar.sim.scenarios.rate import (
    RateScenario,
    SmallCrash,
    SmallNextPeriod,
    SmallRate,
    SmallTakeOver,
)
from bursar.world import MILLISECOND_NS

WorldT = TypeVar("WorldT", RateScenario, SmallRate)


class TakesAnyGrant(ServerBook):
    """Rule 1: a server takes whatever grant arrives, however old."""

    def _take(self, now: int, sender: str, grant: Grant) -> ServerEffects:
        if grant.incarnation == self.incarnation and grant.period >= self.period:
            self.epoch, self.sequence = min((grant.epoch, grant.sequence - 1), (self.epoch, self.sequence))
        return super()._take(now, sender, grant)


class BoundsFallOnSending(ControllerBook):
    """Rule 2: the leader counts a smaller allowance as soon as it was sent."""

    def _find_headroom(self, made: Round) -> Whole:
        for draft in made.drafts:
            draft.bounds = np.minimum(draft.bounds, np.maximum(draft.wanted, 0))
        return super()._find_headroom(made)


class MintsAtOnce(ControllerBook):
    """Rule 3: a new leader makes new tokens before it has heard from everyone."""

    def _begin_leading(self, now: int) -> Effects:
        effects = super()._begin_leading(now)
        self._complete = True
        return effects


class ForgetsTheDead(ControllerBook):
    """Rule 4: what a restarted server held may be given to others."""

    def _bury(self, view: ServerView) -> None:
        return None


class OpensWithoutWaiting(ControllerBook):
    """Rule 5: the next period begins when this clock says so, whatever other clocks say."""

    def _guarded(self, duration_ns: int) -> int:
        return duration_ns


class ChangesAtOnce(ControllerBook):
    """A changed policy holds in the middle of a period, in which the old limit was partly used."""

    def reconfigure(self, terms: Mapping[str, Terms], digest: str = "", drift_ppm: int | None = None) -> None:
        self.terms = terms
        self.tokens.roll.set_terms(terms)


class CountsFromReceipt(ServerBook):
    """Rule 5: tokens expire a period after the grant *arrived*."""

    def _apply(self, now: int, grant: Grant) -> None:
        super()._apply(now, grant)
        self.expires_at = now + grant.time_left_ns


class TakesBackIntoAnyPeriod(RateDecider):
    """Rule 5 of lots: tokens come back after their period, to the next one."""

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        granted.data.opening = granted.data.server.book.openings
        super().take_back(tenant, granted, unused)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        granted.data.opening = granted.data.server.book.openings
        super().end_lot(tenant, granted, seen, unspent)


class LotsOutlastTheirPeriod(RateDecider):
    """Rule 4 of lots: what is left of a lot is good for some time more."""

    def decide(self, ticket: Ticket) -> None:
        super().decide(ticket)
        if isinstance(ticket.answer, Granted) and ticket.answer.ahead:
            ticket.answer.until += 200 * MILLISECOND_NS


class LotsAreNotCharged(RateDecider):
    """Rule 1 of lots: a token more than was charged."""

    def decide(self, ticket: Ticket) -> None:
        super().decide(ticket)
        if isinstance(ticket.answer, Granted) and ticket.answer.ahead:
            ticket.answer.ahead += 1


class KeepsWhatWasAllowed(ServerBook):
    """`keep`: as much as was allowed, not as much as was used: any number, without a limit."""

    def go_on_alone(self, now: int, period_ns: int, safe: int | None, limits: Sequence[int]) -> None:
        allowed = [int(allowance) for allowance in self.scheduler.allowance]
        super().go_on_alone(now, period_ns, safe, limits)
        for index, allowance in enumerate(allowed):
            self.scheduler.grant(index, allowance, 0, 0, now)


WORLDS = {
    "rule 1: takes any grant": SmallTakeOver,
    "rule 2: bounds fall on sending": SmallRate,
    "rule 3: mints at once": SmallTakeOver,
    "rule 4: forgets the dead": SmallCrash,
    "rule 5: opens without waiting": SmallNextPeriod,
    "rule 5: counts from receipt": SmallNextPeriod,
}
"""The small world in which a search finds it."""

FAULTS = {
    "rule 5: opens without waiting": Faults(drift=True),
    "rule 1: takes any grant": Faults(duplicate=0.3, reorder=0.5, slow=0.3, slow_ns=250 * MILLISECOND_NS),
    "rule 3: mints at once": Faults(crashes=2.0, loss=0.2, outage_ns=60 * MILLISECOND_NS),
    "rule 4: forgets the dead": Faults(crashes=2.0, outage_ns=60 * MILLISECOND_NS),
}
"""Trouble of the kind that the rule is for; the other bugs are found by any."""

BUGS = {
    "rule 1: takes any grant": TakesAnyGrant,
    "rule 2: bounds fall on sending": BoundsFallOnSending,
    "rule 3: mints at once": MintsAtOnce,
    "rule 4: forgets the dead": ForgetsTheDead,
    "rule 5: opens without waiting": OpensWithoutWaiting,
    "rule 5: counts from receipt": CountsFromReceipt,
}

DOOR_BUGS = {
    "lots: takes back into any period": TakesBackIntoAnyPeriod,
    "lots: outlast their period": LotsOutlastTheirPeriod,
    "lots: are not charged": LotsAreNotCharged,
    "keep: what was allowed": KeepsWhatWasAllowed,
}
"""What the search, which has no callers, cannot see."""


def plant_scenario(bug: str) -> RateScenario:
    return _plant(RateScenario(), bug)


def plant_small_world(bug: str) -> SmallRate:
    return _plant(WORLDS[bug](), bug)


def _plant(world: WorldT, bug: str) -> WorldT:
    part = {**BUGS, **DOOR_BUGS}[bug]
    if issubclass(part, ServerBook):
        world.server_book = part
    elif issubclass(part, ControllerBook):
        world.controller_book = part
    else:
        assert isinstance(world, RateScenario), "a small world has no door"
        world.decider = part
    return world
