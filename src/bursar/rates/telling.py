"""What a node says of a rate: to people, and as numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from bursar.policy.values import RatePolicy
from bursar.rates.controller import ControllerBook
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.messages import UNBOUNDED
from bursar.rates.placement import Placement
from bursar.rates.rounds import Rounds
from bursar.rates.statistics import CellStatistics, RateStatistics, ServerStatistics, TenantStatistics
from bursar.rates.terms import Terms
from bursar.resource import Explanation, Ticket
from bursar.resource.rows import Rows
from bursar.world import SECOND_NS, World

Figures = dict[str, int | float | str | bool | None]


def _find_most(tenant: str, policy: RatePolicy) -> int | None:
    """The tokens that its servers do in a period, all of them together; None if that is not known."""
    terms = policy.find(tenant)
    names = policy.servers if terms is None or terms.servers is None else terms.servers
    known = [policy.servers[name].capacity if name in policy.servers else None for name in names]
    if policy.any_server is not None or None in known:
        return None
    return sum(capacity.per(policy.period_ns) for capacity in known if capacity is not None)


class Telling:
    """Reads the books and decides nothing."""

    def __init__(
        self,
        world: World,
        resource: str,
        book: ControllerBook,
        place: Placement,
        servers: Mapping[str, Dispatcher],
        rounds: Rounds,
    ) -> None:
        self._rounds = rounds
        self._world = world
        self._resource = resource
        self._book = book
        self._place = place
        self._servers = servers

    def explain(self, tenant: str, terms: Terms, policy: RatePolicy) -> Explanation:
        figures = self._figures(tenant, terms, policy)
        return Explanation(
            resource=self._resource,
            kind="rate",
            tenant=tenant,
            sentences=tuple(self._say(tenant, figures, policy)),
            figures=figures,
        )

    def _figures(self, tenant: str, terms: Terms, policy: RatePolicy) -> Figures:
        seen = self._count_tenant(tenant, terms)
        return {
            "reservation": terms.reservation,
            "limit": terms.limit,
            "burst": seen.burst,
            "weight": terms.weight,
            "period_s": policy.period_ns / SECOND_NS,
            "allowance_here": seen.allowance,
            "dispatched_here": seen.dispatched,
            "waiting_here": seen.waiting,
            "charged_alone": seen.charged_alone,
            "leader": self._book.leading,
            "shortfall": seen.shortfall if self._book.leading else self._find_told_shortfall(tenant),
        }

    def _find_told_shortfall(self, tenant: str) -> int | None:
        """As the leader's last grants to the servers here say; None where there are none."""
        told = [server.book.short.get(tenant, 0) for server in self._servers.values()]
        return max(told, default=None)

    def _say(self, tenant: str, figures: Mapping[str, Any], policy: RatePolicy) -> Iterator[str]:
        period, limit, allowed = f"{figures['period_s']:g} s", figures["limit"], figures["allowance_here"]
        reserved, most = figures["reservation"], _find_most(tenant, policy)
        if limit is None:
            yield f"{tenant} has a reservation of {reserved} tokens every {period}, and no limit."
        else:
            yield f"{tenant} has a reservation of {reserved} and a limit of {limit} tokens every {period}."
        if most is not None and reserved > most:
            yield f"Its reservation cannot be met: its servers do {most} every {period} (see `bursar plan`)."
        if limit == 0:
            yield "So nothing is granted to it."
        elif limit is not None and policy.pacing:
            yield f"They are spread over the period; at most {figures['burst']} may be used at once."
        yield (
            f"In this period it was allowed {'any number' if allowed is None else allowed} here, "
            f"used {figures['dispatched_here']}, and {figures['waiting_here']} requests wait."
        )
        if figures["shortfall"]:
            yield (
                f"Its reservation cannot be met now: {figures['shortfall']} tokens fit on none of the "
                "servers where it has demand."
            )
        if any(server.book.alone for server in self._servers.values()):
            mode = policy.without_bursar.mode
            yield f"No controller answers: this node goes on by itself (without_bursar = {mode})."
        if policy.shadow:
            yield "Shadow mode: nothing is refused, only counted."

    def count(
        self, find_terms: Callable[[str], Terms], tenants: Collection[str], policy: RatePolicy
    ) -> RateStatistics:
        newest = max((server.book.period for server in self._servers.values()), default=0)
        return RateStatistics(
            leading=self._book.leading,
            epoch=self._book.state.epoch,
            period=max(self._book.state.period, newest),
            period_s=policy.period_ns / SECOND_NS,
            interval_s=self._book.interval_ns / SECOND_NS,
            rounds=self._rounds.rounds,
            messages=self._rounds.messages,
            talking_s=self._rounds.talking_ns / SECOND_NS,
            servers={name: self._count_server(server, tenants) for name, server in self._servers.items()},
            tenants=Rows(tenants, lambda tenant: self._count_tenant(tenant, find_terms(tenant))),
        )

    def _count_tenant(self, tenant: str, terms: Terms) -> TenantStatistics:
        cells = [_count_cell(server, tenant) for server in self._servers.values()]
        counts = [server.read_counts(tenant) for server in self._servers.values()]
        allowances = [cell.allowance for cell in cells]
        charged, charged_alone, returned = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
        return TenantStatistics(
            reservation=terms.reservation,
            limit=terms.limit,
            burst=terms.burst or None,
            shortfall=self._place.shortfall.get(tenant, 0),
            allowance=None if None in allowances else sum(each or 0 for each in allowances),
            dispatched=sum(cell.dispatched for cell in cells),
            waiting=len(set().union(*(_list_waiters(server, tenant) for server in self._servers.values()))),
            charged=charged,
            charged_alone=charged_alone,
            returned=returned,
        )

    def _count_server(self, server: Dispatcher, tenants: Collection[str]) -> ServerStatistics:
        book = server.book
        return ServerStatistics(
            capacity=server.rate,
            period=book.period,
            good=book.may_dispatch(self._world.clock.now()),
            alone=book.alone,
            in_service=server.services.count,
            tenants=Rows(tenants, lambda tenant: _count_cell(server, tenant)),
        )


def _count_cell(server: Dispatcher, tenant: str) -> CellStatistics:
    """Of a tenant that has not asked lately too."""
    index, scheduler = server.book.index(tenant), server.book.scheduler
    if index is None:
        held = server.book.find_held(tenant)
        return CellStatistics(allowance=_tell(held), priority=0, dispatched=0, pace=None, waiting=0)
    return CellStatistics(
        allowance=_tell(scheduler.read_allowance(index)),
        priority=int(scheduler.priority[index]),
        dispatched=scheduler.read_dispatched(index),
        pace=scheduler.read_pace(index) or None,
        waiting=server.waiting(tenant),
    )


def _tell(allowance: int) -> int | None:
    return None if allowance >= UNBOUNDED else allowance


def _list_waiters(server: Dispatcher, tenant: str) -> Collection[Ticket]:
    return () if server.book.index(tenant) is None else server.waiters(tenant)
