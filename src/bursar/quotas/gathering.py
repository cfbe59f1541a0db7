"""What a node and those who take part in its round have and want, and who gets what (III-B, IV-A).

No messages and no states here: only what is decided from the offers, the hints and the demand.
"""

from __future__ import annotations

from typing import NamedTuple

from bursar.quotas.allocation import lifetime_ns, serve_wants, split_by_rate, surplus
from bursar.quotas.demand import WANTS_MAX, Demand
from bursar.quotas.messages import Collect, Offer
from bursar.world import SECOND_NS


class Hint(NamedTuple):
    """What a subtree had, how fast it used it, and when that was."""

    units: int
    rate: float
    at: int
    nodes: int


class Gathering:
    """offers       of the children that take part
    asked_by     the parent's Collect that is to be answered
    hints        what was last known of each child's subtree
    whole_until  when the whole will be used up at the present rate, by the last that was heard
    """

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.rules = demand.rules
        self.account = demand.account
        self.asked_by: Collect | None = None
        self.offers: dict[str, Offer] = {}
        self.hints: dict[str, Hint] = {}
        self.whole_until: int | None = None

    def is_enough(self, now: int) -> bool:
        pool = surplus(self.account.unspent, self.demand.kept(now))
        rest = pool - sum(self.demand.wants()) - sum(sum(offer.wants) for offer in self.offers.values())
        if rest < 0:
            return False
        if self.rules.beta is not None:
            return pool > self.rules.beta * self.thresholds(now)
        if self.demand.scarce:
            return True
        lasts_ns = lifetime_ns(rest, self.rates(now))
        return lasts_ns is None or lasts_ns >= self._wanted_lifetime_ns(now)

    def stops_here(self, now: int, asked: Collect) -> bool:
        """Line 39: with what the coordinators above have, there is enough already."""
        kept = self.demand.threshold(now)
        pool = asked.pool + surplus(self.account.unspent, kept)
        return pool > (self.rules.beta or 1) * (asked.threshold + kept)

    def sizes(self) -> int:
        """A request of each node that takes part."""
        return self.demand.size + sum(offer.size for offer in self.offers.values())

    def thresholds(self, now: int) -> int:
        """T of eq. 8."""
        return self.demand.threshold(now) + sum(offer.threshold for offer in self.offers.values())

    def rates(self, now: int) -> float:
        return self.demand.rate(now) + sum(offer.rate for offer in self.offers.values())

    def subtree_rate(self, now: int) -> float:
        """The rates of those who take part, and the last known of the other children."""
        others = [hint.rate for child, hint in self.hints.items() if child not in self.offers]
        return self.rates(now) + sum(others)

    def _wanted_lifetime_ns(self, now: int) -> int:
        """A subtree that is nearly as rich as the whole settles its own affairs."""
        whole_ns = 0 if self.whole_until is None else max(0, self.whole_until - now)
        rules, is_far = self.rules, self.demand.is_far
        floor = rules.far_beta_floor if is_far else rules.beta_floor
        part = rules.far_own_part if is_far else rules.own_part
        return max(floor * self.demand.theta_ns, int(part * whole_ns))

    def all_wants(self) -> tuple[int, ...]:
        wants = [*self.demand.wants()]
        for offer in self.offers.values():
            wants += offer.wants
        return tuple(wants[:WANTS_MAX])

    def may_spare(self, now: int, child: str) -> bool:
        """By the last that was heard of it; a child never heard of may."""
        if child not in self.hints:
            return True
        kept = self.hints[child].rate * self.rules.margin * self.demand.theta_ns / SECOND_NS
        return self.may_have(now, child) > max(kept, self.demand.size)

    def may_have(self, now: int, child: str) -> int:
        hint = self.hints[child]
        return max(0, hint.units - int(hint.rate * (now - hint.at) / SECOND_NS))

    def split(self, now: int) -> list[int]:
        """Each child's part of what is here. (The printed form knows no requests that wait, only
        rates; but when everything was gathered, its root too serves what it can.)"""
        units = surplus(self.account.unspent, self.demand.kept(now))
        wanted = [0] * len(self.offers)
        if self.demand.full or not self.rules.by_rate_only:
            units -= serve_wants(units, self.demand.wants())[0]
            for place, offer in enumerate(self.offers.values()):
                wanted[place], _ = serve_wants(units, offer.wants)
                units -= wanted[place]
        if self.demand.scarce:
            return self._add_extra(now, wanted, units)
        rates = [self.demand.rate(now), *(offer.rate for offer in self.offers.values())]
        parts = split_by_rate(units, rates, self._place_of_need())
        return [used + part for used, part in zip(wanted, parts[1:], strict=True)]

    def _add_extra(self, now: int, wanted: list[int], units: int) -> list[int]:
        """Little is left, and it stays here. But each who asks gets, besides what it wants, a part
        of what its subtree will want: less the less there is, so that nobody comes for every
        request, and little is stranded."""
        whole, rest = self.subtree_rate(now), units
        for place, offer in enumerate(self.offers.values()):
            extra = int(self.rules.extra_part * units * offer.rate / whole) if whole > 0 else 0
            if offer.low or offer.wants or (self.demand.full and extra * offer.nodes >= offer.size):
                wanted[place] += min(extra, rest)
                rest -= min(extra, rest)
        return wanted

    def _place_of_need(self) -> int:
        """Who gets everything where nobody has a rate: the first child that asked, or this node."""
        if not self.demand.waiting:
            for place, offer in enumerate(self.offers.values(), start=1):
                if offer.low or offer.wants:
                    return place
        return 0
