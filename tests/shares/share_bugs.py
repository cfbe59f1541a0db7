"""Bugs planted in the share's parts: each breaks one promise, and the simulator must find it."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

import bursar.shares.book as book_module
from bursar.shares.book import TargetBook
from bursar.shares.gate import Gate
from bursar.sim.scenarios.share import CountingDecider, ShareScenario


class ForgetsLeavers(TargetBook):
    """A leaving tenant's record is dropped instead of settled."""

    def leave(self, *tenants):
        keep = self.records()
        super().leave(*tenants)
        for name in self.tenants:
            self._record[self._slots[name]] = keep[name]


class RemembersLendersOnly(TargetBook):
    """The snapshot keeps what is owed and forgets who owes it."""

    def snapshot(self):
        return msgspec.msgpack.encode({name: n for name, n in self.records().items() if n > 0})

    def replay(self, records):
        for record in list(records)[-1:]:
            for name, tokens in msgspec.msgpack.decode(record, type=dict[str, int]).items():
                slot = self._enter(name)
                self._record[slot] = tokens


class DecaysOneSide(TargetBook):
    """Old debts are forgotten, old credits are not."""

    def _forget_old_records(self):
        count = len(self.tenants)
        self._record[:count] = np.where(
            self._record[:count] < -1, self._record[:count] + 1, self._record[:count]
        )


class RoundsDown(TargetBook):
    """Fractions of a token are dropped at every step."""

    def close(self, demand, elapsed_ns=None):
        original = book_module.allocate

        def allocate(tokens, *columns):
            allocation = original(tokens, *columns)
            floors = np.floor(tokens * columns[0] / columns[0].sum()).astype(np.int64)
            return dataclasses.replace(allocation, final=np.minimum(allocation.final, floors))

        book_module.allocate = allocate
        try:
            return super().close(demand, elapsed_ns)
        finally:
            book_module.allocate = original


class LendsTwice(TargetBook):
    """What is lent is credited to the lender and not charged to the borrower."""

    def close(self, demand, elapsed_ns=None):
        before = self.records()
        handout = super().close(demand, elapsed_ns)
        for name in self.tenants:
            slot = self._slots[name]
            self._record[slot] = max(int(self._record[slot]), min(0, before.get(name, 0)))
        return handout


class PaysNobodyBack(TargetBook):
    """Debts are never called in."""

    def close(self, demand, elapsed_ns=None):
        original = book_module.allocate

        def allocate(tokens, weight, demand, record, *rest):
            allocation = original(tokens, weight, demand, np.zeros_like(record), *rest)
            lent = allocation.initial - allocation.redistributed
            return dataclasses.replace(allocation, final=allocation.redistributed, record=record + lent)

        book_module.allocate = allocate
        try:
            return super().close(demand, elapsed_ns)
        finally:
            book_module.allocate = original


class FillsTheFirstInterval(TargetBook):
    """Intervals change, and each is filled as the first one was."""

    def _next_tokens(self):
        self._first_ns = getattr(self, "_first_ns", self.interval_ns)
        interval_ns, self.interval_ns = self.interval_ns, self._first_ns
        tokens = super()._next_tokens()
        self.interval_ns = interval_ns
        return tokens


class ForgetsStrangers(TargetBook):
    """A tenant that is not listed is gone as soon as it is quiet, with what it owes."""

    def close(self, demand, elapsed_ns=None):
        for name in [name for name in self.tenants if name not in self._terms and name not in demand]:
            self._record[self._slots[name]] = 0
            self.leave(name)
        return super().close(demand, elapsed_ns)


class KeepsWhatDidNotCome(TargetBook):
    """What was lent for a burst that did not come stays owed."""

    def _forgive(self, tenant, tokens):
        pass


class KeepsMoreThanAnnounced(TargetBook):
    """A tenant lends for its burst until it begins, however much that is."""

    def _expect(self, wanted, elapsed_ns):
        expected = super()._expect(wanted, elapsed_ns)
        return expected._replace(caps=[cap + 1000 for cap in expected.caps])


class OpenGate(Gate):
    """Requests go whenever they are due, whatever the target can do."""

    def _is_free(self, now):
        return True


class RequestsAndLotsAreDemand(CountingDecider):
    """Tokens count as wanted when they are charged ahead, not when requests come for them."""

    def _charge_lot(self, ticket, now):
        issue = super()._charge_lot(ticket, now)
        if issue is not None:
            self._gate.filter.observe(ticket.tenant, issue.left, 0)
        return issue


class LotsOfAnySize(CountingDecider):
    """What is out ahead at the target is not bounded."""

    def _charge_lot(self, ticket, now):
        self.ahead.room = lambda *_: 100
        return super()._charge_lot(ticket, now)


class LotsForNothing(CountingDecider):
    """Tokens ahead are handed out and not charged to the target."""

    def _charge_lot(self, ticket, now):
        free_at = self._gate._free_at
        issue = super()._charge_lot(ticket, now)
        self._gate._free_at = free_at
        return issue


class GivesBackTwice(CountingDecider):
    """What came back unused is put back twice as often as it was charged."""

    def _give_back(self, tenant, granted, tokens):
        super()._give_back(tenant, granted, 2 * tokens)


def plant(book=TargetBook, gate=Gate, decider=CountingDecider):
    buggy = type("BuggyDecider", (decider,), {"book_class": book, "gate_class": gate})
    return type("BuggyScenario", (ShareScenario,), {"decider_class": buggy})


BUGS = {
    "forgets leavers": (plant(ForgetsLeavers), "records sum to"),
    "remembers lenders only": (plant(RemembersLendersOnly), "records sum to"),
    "decays one side": (plant(DecaysOneSide), "records sum to"),
    "lends twice": (plant(LendsTwice), "records sum to"),
    "rounds down": (plant(RoundsDown), "tokens were handed out of"),
    "pays nobody back": (plant(PaysNobodyBack), "not paid back"),
    "fills the first interval": (plant(FillsTheFirstInterval), "an interval has"),
    "forgets strangers": (plant(ForgetsStrangers), "records sum to"),
    "keeps what did not come": (plant(KeepsWhatDidNotCome), "of which it used nothing"),
    "keeps more than was announced": (plant(KeepsMoreThanAnnounced), "of which it used nothing"),
    "open gate": (plant(gate=OpenGate), "tokens went at once"),
    "takes lots for demand": (plant(decider=RequestsAndLotsAreDemand), "counts as wanting"),
    "hands out lots of any size": (plant(decider=LotsOfAnySize), "are out ahead of use"),
    "charges nothing for lots": (plant(decider=LotsForNothing), "tokens went at once"),
    "gives back twice": (plant(decider=GivesBackTwice), "tokens went at once"),
}
