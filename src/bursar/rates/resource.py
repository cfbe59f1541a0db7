"""A rate as the front door sees it: servers with queues, and a controller that may lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.live import LIVE
from bursar.policy.values import RatePolicy, Server
from bursar.rates.blocks import JOURNALLED_ABOVE_NS, Blocks
from bursar.rates.charges import Charge
from bursar.rates.choices import decide_among, withdraw
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import COMPACT_BYTES, ControllerCourier, ServerCourier, find_nodes
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.placement import Placement
from bursar.rates.promises import Promises, is_whole
from bursar.rates.roles import choose_local, find_life, find_servers
from bursar.rates.scheduler import COST_MAX, Scheduler, compile_kernels
from bursar.rates.server import FREE, ServerBook
from bursar.rates.statistics import RateStatistics
from bursar.rates.telling import Telling
from bursar.rates.terms import LiftedTerms, PolicyTerms, Terms
from bursar.rates.zones import ZoneBook
from bursar.rates.zoning import Hosts, Zone, find_interval, make_standing, name_zone
from bursar.resource import Ahead, Decider, Explanation, Granted, Offers, Seen, Ticket, check_change
from bursar.resource.door import Resource
from bursar.resource.strangers import Strangers
from bursar.world import SECOND_NS, World


def open_resource(world: World, name: str, policy: RatePolicy) -> Resource:
    """This node's part of the resource: the servers that run on no other node, and a controller."""
    compile_kernels()
    return Resource(world, RateDecider(world, name, policy), policy)


def make_blocks(world: World, policy: RatePolicy) -> Blocks | None:
    """What this life of a server journals, if periods are so long."""
    if policy.period_ns <= JOURNALLED_ABOVE_NS:
        return None
    return Blocks(world.incarnation, period_ns=policy.period_ns, origin=world.clock.origin())


def _read_interval(policy: RatePolicy) -> tuple[int, bool]:
    return policy.interval_ns, policy.adaptive_interval


def _read_capacity(server: Server) -> float | None:
    return None if server.capacity is None else float(server.capacity.per_second)


class RateDecider(Decider):
    """Acquiring is waiting for one's turn at one of this node's servers.

    `server_book`, `controller_book`, `zone_book` and `blocks` make the books, `dispatched` is told of all
    that is charged: for whoever has to see, or to break, what is promised."""

    kind = "rate"
    offers = Offers(lots=True)
    strangers: Strangers

    def __init__(
        self,
        world: World,
        name: str,
        policy: RatePolicy,
        *,
        server_book: type[ServerBook] = ServerBook,
        controller_book: type[ControllerBook] = ControllerBook,
        zone_book: type[ZoneBook] = ZoneBook,
        blocks: Callable[[World, RatePolicy], Blocks | None] = make_blocks,
        compact_bytes: int = COMPACT_BYTES,
        dispatched: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.name = name
        self.world = world
        self.policy = policy
        self._terms = PolicyTerms(policy)
        self._server_book = server_book
        self._make_blocks = blocks
        self._compact_bytes = compact_bytes
        self._dispatched = dispatched
        self.ahead = Ahead()
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        self._place = Placement({})
        self._promises = Promises(policy.period_ns)
        self.servers: dict[str, Dispatcher] = {}
        self._couriers: dict[str, ServerCourier] = {}
        self._runs: Counter[str] = Counter()
        self._running = False
        self._among_others = False
        self._swept: dict[str, int] = {}
        self._choices: dict[str, tuple[Dispatcher, ...]] = {}
        self._doors: dict[str, ServerDecider] = {}
        self._where: dict[str, str | None] = {}
        self.zones: dict[str, Zone] = {}
        self._make_zone = partial(Zone, world, name, make=controller_book, make_zone=zone_book)
        self.book = self._make_controller(controller_book)
        self.book.find_short = lambda: self._place.shortfall
        self._controller = ControllerCourier(world, name, self.book)
        if policy.zones:
            hosts = Hosts({zone: servers[0] for zone, servers in policy.list_zones().items()})
            self._controller.hosts, self._controller.heard = hosts, hosts.hear
        self._telling = Telling(world, name, self.book, self._place, self.servers, self._controller.rounds)
        self._arrange()

    def _make_controller(self, make: type[ControllerBook]) -> ControllerBook:
        """Of the servers, or of the zones if there are any."""
        policy = self.policy
        return make(
            f"{self.world.name}.{self.world.incarnation}",
            policy.zones or policy.servers,
            LiftedTerms(self._terms) if policy.zones else self._terms,
            self._place,
            period_ns=policy.period_ns,
            interval_ns=find_interval(policy) if policy.zones else policy.interval_ns,
            drift_ppm=policy.drift_ppm,
            adaptive=policy.adaptive_interval,
            digest=self._terms.digest,
            standing=make_standing(policy.zones) if policy.zones else None,
        )

    async def start(self) -> None:
        self._running = True
        for server in self.servers:
            self._start_server(server)
        for zone in self.zones.values():
            zone.start()
        self._controller.start()
        self.world.fleet.follow(self._rearrange)

    async def stop(self) -> None:
        """The servers here hand back what they have, and another node leads, if this one did."""
        self._running = False
        for courier in self._couriers.values():
            courier.leave()
        for zone in self.zones.values():
            await zone.courier.resign()
        await self._controller.resign()

    def _look_up(self) -> None:
        """A server is asked what it has seen: so are those who hold lots, first."""
        self.collect()
        for door in self._doors.values():
            door.collect()
        for server in self.servers.values():
            server.look_up()

    async def reconfigure(self, policy: RatePolicy) -> None:
        """New terms hold from the next period on; who has a server, and how it is served, at once."""
        before = self.policy
        check_change(before, policy, LIVE["rate"])
        self.policy, self._terms = policy, PolicyTerms(policy)
        self.strangers.part(policy.tenants)
        terms = LiftedTerms(self._terms) if policy.zones else self._terms
        self.book.reconfigure(terms, self._terms.digest, policy.drift_ppm)
        if _read_interval(before) != _read_interval(policy):
            interval_ns = find_interval(policy) if policy.zones else policy.interval_ns
            self.book.set_interval(interval_ns, policy.adaptive_interval)
            self._controller.interval_ns = interval_ns
            for zone in self.zones.values():
                zone.set_interval(policy)
        for zone in self.zones.values():
            zone.book.reconfigure(self._terms, self._terms.digest, policy.drift_ppm)
        for server in self.servers.values():
            server.without_bursar = policy.without_bursar
            server.book.set_terms(self._terms.find, self._terms.digest)
            if before.pacing != policy.pacing:
                server.book.scheduler.set_pacing(policy.period_ns if policy.pacing else None)
        self._arrange()
        for server in list(self.servers.values()):
            server.pump()

    # -- servers ----------------------------------------------------------------------------

    def _rearrange(self) -> None:
        """Nodes came or went."""
        if self._running:
            self._arrange()

    def _arrange(self) -> None:
        """See that the servers run here that should, and that the controller knows all there are."""
        every = find_servers(self.world, self.policy)
        self._among_others |= len(self.world.fleet.nodes()) > 1
        here = choose_local(self.world, self.policy, every, among_others=self._among_others)
        where = {name: server.zone for name, server in every.items()}
        for server in [name for name in self.servers if name not in here or self._where[name] != where[name]]:
            self._retire(server)
        self._where = where
        capacities = {server: _read_capacity(terms) for server, terms in every.items()}
        # What a zone can do, its leader says.
        self._place.set_capacities(dict.fromkeys(self.policy.zones) if self.policy.zones else capacities)
        self._arrange_zones(capacities, here)
        for server in here:
            if server not in self.servers:
                self._add_server(server, capacities[server])
            self.servers[server].set_capacity(capacities[server])
        if not self.policy.zones:
            self.book.set_servers(every, self.servers)
            self._controller.hosts = dict.fromkeys(self.servers, self.world.name)
        self._tell_terms(every)

    def _arrange_zones(self, capacities: Mapping[str, float | None], here: Collection[str]) -> None:
        """This node may lead the zones of its servers."""
        for name, servers in self.policy.list_zones().items():
            local = [server for server in servers if server in here]
            if local and name not in self.zones:
                self.zones[name] = self._make_zone(name, self.policy, self._terms)
                if self._running:
                    self.zones[name].start()
            if name in self.zones:
                self.zones[name].set_servers({server: capacities[server] for server in servers}, local)

    def _add_server(self, server: str, capacity: float | None) -> None:
        self.servers[server] = dispatcher = self._make_server(server, capacity)
        for tenant in self._promises.tenants:
            index = self._promises.index(tenant)
            if index is not None:
                dispatcher.set_terms(tenant, self._promises.terms(index), self._promises.burst_ns(index))
        if self._running:
            self._start_server(server)

    def _make_server(self, server: str, capacity: float | None) -> Dispatcher:
        policy, run = self.policy, self._runs[server]
        self._runs[server] += 1
        numbers = len(self._promises.tenants)
        scheduler = Scheduler([1] * numbers, period_ns=policy.period_ns if policy.pacing else None)
        world = replace(self.world, incarnation=find_life(self.world, server, run))
        # A server that comes back to a node keeps no second journal there: it begins anew, with nothing.
        blocks = self._make_blocks(world, policy) if run == 0 else None
        book = self._server_book(
            server, world.incarnation, [FREE] * numbers, scheduler, blocks, period_ns=policy.period_ns
        )
        book.set_terms(self._terms.find, self._terms.digest)
        return Dispatcher(
            self.world,
            book,
            period_ns=policy.period_ns,
            capacity=capacity,
            without_bursar=policy.without_bursar,
            promises=self._promises,
            ahead=self.ahead,
            dispatched=self._dispatched,
        )

    def _start_server(self, server: str) -> None:
        dispatcher = self.servers[server]
        dispatcher.start()
        zone = self.policy.servers[server].zone if server in self.policy.servers else None
        self._couriers[server] = courier = ServerCourier(
            self.world,
            name_zone(self.name, zone),
            dispatcher.book,
            lambda: self._changed(dispatcher),
            self._look_up,
            compact_bytes=self._compact_bytes,
            find_nodes=find_nodes if zone is None else self.zones[zone].find_nodes,
        )
        dispatcher.wanted = courier.tell_wanted
        courier.start()

    def _retire(self, server: str) -> None:
        """The server runs here no more. Who waits for it waits for another."""
        retired = self.servers.pop(server)
        courier = self._couriers.pop(server, None)
        if courier is not None:
            courier.leave()
        self._doors.pop(server, None)
        self._choices.clear()
        for ticket in retired.retire():
            self.decide(ticket)

    def _changed(self, server: Dispatcher) -> None:
        """A server's tokens are others now."""
        server.pump()
        if server.book.openings != self._swept.get(server.book.name):
            self._swept[server.book.name] = server.book.openings
            self._forget_idle(server)

    # -- tenants ----------------------------------------------------------------------------

    def _tell_terms(self, servers: Collection[str]) -> None:
        """Those who ask here have these terms now."""
        self._choices.clear()
        for tenant in self._promises.tenants:
            terms = self._terms.find(tenant) if tenant else None
            if terms is not None:
                self._promise(tenant, terms, servers)

    def _promise(self, tenant: str, terms: Terms, servers: Collection[str]) -> None:
        index = self._promises.set(tenant, terms, is_whole(terms, servers, self.servers))
        for server in self.servers.values():
            server.set_terms(tenant, terms, self._promises.burst_ns(index))

    def _admit(self, tenant: str) -> tuple[Dispatcher, ...]:
        """Somebody asks for a tenant for the first time, or again: from now on it is counted here."""
        terms = self._terms.find(tenant)
        if terms is None:
            return ()
        self._promise(tenant, terms, self.book.names)
        self._choices[tenant] = found = self._find_allowed(terms)
        return found

    def _find_allowed(self, terms: Terms) -> tuple[Dispatcher, ...]:
        every, allowed = self.servers.values(), terms.servers
        return tuple(server for server in every if allowed is None or server.book.name in allowed)

    def _forget_idle(self, server: Dispatcher) -> None:
        """Whoever asked for nothing at any server here, for a whole period, costs nothing from now on."""
        for index in sorted(server.book.idle):
            if all(each.may_forget(index) for each in self.servers.values()):
                self._forget(index)
        self.strangers.keep(lambda tenant: self._promises.index(tenant) is not None)

    def _forget(self, index: int) -> None:
        tenant = self._promises.tenants[index]
        listed = tenant in self.policy.tenants
        for server in self.servers.values():
            server.forget(index, keep=listed)
        self._promises.forget(index)
        self._choices.pop(tenant, None)

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
        terms = self._terms[ticket.tenant]
        return self.most_at(terms, self._choices.get(ticket.tenant) or self._find_allowed(terms))

    def most_of(self, tenant: str, server: Dispatcher) -> int:
        return self.most_at(self._terms[tenant], (server,))

    def most_at(self, terms: Terms, servers: tuple[Dispatcher, ...]) -> int:
        """A request goes to one server, which does no more than its capacity in a period."""
        period_s = self.policy.period_ns / SECOND_NS
        rates = [server.capacity.rate for server in servers]
        can = [COST_MAX if rate is None else int(rate * period_s + 1e-6) for rate in rates]
        limit = COST_MAX if terms.limit is None else terms.limit
        return min(limit, max(1, *can) if can else limit, COST_MAX)

    def decide(self, ticket: Ticket) -> None:
        servers = self._choices.get(ticket.tenant) or self._admit(ticket.tenant)
        if servers:
            decide_among(servers, ticket)
        else:
            ticket.give(self.refuse_elsewhere(ticket.tenant))

    def find_servers(self, tenant: str) -> tuple[Dispatcher, ...]:
        """The servers here that the tenant may use."""
        found = self._choices.get(tenant)
        return self._admit(tenant) if found is None else found

    def refuse_elsewhere(self, tenant: str) -> Refused:
        if not self.servers:
            return Refused(f"no server of {self.name} runs on this node; ask one of the nodes that do")
        terms = self._terms.find(tenant)
        allowed = ", ".join((terms.servers if terms else None) or ())
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
        self.policy.tenant(tenant)  # who is not known is told who is
        return self._telling.explain(tenant, self._terms[tenant], self.policy)

    def statistics(self) -> RateStatistics:
        terms, policy = self._terms, self.policy
        tenants = {**policy.tenants, **dict.fromkeys(filter(None, self._promises.tenants))}
        return self._telling.count(terms.__getitem__, tenants, policy)


class ServerDecider(Decider):
    """One server of a rate, which runs and counts as a part of it."""

    kind = RateDecider.kind
    offers = RateDecider.offers

    def __init__(self, rate: RateDecider, server: Dispatcher) -> None:
        self.name = rate.name
        self.strangers = rate.strangers
        self._rate = rate
        self._server = server

    async def reconfigure(self, policy: RatePolicy) -> None:
        """The rate itself is told."""

    def is_ready(self) -> bool:
        return self._server.is_ready()

    def most(self, ticket: Ticket) -> int | None:
        return self._rate.most_of(ticket.tenant, self._server)

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
