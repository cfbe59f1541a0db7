"""A rate as the front door sees it: servers with queues, and a controller that may lead."""

from __future__ import annotations

from collections.abc import Callable

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.live import LIVE
from bursar.policy.values import RatePolicy, RateTenant
from bursar.rates.blocks import JOURNALLED_ABOVE_NS, Blocks
from bursar.rates.charges import Charge
from bursar.rates.choices import decide_among, withdraw
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import COMPACT_BYTES, ControllerCourier, ServerCourier
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.placement import Placement
from bursar.rates.promises import Promises, count_whole, find_burst
from bursar.rates.scheduler import COST_MAX, Scheduler, compile_kernels
from bursar.rates.server import ServerBook
from bursar.rates.statistics import RateStatistics
from bursar.rates.telling import Telling
from bursar.rates.views import Terms
from bursar.resource import Ahead, Decider, Explanation, Granted, Offers, Seen, Ticket, check_change
from bursar.resource.door import Resource
from bursar.world import World


def open_resource(world: World, name: str, policy: RatePolicy) -> Resource:
    """This node's part of the resource: the servers that run on no other node, and a controller."""
    compile_kernels()
    return Resource(world, RateDecider(world, name, policy), policy)


def terms_of(policy: RatePolicy) -> dict[str, Terms]:
    """What each tenant is promised in a period."""
    return {name: _find_terms(policy, tenant) for name, tenant in policy.tenants.items()}


def _find_terms(policy: RatePolicy, tenant: RateTenant) -> Terms:
    limit = None if tenant.limit is None else tenant.limit.per(policy.period_ns)
    burst = find_burst(limit) if tenant.burst is None else tenant.burst
    return Terms(tenant.reservation.per(policy.period_ns), limit, tenant.weight, burst)


def servers_of(policy: RatePolicy) -> dict[str, tuple[str, ...] | None]:
    """Where each tenant may send; None for everywhere."""
    return {name: tenant.servers for name, tenant in policy.tenants.items()}


def make_blocks(world: World, policy: RatePolicy) -> Blocks | None:
    """What this life of a server journals, if periods are so long."""
    if policy.period_ns <= JOURNALLED_ABOVE_NS:
        return None
    return Blocks(
        world.incarnation, list(policy.tenants), period_ns=policy.period_ns, origin=world.clock.origin()
    )


class RateDecider(Decider):
    """Acquiring is waiting for one's turn at one of this node's servers.

    `server_book`, `controller_book` and `blocks` make the books, `dispatched` is told of all that is
    charged: for whoever has to see, or to break, what is promised."""

    kind = "rate"
    offers = Offers(lots=True)

    def __init__(
        self,
        world: World,
        name: str,
        policy: RatePolicy,
        *,
        server_book: type[ServerBook] = ServerBook,
        controller_book: type[ControllerBook] = ControllerBook,
        blocks: Callable[[World, RatePolicy], Blocks | None] = make_blocks,
        compact_bytes: int = COMPACT_BYTES,
        dispatched: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.name = name
        self.world = world
        self._policy = policy
        self._server_book = server_book
        self._make_blocks = blocks
        self._compact_bytes = compact_bytes
        self._dispatched = dispatched
        self.ahead = Ahead()
        self._place = self._make_placement()
        self._promises = Promises(policy.period_ns)
        self.servers = {server: self._make_server(server) for server in self._local_servers()}
        self._tell_terms(policy)
        self._choices: dict[str, tuple[Dispatcher, ...]] = {}
        self._doors: dict[str, ServerDecider] = {}
        self.book = self._make_controller(controller_book)
        hosts = dict.fromkeys(self.servers, world.name)
        self._controller = ControllerCourier(world, name, self.book, hosts)
        self._telling = Telling(world, name, self.book, self._place, self.servers)

    def _local_servers(self) -> list[str]:
        """A server that is a peer runs there; every other one runs here."""
        peers = set(self.world.network.peers())
        return [server for server in self._policy.servers if server not in peers]

    def _make_server(self, server: str) -> Dispatcher:
        policy = self._policy
        weights = [tenant.weight for tenant in policy.tenants.values()]
        scheduler = Scheduler(weights, period_ns=policy.period_ns if policy.pacing else None)
        blocks = self._make_blocks(self.world, policy)
        book = self._server_book(server, self.world.incarnation, list(policy.tenants), scheduler, blocks)
        capacity = policy.servers[server].capacity
        return Dispatcher(
            self.world,
            book,
            period_ns=policy.period_ns,
            capacity=None if capacity is None else float(capacity.per_second),
            without_bursar=policy.without_bursar,
            promises=self._promises,
            ahead=self.ahead,
            find_rate=lambda: self._place.capacity_rate(server),
            dispatched=self._dispatched,
        )

    def _make_placement(self) -> Placement:
        capacities = {
            name: None if server.capacity is None else float(server.capacity.per_second)
            for name, server in self._policy.servers.items()
        }
        return Placement(capacities, servers_of(self._policy))

    def _make_controller(self, make: type[ControllerBook]) -> ControllerBook:
        return make(
            f"{self.world.name}.{self.world.incarnation}",
            self._policy.servers,
            terms_of(self._policy),
            self._place,
            period_ns=self._policy.period_ns,
            interval_ns=self._policy.interval_ns,
            drift_ppm=self._policy.drift_ppm,
            adaptive=self._policy.adaptive_interval,
        )

    async def start(self) -> None:
        for server in self.servers.values():
            server.start()
            ServerCourier(
                self.world,
                self.name,
                server.book,
                server.pump,
                self._look_up,
                compact_bytes=self._compact_bytes,
            ).start()
        self._controller.start()

    def _look_up(self) -> None:
        """A server is asked what it has seen: so are those who hold lots, first."""
        self.collect()
        for door in self._doors.values():
            door.collect()
        for server in self.servers.values():
            server.look_up()

    async def reconfigure(self, policy: RatePolicy) -> None:
        """New terms hold from the next period on; servers, period and interval need a restart."""
        check_change(self._policy, policy, LIVE["rate"])
        self._tell_terms(policy)
        for server in self.servers.values():
            server.without_bursar = policy.without_bursar
            server.pump()
        self.book.reconfigure(terms_of(policy))
        self._place.tenant_servers = servers_of(policy)
        self._policy = policy
        self._choices.clear()

    def _tell_terms(self, policy: RatePolicy) -> None:
        """Every server here learns of its tenants: weights and bursts, of new ones too."""
        whole = count_whole(servers_of(policy), policy.servers, self.servers)
        for tenant, terms in terms_of(policy).items():
            index = self._promises.set(tenant, terms, whole[tenant])
            for server in self.servers.values():
                server.set_terms(tenant, terms.weight, self._promises.burst_ns(index))

    # -- deciding ---------------------------------------------------------------------------

    def at(self, server: str) -> ServerDecider:
        """For whoever knows where its data is: the same, at that server alone. It can be given a front
        door of its own."""
        if server not in self.servers:
            here = ", ".join(self.servers) or "none"
            raise UsageError(f"server {server!r} of {self.name} does not run on this node (here: {here})")
        if server not in self._doors:
            self._doors[server] = ServerDecider(self, self.servers[server])
        return self._doors[server]

    def is_ready(self) -> bool:
        return any(server.is_ready() for server in self.servers.values())

    def most(self, ticket: Ticket) -> int | None:
        return self.most_at(ticket.tenant, self.find_servers(ticket.tenant))

    def most_at(self, tenant: str, servers: tuple[Dispatcher, ...]) -> int:
        """A request goes to one server, which does no more than its capacity in a period."""
        terms = self._policy.tenants[tenant]
        limit = COST_MAX if terms.limit is None else terms.limit.per(self._policy.period_ns)
        given = [self._policy.servers[server.book.name].capacity for server in servers]
        can = [COST_MAX if rate is None else rate.per(self._policy.period_ns) for rate in given]
        return min(limit, max(1, *can) if can else limit, COST_MAX)

    def decide(self, ticket: Ticket) -> None:
        servers = self.find_servers(ticket.tenant)
        if servers:
            decide_among(servers, ticket)
        else:
            ticket.give(self.refuse_elsewhere(ticket.tenant))

    def find_servers(self, tenant: str) -> tuple[Dispatcher, ...]:
        """The servers here that the tenant may use."""
        found = self._choices.get(tenant)
        if found is None:
            allowed = self._policy.tenants[tenant].servers
            every = self.servers.values()
            found = tuple(s for s in every if allowed is None or s.book.name in allowed)
            self._choices[tenant] = found
        return found

    def refuse_elsewhere(self, tenant: str) -> Refused:
        if not self.servers:
            return Refused(f"no server of {self.name} runs on this node; ask one of the nodes that do")
        allowed = ", ".join(self._policy.tenants[tenant].servers or ())
        return Refused(f"{tenant} may use {allowed}, and none of them runs on this node")

    def patience_ns(self, ticket: Ticket) -> int:
        server: Dispatcher = ticket.place[0]
        return server.patience_ns(ticket)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown:
        return withdraw(ticket)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        granted.data.server.take_back(granted.data, unused)

    def finish(self, granted: Granted) -> None:
        granted.data.server.finish(granted.data)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        if granted is not None:
            charge: Charge = granted.data
            charge.server.observe(tenant, seen)
            if charge.issue is not None:
                self.ahead.spend(charge.issue, seen.arrived)
        else:
            for server in self.find_servers(tenant)[:1]:
                server.observe(tenant, seen)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self.observe(tenant, granted, seen)
        charge: Charge = granted.data
        if charge.issue is not None:
            self.ahead.end(charge.issue)
        if unspent:
            charge.server.take_back(charge, unspent)

    # -- telling ----------------------------------------------------------------------------

    def explain(self, tenant: str) -> Explanation:
        terms = _find_terms(self._policy, self._policy.tenant(tenant))
        return self._telling.explain(tenant, terms, self._policy)

    def statistics(self) -> RateStatistics:
        policy = self._policy
        return self._telling.count(lambda tenant: _find_terms(policy, policy.tenants[tenant]), policy)


class ServerDecider(Decider):
    """One server of a rate, which runs and counts as a part of it."""

    kind = RateDecider.kind
    offers = RateDecider.offers

    def __init__(self, rate: RateDecider, server: Dispatcher) -> None:
        self.name = rate.name
        self._rate = rate
        self._server = server

    async def reconfigure(self, policy: RatePolicy) -> None:
        """The rate itself is told."""

    def is_ready(self) -> bool:
        return self._server.is_ready()

    def most(self, ticket: Ticket) -> int | None:
        return self._rate.most_at(ticket.tenant, (self._server,))

    def decide(self, ticket: Ticket) -> None:
        if self._server in self._rate.find_servers(ticket.tenant):
            decide_among((self._server,), ticket)
        else:
            ticket.give(Refused(f"{ticket.tenant} may not use {self._server.book.name} of {self.name}"))

    def patience_ns(self, ticket: Ticket) -> int:
        return self._server.patience_ns(ticket)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown:
        return withdraw(ticket)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        self._rate.take_back(tenant, granted, unused)

    def finish(self, granted: Granted) -> None:
        self._rate.finish(granted)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        self._rate.observe(tenant, granted, seen)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self._rate.end_lot(tenant, granted, seen, unspent)

    def explain(self, tenant: str) -> Explanation:
        return self._rate.explain(tenant)

    def statistics(self) -> RateStatistics:
        return self._rate.statistics()


async def open_server(resource: Resource, server: str) -> Resource:
    """A front door to one server of a rate, for programs that know where their data is."""
    rate = resource.decider
    if not isinstance(rate, RateDecider):
        raise UsageError(f"{resource.name} is of kind {resource.kind}: a rate of this process has servers")
    door = Resource(rate.world, rate.at(server), resource.policy)
    await door.start()
    return door
