"""A kind with figures of every sort, for whatever is made of statistics: metrics, alerts, pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from bursar.errors import Refused, Unknown
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.resource import Decider, Explanation, Granted, Offers, Ticket
from bursar.resource.door import Resource
from bursar.resource.rows import Rows
from bursar.resource.statistics import counter, gauge, label, labelled, listed
from bursar.world import World


class PlaceFigures(msgspec.Struct, frozen=True, kw_only=True):
    used: Annotated[int, counter("tokens used there")]


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    alone: Annotated[bool, gauge("whether it goes on by itself")] = False
    backend: Annotated[str, label("where it sends requests")] = ""
    tenants: Annotated[Mapping[str, PlaceFigures], labelled("tenant")] = {}


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    limit: Annotated[int | None, gauge("its limit")] = None
    shortfall: Annotated[int, gauge("reserved tokens that fit nowhere")] = 0
    served: Annotated[int, counter("tokens served")] = 0
    granted: Annotated[int, gauge("a name that the door has too")] = 0
    lasts_s: Annotated[float, gauge("how long the rest lasts", "seconds")] = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    leading: Annotated[bool, gauge("whether this node decides")] = True
    interval_ns: Annotated[int, gauge("how often it decides")] = 200_000_000
    moved: Annotated[int, counter("what was moved", "bytes")] = 0
    window: Annotated[str, label("the window")] = "2026-11"
    steps: Annotated[Mapping[str, Annotated[int, counter("steps taken")]], labelled("step")] = {}
    tenants: Annotated[Mapping[str, TenantFigures], labelled("tenant")] = {}
    servers: Annotated[Mapping[str, ServerFigures], labelled("server")] = {}
    problems: Annotated[tuple[str, ...], listed("for people")] = ()


class WatchedDecider(Decider):
    """Grants while it is `open`; its figures are set by hand."""

    offers = Offers()

    def __init__(self, name: str = "cache", kind: str = "rate") -> None:
        self.name = name
        self.kind = kind
        self.ready = True
        self.open = True
        self.figures: Any = Figures()
        self.takers: list[Callable[[str, int], None]] = []

    def is_ready(self) -> bool:
        return self.ready

    def most(self, ticket: Ticket) -> int | None:
        return None

    def decide(self, ticket: Ticket) -> None:
        ticket.give(Granted(ticket.amount) if self.open else Refused("it is closed"))

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        raise AssertionError("everything is decided at once")

    def explain(self, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=())

    def statistics(self) -> Any:
        return self.figures

    def on_warning(self, taker: Callable[[str, int], None]) -> None:
        self.takers.append(taker)


def open_watched(world: World, *tenants: str, kind: str = "rate", **settings: Any) -> Resource:
    decider = WatchedDecider(kind=kind)
    terms = {name: QuotaTenant(limit=1000) for name in tenants or ("acme", "globex")}
    return Resource(world, decider, QuotaPolicy(name="cache", tenants=terms, **settings))


def watched(resource: Resource) -> WatchedDecider:
    assert isinstance(resource.decider, WatchedDecider)
    return resource.decider


def rows(figures: Mapping[str, Any]) -> Rows[Any]:
    """As a kind hands them out."""
    return Rows(figures, figures.__getitem__)
