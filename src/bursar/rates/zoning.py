"""A node's part in a rate with zones: what it does in each zone of which it runs a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from bursar.book import Effects, Send
from bursar.courier import Alarm
from bursar.policy.values import RatePolicy
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import ControllerCourier, controller_topic, find_nodes, server_topic
from bursar.rates.messages import Ack, Grant, Life, Part, Report, Started, ToServer, Wanted
from bursar.rates.placement import Placement
from bursar.rates.standing import Standing
from bursar.rates.terms import PolicyTerms
from bursar.rates.zones import ALONE_PERIODS, ZoneBook
from bursar.world import MILLISECOND_NS, SECOND_NS, Message, World

LONGER = 2.5
"""How much longer the interval is at which tokens move between zones: half a period, where the zones' own
is a fifth."""

ANNOUNCE_NS = 50 * MILLISECOND_NS


def find_interval(policy: RatePolicy) -> int:
    """Between two rounds of the global controller."""
    return min(policy.period_ns, int(LONGER * policy.interval_ns))


def name_zone(resource: str, zone: str | None) -> str:
    """The resource as the zone's controller and servers name it to one another, and in the store."""
    return resource if zone is None else f"{resource}@{zone}"


def make_standing(zones: tuple[str, ...]) -> Standing:
    """Each zone has the same part in every period, whichever are up."""

    def number(lives: Iterable[Life]) -> dict[Life, Part]:
        return {life: Part(zones.index(life[0]), len(zones)) for life in lives if life[0] in zones}

    return Standing(number, ALONE_PERIODS)


class Hosts(dict[str, str]):
    """On which node the leader of each zone was last heard; before that, one that has a server of it."""

    def hear(self, sender: str, message: Message) -> None:
        if isinstance(message, Started | Report | Ack | Wanted) and message.server in self:
            self[message.server] = sender


class Zone:
    """One zone at a node that may come to lead it: its controller, and who speaks for it above."""

    def __init__(
        self,
        world: World,
        resource: str,
        zone: str,
        policy: RatePolicy,
        terms: PolicyTerms,
        make: type[ControllerBook] = ControllerBook,
        make_zone: type[ZoneBook] = ZoneBook,
    ) -> None:
        self._world = world
        self._resource = resource
        self._names: tuple[str, ...] = ()
        self._leads = asyncio.Event()
        self._wanted_at = 0
        self.name = zone
        self.place = Placement({})
        self.book = make(
            f"{world.name}.{world.incarnation}",
            (),
            terms,
            self.place,
            period_ns=policy.period_ns,
            interval_ns=policy.interval_ns,
            drift_ppm=policy.drift_ppm,
            adaptive=policy.adaptive_interval,
            digest=terms.digest,
        )
        self.above = make_zone(
            zone,
            (policy.zones.index(zone), len(policy.zones)),
            self.book,
            self.place.capacity_rate,
            period_ns=policy.period_ns,
            answer_ns=policy.interval_ns // 2,
        )
        self.book.above = self.above
        self.book.find_short = lambda: {**self.place.shortfall, **self.above.short}
        self._patience_ns = 2 * find_interval(policy)
        self.courier = ControllerCourier(world, name_zone(resource, zone), self.book, self.find_nodes)
        self.courier.heard = self._pass_on
        self.courier.performed = self._look
        self._alarm = Alarm(world, f"rate/{resource}/{zone}", self.above.wake_at, self._tick)

    def set_servers(self, capacities: Mapping[str, float | None], local: Iterable[str]) -> None:
        self._names = tuple(capacities)
        self.place.set_capacities(capacities)
        self.book.set_servers(capacities, local)
        self.courier.hosts = dict.fromkeys(local, self._world.name)

    def set_interval(self, policy: RatePolicy) -> None:
        self.book.set_interval(policy.interval_ns, policy.adaptive_interval)
        self.courier.interval_ns = policy.interval_ns

    def find_nodes(self, world: World) -> list[str]:
        """Whoever may lead the zone: the nodes that run its servers, which have their names."""
        return [node for node in find_nodes(world) if node == world.name or node in self._names]

    def start(self) -> None:
        self._world.network.serve(server_topic(self._resource, self.name), ToServer, self._receive)
        self.courier.start()
        self._alarm.start()
        self._world.spawn(self._announce(), f"rate/{self._resource}/{self.name}.announce")

    # -- what goes to and fro

    def _send(self, node: str, message: Message) -> None:
        self._world.network.send(node, controller_topic(self._resource), message)

    async def _receive(self, sender: str, message: Message) -> None:
        now = self._world.clock.now()
        self._perform(self.above.receive(now, sender, message))
        if isinstance(message, Grant):
            self._follow(now)
        self._alarm.set()

    def _tick(self, now: int) -> None:
        if self.above.begin_next(now):
            self._world.trace("rate.zone.alone", zone=self.name, period=self.above.period)
        self._follow(now)

    def _follow(self, now: int) -> None:
        """The zone has something else now."""
        if self.above.is_new():
            self.book.open_now()
        self.courier.perform(self.book.place_anew(now))

    def _look(self) -> None:
        """The zone's controller did something: perhaps what is to be acknowledged above is done."""
        if self.above.look():
            self._leads.set()
        self._perform(self.above.acknowledge(self._world.clock.now()))
        self._alarm.set()

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.to, effect.message)

    def _pass_on(self, sender: str, message: Message) -> None:
        """A tenant asks where it has no tokens, and perhaps the zone has none either."""
        leader, now = self.above.leader, self._world.clock.now()
        due = now >= self._wanted_at + self._patience_ns // 4
        if isinstance(message, Wanted) and self.book.leading and leader is not None and due:
            self._wanted_at = now
            self._send(leader, Wanted(self.name))

    async def _announce(self) -> None:
        """While nobody asks, though this node leads the zone: to whoever may lead above."""
        pause_ns = ANNOUNCE_NS
        while True:
            await self._leads.wait()
            if not self.above.look():
                self._leads.clear()
            elif self._is_asked():
                pause_ns = ANNOUNCE_NS
                await self._world.clock.sleep(self._patience_ns)
            else:
                for node in find_nodes(self._world):
                    self._send(node, Started(self.name))
                await self._world.clock.sleep(pause_ns)
                pause_ns = min(2 * pause_ns, SECOND_NS)

    def _is_asked(self) -> bool:
        asked_at = self.above.asked_at
        return asked_at is not None and self._world.clock.now() <= asked_at + self._patience_ns
