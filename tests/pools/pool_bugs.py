"""Slips in the pool's protocol, planted one at a time."""

from __future__ import annotations

from typing import Any

from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import Stamp, pack, unpack
from bursar.pools.monitor_book import MonitorBook
from bursar.sim.scenarios.pool import CountingDecider, PoolScenario, SmallPool
from bursar.world import Read, WordOperation, Write


class OverwritesThePool(MonitorBook):
    """The paper's step T2: the monitor reads the pool's word, and writes it with what the pool
    shall hold, while clients take from it. What they took in between is forgotten."""

    def _next(self, now: int, action: str, tenant: str) -> WordOperation | None:
        if action == "overwrite":
            return Write(self.names.taken, pack(self.period, 0))
        if action != "raise" or not self.accounts.dispatched:
            return super()._next(now, action, tenant)
        ceiling = unpack(self._ceiling).tokens
        target = max(self.accounts.target(now, self._taken, ceiling), ceiling)
        self._pool, self._target = target - self._taken, target
        return Write(self.names.ceiling, pack(self.period, self._pool))

    def _raise(self, now: int, operation: WordOperation, before: int) -> None:
        self.accounts.allow(self._taken, unpack(self._ceiling).tokens, self._target)
        self._ceiling = pack(self.period, self._pool)
        self._taken = 0
        self._plan.insert(0, ("overwrite", ""))


class LooksAfterAdding(EngineBook):
    """The ceiling is read after adding: what an earlier ceiling refused for good is taken."""

    def operation(self) -> WordOperation | None:
        return Read(self.names.ceiling) if self._phase == "late" else super().operation()

    def receive(self, now: int, value: int) -> None:
        if self._phase == "add":
            self._before = unpack(value)
            self._phase = "late"
        elif self._phase == "late":
            self._ceiling = unpack(value)
            self._grant(now, self._before)
            self._phase = ""
        else:
            super().receive(now, value)


class ClaimsByReading(EngineBook):
    """Reservation tokens are read and left where they are: a new life finds them again."""

    def operation(self) -> WordOperation | None:
        if self._phase == "claim":
            return Read(self.names.tokens(self.tenant))
        return super().operation()


class IgnoresThePeriod(EngineBook):
    """What was added in one period is taken for tokens of another."""

    def _grant(self, now: int, before: Stamp) -> None:
        super()._grant(now, Stamp(self.period, before.tokens))


class ReportsWithoutClaim(EngineBook):
    """A new life reports on a period whose tokens an earlier life had."""

    def _find(self, now: int, found: Stamp) -> None:
        super()._find(now, found)
        if self._phase != "claim" and found.period == self.period:
            self.claimed = True
            self._phase = "asked"


class AddsToTheOld(EngineBook):
    """New tokens are added to what is left of the old period."""

    def _claim(self, now: int, before: int) -> None:
        super()._claim(now, before)
        self.reserve += self._left

    def _open(self, now: int) -> None:
        self._left = self.reserve
        super()._open(now)


class BelievesTheClock(MonitorBook):
    """What a client should have given up by now counts as given up."""

    def _plan_raise(self, now: int) -> WordOperation | None:
        elapsed_ns = now - self.accounts.began
        for client in self.clients.values():
            should = client.dispatched * elapsed_ns // self.accounts.period_ns
            client.returned = max(client.returned, min(should, client.dispatched))
        return super()._plan_raise(now)


class LendsForNothing(EngineBook):
    """Tokens ahead of use are handed out and not charged."""

    def lend(self, now: int, tokens: int) -> int:
        lent = super().lend(now, tokens)
        self.lent -= lent
        self.give_back(lent)
        return lent


class LendsAsSpent(EngineBook):
    """Tokens ahead of use are reported as used, whoever has them."""

    def lend(self, now: int, tokens: int) -> int:
        lent = super().lend(now, tokens)
        self.lent -= lent
        return lent


class GivesBackTwice(EngineBook):
    """What was left of a lot comes back twice."""

    def end_lot(self, unspent: int) -> None:
        super().end_lot(unspent)
        self.reserve += unspent


class LotsOfAnySize(CountingDecider):
    """What is out ahead of use is not bounded."""

    def _room(self, tenant: str, now: int) -> int:
        return 100


class ForgetsAtOnce(CountingDecider):
    """A tenant of a template is forgotten as soon as nobody waits: its limit begins anew."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._engines.look_after = self._forget_all  # type: ignore[method-assign]

    def _forget_all(self, period: int) -> list[str]:
        clients = self._engines._clients
        for tenant in [name for name, each in clients.items() if not each.ticks and not each.line]:
            del clients[tenant]
        return []


class BelievesItsCharge(EngineBook):
    """What was charged of a limit that others share is taken to be all there, whatever was charged before."""

    def _allow(self, now: int, tokens: int) -> None:
        super()._allow(now, self._charging)


BUGS: dict[str, type[EngineBook] | type[MonitorBook] | type[CountingDecider]] = {
    "the paper's overwritten pool word": OverwritesThePool,
    "looks after adding": LooksAfterAdding,
    "claims by reading": ClaimsByReading,
    "ignores the period": IgnoresThePeriod,
    "reports without a claim": ReportsWithoutClaim,
    "adds to the old": AddsToTheOld,
    "believes the clock": BelievesTheClock,
    "lends for nothing": LendsForNothing,
    "lends as spent": LendsAsSpent,
    "gives back twice": GivesBackTwice,
    "lots of any size": LotsOfAnySize,
    "forgets within the period": ForgetsAtOnce,
    "believes its charge": BelievesItsCharge,
}

TOLD = {
    "lends for nothing": r"tokens were spent in period|got \d+ in period \d+, its limit is \d+",
    "lends as spent": "as used, and its callers used",
    "lots of any size": "tokens are out ahead of use",
    "forgets within the period": "its limit is",
    "believes its charge": "its limit is",
}
"""What a run says that finds it (a pattern), where that is not only that too much was spent or issued."""

FOUND_BY_SEARCH = ("the paper's overwritten pool word",)
"""The others need more steps than a search takes in a test, a crash, or two periods."""


def plant(bug: str) -> PoolScenario:
    scenario = PoolScenario()
    book = BUGS[bug]
    if issubclass(book, EngineBook):
        scenario.engine_book = book
    elif issubclass(book, CountingDecider):
        scenario.decider_class = book
    else:
        scenario.monitor_book = book
    return scenario


def plant_small(bug: str) -> SmallPool:
    book = BUGS[bug]
    name = "engine_book" if issubclass(book, EngineBook) else "monitor_book"
    small: SmallPool = type("SmallBug", (SmallPool,), {name: book})()
    return small
