"""A decider for tests, in place of a kind: a counter with a limit, in this process alone.

It stands in for the quota kind (`kinds.MODULES["quota"]`), so that policies, the daemon and its
clients run whole. What it grants is appended to the file BURSAR_TOY_LOG, where that is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from bursar.errors import Refused, Unknown
from bursar.policy import QuotaPolicy
from bursar.resource import Decider, Explanation, Granted, Offers, Ticket
from bursar.resource.door import Resource
from bursar.resource.statistics import counter, gauge, label, labelled
from bursar.world import World

TOY_NAME = __name__


class ToyTenant(msgspec.Struct, frozen=True):
    held: Annotated[int, gauge("tokens that grants hold")]
    spent: Annotated[int, counter("tokens that were used")]


class ToyStatistics(msgspec.Struct, frozen=True):
    calls: Annotated[int, counter("times it was asked")]
    unit: Annotated[str, label("what it counts")]
    tenants: Annotated[Mapping[str, ToyTenant], labelled("tenant")]


class ToyDecider(Decider):
    kind = "quota"
    offers = Offers(keys=True, refunds=True)

    def __init__(self, world: World, name: str, policy: QuotaPolicy) -> None:
        self.name = name
        self.policy = policy
        self.held: dict[str, int] = {}
        self.spent: dict[str, int] = {}
        self.keys: dict[str, Granted] = {}
        self.waiting: list[Ticket] = []
        self.silent = False
        self.calls = 0
        self.reconfigured = 0

    def left(self, tenant: str) -> int:
        limit: int = self.policy.tenant(tenant).limit
        return limit - self.held.get(tenant, 0) - self.spent.get(tenant, 0)

    def is_ready(self) -> bool:
        return True

    def most(self, ticket: Ticket) -> int | None:
        return None

    def decide(self, ticket: Ticket) -> None:
        self.calls += 1
        if ticket.tenant == "broken":
            raise ZeroDivisionError("the toy is broken")
        if ticket.key is not None and ticket.key in self.keys:
            known = self.keys[ticket.key]
            ticket.give(Granted(known.amount, replayed=True, data=known.data))
        else:
            self.waiting.append(ticket)
            self.serve()

    def serve(self) -> None:
        for ticket in list(self.waiting):
            if self.left(ticket.tenant) >= ticket.amount and not self.silent:
                self.waiting.remove(ticket)
                self.held[ticket.tenant] = self.held.get(ticket.tenant, 0) + ticket.amount
                granted = Granted(ticket.amount, data=[ticket.tenant, ticket.amount])
                if ticket.key is not None:
                    self.keys[ticket.key] = granted
                self._log(ticket.tenant, ticket.amount)
                ticket.give(granted)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        self.waiting.remove(ticket)
        if self.silent:
            self.waiting.append(ticket)
            return None
        limit = self.policy.tenant(ticket.tenant).limit
        return Refused("the toy is used up", limit=limit, remaining=self.left(ticket.tenant), retry_after=1.5)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        granted.data[1] -= unused
        self.held[tenant] -= unused
        self.serve()

    def finish(self, granted: Granted) -> None:
        tenant, used = granted.data
        granted.data[1] = 0
        self.held[tenant] -= used
        self.spent[tenant] = self.spent.get(tenant, 0) + used

    def _log(self, tenant: str, amount: int) -> None:
        path = os.environ.get("BURSAR_TOY_LOG")
        if path:
            with open(path, "a") as file:
                file.write(f"{tenant} {amount}\n")

    async def reconfigure(self, policy: Any) -> None:
        self.policy = policy
        self.reconfigured += 1
        self.serve()

    def explain(self, tenant: str) -> Explanation:
        limit = self.policy.tenant(tenant).limit
        return Explanation(
            resource=self.name,
            kind=self.kind,
            tenant=tenant,
            sentences=(f"{tenant} may use {limit}.", f"It has {self.left(tenant)} left."),
            figures={"limit": limit, "left": self.left(tenant)},
        )

    def statistics(self) -> ToyStatistics:
        tenants = {
            tenant: ToyTenant(self.held.get(tenant, 0), self.spent.get(tenant, 0))
            for tenant in self.policy.tenants
        }
        return ToyStatistics(self.calls, "toys", tenants)


def open_resource(world: World, name: str, policy: QuotaPolicy) -> Resource:
    return Resource(world, ToyDecider(world, name, policy), policy)
