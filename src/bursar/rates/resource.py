"""A rate resource as its users see it: servers with queues, and a controller that may lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bursar.errors import Refused, UsageError
from bursar.policy.values import RatePolicy
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import ControllerCourier, ServerCourier
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.messages import UNBOUNDED
from bursar.rates.placement import Placement
from bursar.rates.scheduler import BURST_DEFAULT, Scheduler, compile_kernels
from bursar.rates.server import ServerBook
from bursar.rates.views import Terms
from bursar.resource import Explanation, Grant, Resource, check_change
from bursar.world import SECOND_NS, World


def open_resource(world: World, name: str, policy: RatePolicy) -> RateResource:
    """This node's part of the resource: the servers that run on no other node, and a controller."""
    compile_kernels()
    return RateResource(world, name, policy)


def terms_of(policy: RatePolicy) -> dict[str, Terms]:
    """What each tenant is promised in a period."""
    terms = {}
    for name, tenant in policy.tenants.items():
        limit = None if tenant.limit is None else tenant.limit.per(policy.period_ns)
        terms[name] = Terms(tenant.reservation.per(policy.period_ns), limit, tenant.weight)
    return terms


def servers_of(policy: RatePolicy) -> dict[str, tuple[str, ...] | None]:
    """Where each tenant may send; None for everywhere."""
    return {name: tenant.servers for name, tenant in policy.tenants.items()}


class RateResource(Resource):
    """Acquiring is waiting for one's turn at one of this node's servers."""

    kind = "rate"

    def __init__(self, world: World, name: str, policy: RatePolicy) -> None:
        super().__init__(name)
        self._world = world
        self._policy = policy
        self._counts: dict[str, dict[str, int]] = {
            tenant: dict.fromkeys(COUNTS, 0) for tenant in policy.tenants
        }
        self._servers = {server: self._make_server(server) for server in self._local_servers()}
        self._choices: dict[str, tuple[int | None, tuple[Dispatcher, ...]]] = {}
        self._place = self._make_placement()
        self._book = self._make_controller()
        hosts = dict.fromkeys(self._servers, world.name)
        self._controller = ControllerCourier(world, name, self._book, hosts)

    def _local_servers(self) -> list[str]:
        """A server that is a peer runs there; every other one runs here."""
        peers = set(self._world.network.peers())
        return [server for server in self._policy.servers if server not in peers]

    def _make_server(self, server: str) -> Dispatcher:
        policy = self._policy
        weights = [tenant.weight for tenant in policy.tenants.values()]
        scheduler = Scheduler(weights, burst=BURST_DEFAULT if policy.pacing else None)
        book = ServerBook(server, self._world.incarnation, list(policy.tenants), scheduler)
        capacity = policy.servers[server].capacity
        return Dispatcher(
            self._world,
            book,
            period_ns=policy.period_ns,
            capacity=None if capacity is None else float(capacity.per_second),
            without_bursar=policy.without_bursar,
            dispatched=self._count_dispatched,
        )

    def _make_placement(self) -> Placement:
        capacities = {
            name: None if server.capacity is None else float(server.capacity.per_second)
            for name, server in self._policy.servers.items()
        }
        return Placement(capacities, servers_of(self._policy))

    def _make_controller(self) -> ControllerBook:
        return ControllerBook(
            f"{self._world.name}.{self._world.incarnation}",
            self._policy.servers,
            terms_of(self._policy),
            self._place,
            period_ns=self._policy.period_ns,
            interval_ns=self._policy.interval_ns,
            drift_ppm=self._policy.drift_ppm,
            adaptive=self._policy.adaptive_interval,
        )

    async def start(self) -> None:
        for server in self._servers.values():
            server.start()
            ServerCourier(self._world, self.name, server.book, server.pump).start()
        self._controller.start()

    async def reconfigure(self, policy: RatePolicy) -> None:
        """New terms hold from the next period on; servers, period and interval need a restart."""
        check_change(self._policy, policy, LIVE)
        for name, tenant in policy.tenants.items():
            self._counts.setdefault(name, dict.fromkeys(COUNTS, 0))
            for server in self._servers.values():
                index = server.book.index(name)
                if index is None:
                    server.add_tenant(name, tenant.weight)
                else:
                    server.book.scheduler.set_weight(index, tenant.weight)
        for server in self._servers.values():
            server.without_bursar = policy.without_bursar
            server.pump()
        self._book.reconfigure(terms_of(policy))
        self._place.tenant_servers = servers_of(policy)
        self._policy = policy
        self._choices.clear()

    # -- acquiring --------------------------------------------------------------------------

    def server(self, name: str) -> Dispatcher:
        """One of this node's servers, to `submit` work to it."""
        if name not in self._servers:
            here = ", ".join(self._servers) or "none"
            raise UsageError(f"server {name!r} of {self.name} does not run on this node (here: {here})")
        return self._servers[name]

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        server = self._pick(tenant, amount)
        if server.try_take(tenant, amount):
            return self._granted(tenant, amount, server)
        if self._policy.shadow:
            return self._let_through(tenant, amount)
        return None

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        server = self._pick(tenant, amount)
        if self._policy.shadow:
            if server.try_take(tenant, amount):
                return self._granted(tenant, amount, server)
            return self._let_through(tenant, amount)
        try:
            await server.take(tenant, amount, wait_ns)
        except Refused:
            self._counts[tenant]["refused"] += 1
            raise
        return self._granted(tenant, amount, server)

    def _granted(self, tenant: str, amount: int, server: Dispatcher) -> Grant:
        fallback = self._policy.without_bursar.mode if server.book.alone else None
        self._counts[tenant]["granted"] += amount
        return Grant(self, tenant, amount, fallback=fallback, data=server)

    def _let_through(self, tenant: str, amount: int) -> Grant:
        """Shadow mode: what would have been refused is counted, and goes."""
        self._counts[tenant]["would_refuse"] += amount
        return Grant(self, tenant, amount, fallback="shadow")

    async def _give_back(self, grant: Grant) -> None:
        # A rate is a matter of time: tokens that were not used are not given back, only the place.
        if grant.data is not None:
            grant.data.finished()

    def _pick(self, tenant: str, amount: int) -> Dispatcher:
        """The server here with the most left for the tenant after those that wait."""
        found = self._choices.get(tenant)
        if found is None:
            found = self._choices[tenant] = self._find_choices(tenant)
        limit, servers = found
        if limit is not None and amount > limit:
            raise Refused(
                f"{tenant} asked for {amount} tokens at once; its limit is {limit} a period",
                limit=limit,
                remaining=limit,
            )
        return servers[0] if len(servers) == 1 else max(servers, key=lambda server: server.left(tenant))

    def _find_choices(self, tenant: str) -> tuple[int | None, tuple[Dispatcher, ...]]:
        """(the tenant's limit in a period, the servers here that it may use)."""
        terms = self._policy.tenant(tenant)
        if not self._servers:
            raise Refused(f"no server of {self.name} runs on this node; ask one of the nodes that do")
        allowed = terms.servers
        servers = tuple(s for s in self._servers.values() if allowed is None or s.book.name in allowed)
        if not servers:
            raise Refused(f"{tenant} may use {', '.join(allowed or ())}, and none of them runs on this node")
        return None if terms.limit is None else terms.limit.per(self._policy.period_ns), servers

    def _count_dispatched(self, tenant: str, period: int, tokens: int) -> None:
        self._counts[tenant]["dispatched"] += tokens

    # -- telling ----------------------------------------------------------------------------

    def explain(self, tenant: str) -> Explanation:
        terms = terms_of(self._policy).get(tenant)
        if terms is None:
            self._policy.tenant(tenant)
            raise AssertionError("the policy refuses a tenant that it does not list")
        figures = self._figures(tenant, terms)
        return Explanation(
            resource=self.name,
            kind=self.kind,
            tenant=tenant,
            sentences=tuple(self._sentences(tenant, terms, figures)),
            figures=figures,
        )

    def _figures(self, tenant: str, terms: Terms) -> dict[str, int | float | str | bool | None]:
        allowance, dispatched, waiting = 0, 0, 0
        for server in self._servers.values():
            index = server.book.index(tenant)
            if index is not None:
                allowance = min(UNBOUNDED, allowance + int(server.book.scheduler.allowance[index]))
                dispatched += int(server.book.scheduler.dispatched[index])
                waiting += server.waiting(tenant)
        return {
            "reservation": terms.reservation,
            "limit": terms.limit,
            "weight": terms.weight,
            "period_s": self._policy.period_ns / SECOND_NS,
            "allowance_here": None if allowance >= UNBOUNDED else allowance,
            "dispatched_here": dispatched,
            "waiting_here": waiting,
            "leader": self._book.leading,
            "shortfall": self._place.shortfall.get(tenant, 0) if self._book.leading else None,
            **self._counts[tenant],
        }

    def _sentences(self, tenant: str, terms: Terms, figures: Mapping[str, Any]) -> list[str]:
        period = f"{figures['period_s']:g} s"
        most = "no limit" if terms.limit is None else f"a limit of {terms.limit}"
        said = [f"{tenant} has a reservation of {terms.reservation} and {most} tokens every {period}."]
        allowed = figures["allowance_here"]
        said.append(
            f"In this period it was allowed {'any number' if allowed is None else allowed} here, "
            f"used {figures['dispatched_here']}, and {figures['waiting_here']} requests wait."
        )
        if figures["refused"]:
            said.append(f"{figures['refused']} requests were refused since this node started.")
        if figures["shortfall"]:
            said.append(
                f"Its reservation cannot be met now: {figures['shortfall']} tokens fit on none of the "
                "servers where it has demand."
            )
        if any(server.book.alone for server in self._servers.values()):
            said.append(f"No controller answers: this node goes on by itself ({self._mode()}).")
        if self._policy.shadow:
            said.append(f"Shadow mode: nothing is refused; {figures['would_refuse']} would have been.")
        return said

    def _mode(self) -> str:
        return f"without_bursar = {self._policy.without_bursar.mode}"

    def statistics(self) -> Mapping[str, Any]:
        now = self._world.clock.now()
        return {
            "kind": self.kind,
            "leader": self._book.leading,
            "epoch": self._book.state.epoch,
            "period": self._book.state.period,
            "period_ns": self._policy.period_ns,
            "shadow": self._policy.shadow,
            "servers": {name: self._server_statistics(now, server) for name, server in self._servers.items()},
            "tenants": {
                tenant: {
                    "reservation": terms.reservation,
                    "limit": terms.limit,
                    "shortfall": self._place.shortfall.get(tenant, 0),
                    **self._counts[tenant],
                }
                for tenant, terms in terms_of(self._policy).items()
            },
        }

    def _server_statistics(self, now: int, server: Dispatcher) -> dict[str, Any]:
        book = server.book
        return {
            "capacity": self._place.capacity_rate(book.name),
            "period": book.period,
            "good": book.may_dispatch(now),
            "alone": book.alone,
            "in_service": server.in_service,
            "tenants": {
                tenant: {
                    "allowance": int(book.scheduler.allowance[index]),
                    "priority": int(book.scheduler.priority[index]),
                    "dispatched": int(book.scheduler.dispatched[index]),
                    "waiting": server.waiting(tenant),
                }
                for index, tenant in enumerate(book.tenants)
            },
        }


LIVE = ("tenants", "shadow", "without_bursar")
"""What of a policy can change while the resource runs."""

COUNTS = ("granted", "dispatched", "refused", "would_refuse")
