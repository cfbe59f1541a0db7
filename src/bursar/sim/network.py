"""A network that loses, repeats, delays, reorders, cuts and clogs, and lies about nothing else.

Messages are encoded and decoded as on a real wire, so no two nodes share an object. `Fabric` is
the network as a whole, `Port` one life's end of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from bursar.errors import BursarError, NetworkError, NoAnswerError, RemoteError, UnreachableError, UsageError
from bursar.sim.chance import Chance, draw_ns, happens
from bursar.sim.clock import DriftingClock
from bursar.sim.faults import Faults
from bursar.sim.forgery import Forgery
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.packets import Link, Packet
from bursar.sim.trace import History
from bursar.world import MESSAGE_MAX_BYTES, MICROSECOND_NS, MILLISECOND_NS, Handler, Message

LATENCY_MIN_NS = 50 * MICROSECOND_NS
LATENCY_MAX_NS = 1 * MILLISECOND_NS

PARTING = 0.8
"""How often a node is told that a connection is gone, where it is."""

_encode = msgspec.msgpack.Encoder().encode


@lru_cache(maxsize=256)
def _decoder(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(messages)


class Fabric:
    """All links between all nodes. Faults change when the run heals."""

    def __init__(self, loop: VirtualLoop, chance: Chance, history: History, faults: Faults) -> None:
        self.faults = faults
        self.struck: Counter[str] = Counter()
        self.names: tuple[str, ...] = ()
        self.ports: dict[str, Port] = {}
        self.cut_links: dict[Link, int] = {}
        self._loop = loop
        self._history = history
        self._clogged_until: dict[Link, int] = {}
        self._last_arrival: dict[Link, int] = {}
        self._latency = chance.stream("network/latency")
        self._loss = chance.stream("network/loss")
        self._duplicate = chance.stream("network/duplicate")
        self._reorder = chance.stream("network/reorder")
        self._slow = chance.stream("network/slow")
        self._parting = chance.stream("network/parting")
        self.forgery = Forgery(self.ports, self._deliver_forged)
        self.refusal = chance.stream("network/refusal")

    def strikes(self, stream: random.Random, fault: str) -> bool:
        """Whether this fault of `Faults` happens now; if so it is counted, so that a run can say what went
        wrong in it and not only what might have."""
        if not happens(stream, getattr(self.faults, fault)):
            return False
        self.struck[fault] += 1
        return True

    def cut(self, links: list[Link]) -> Callable[[], None]:
        """Lose everything on these links, until the function returned is called."""
        for link in links:
            self.cut_links[link] = self.cut_links.get(link, 0) + 1
            self._part(*link)
        return lambda: self._mend(links)

    def lose(self, name: str) -> None:
        """A node is gone, and with it its connections: most of the others find out at once."""
        for other in self.names:
            if other != name:
                self._part(other, name)

    def _part(self, name: str, peer: str) -> None:
        if self._parting.random() < PARTING:
            when_ns = self._loop.now_ns + draw_ns(self._parting, LATENCY_MIN_NS, LATENCY_MAX_NS)
            self._loop.call_at_ns(when_ns, self._tell_parted, name, peer, context=nobody())

    def _tell_parted(self, name: str, peer: str) -> None:
        if self.alive(name):
            self.ports[name].lose(peer)

    def _mend(self, links: list[Link]) -> None:
        for link in links:
            count = self.cut_links.get(link, 0) - 1
            if count > 0:
                self.cut_links[link] = count
            else:
                self.cut_links.pop(link, None)

    def clog(self, link: Link, until_ns: int) -> None:
        self._clogged_until[link] = max(until_ns, self._clogged_until.get(link, 0))

    def heal(self) -> None:
        """No more faults; what is under way arrives."""
        self.faults = Faults()
        self.cut_links.clear()
        self._clogged_until.clear()

    def alive(self, name: str) -> bool:
        port = self.ports.get(name)
        return port is not None and not port.life.dead

    def is_from_member(self, packet: Packet) -> bool:
        """Whether the sender has proved that it is a node of the fleet."""
        return not packet.forged

    def _deliver_forged(self, packet: Packet) -> None:
        self.struck["forgeries"] += 1
        said = packet.data.hex()
        self._history.add(
            "network", "forged", sender=packet.sender, to=packet.to, topic=packet.topic, data=said
        )
        self._loop.call_at_ns(self._loop.now_ns + LATENCY_MIN_NS, self._arrive, packet, context=nobody())

    def transmit(self, packet: Packet) -> None:
        if self.faults.forgeries:
            self.forgery.overhear(packet)
        if self._is_cut(packet) or self._is_lost(packet):
            return
        if not packet.is_reply and self.strikes(self._duplicate, "duplicate"):
            self._schedule(packet)
            self._schedule(replace(packet, muted=packet.call != 0))
        else:
            self._schedule(packet)

    def _is_cut(self, packet: Packet) -> bool:
        if packet.link not in self.cut_links:
            return False
        self._history.add("network", "cut", sender=packet.sender, to=packet.to, topic=packet.topic)
        return True

    def _is_lost(self, packet: Packet) -> bool:
        if not self.strikes(self._loss, "loss"):
            return False
        self._history.add("network", "lost", sender=packet.sender, to=packet.to, topic=packet.topic)
        return True

    def _schedule(self, packet: Packet) -> None:
        when_ns = self._loop.now_ns + draw_ns(self._latency, LATENCY_MIN_NS, LATENCY_MAX_NS)
        if self.strikes(self._slow, "slow"):
            when_ns += draw_ns(self._slow, 0, self.faults.slow_ns)
        if not self.strikes(self._reorder, "reorder"):
            when_ns = max(when_ns, self._last_arrival.get(packet.link, 0))
            self._last_arrival[packet.link] = when_ns
        self._loop.call_at_ns(when_ns, self._arrive, packet, context=nobody())

    def _arrive(self, packet: Packet) -> None:
        clogged_until_ns = self._clogged_until.get(packet.link, 0)
        if clogged_until_ns > self._loop.now_ns:
            self._loop.call_at_ns(clogged_until_ns, self._arrive, packet, context=nobody())
        elif self.alive(packet.to) and not self._is_cut(packet):
            self.ports[packet.to].take(packet)


@lru_cache(maxsize=1)
def nobody() -> contextvars.Context:
    """A context that belongs to no life: what is under way outlives its sender."""
    return contextvars.Context()


class Port:
    """World's `network` of one life."""

    def __init__(
        self,
        fabric: Fabric,
        loop: VirtualLoop,
        life: Life,
        clock: DriftingClock,
        history: History,
        spawn: Callable[[Any, str], Any],
    ) -> None:
        self.life = life
        self._fabric = fabric
        self._loop = loop
        self._clock = clock
        self._history = history
        self._spawn = spawn
        self._who = f"{life.name}/{life.incarnation}"
        self._served: dict[str, tuple[Any, Handler, bool]] = {}
        self._calls: dict[int, asyncio.Future[Packet]] = {}
        self._called = 0
        self._observers: list[Callable[[str, bool], None]] = []

    def observe(self, observer: Callable[[str, bool], None]) -> None:
        self._observers.append(observer)

    def lose(self, peer: str) -> None:
        """The connection to the peer is gone."""
        self._spawn(self._tell_observers(peer), "network.observers")

    async def _tell_observers(self, peer: str) -> None:
        for observer in self._observers:
            observer(peer, False)

    def serve(self, topic: str, requests: Any, handler: Handler, *, anyone: bool = False) -> None:
        self.life.check()
        self._served[topic] = (_decoder(requests), handler, anyone)

    def is_for_anyone(self, topic: str) -> bool:
        return topic in self._served and self._served[topic][2]

    def send(self, peer: str, topic: str, message: Message) -> None:
        self.life.check()
        self._fabric.transmit(Packet(self.life.name, peer, topic, encode(message)))

    def peers(self) -> Sequence[str]:
        self.life.check()
        return tuple(name for name in self._fabric.names if name != self.life.name)

    async def call(self, peer: str, topic: str, message: Message, reply: Any, timeout_ns: int) -> Any:
        self.life.check()
        data = encode(message)
        deadline_ns = self._clock.true_ns(self._clock.now() + timeout_ns)
        await self._refuse_unreachable(peer)
        # A number that no other life of this node uses, so that an old reply answers nothing.
        self._called += 1
        number = self.life.incarnation << 32 | self._called
        future = self._calls[number] = self._loop.create_future()
        timer = self._loop.call_at_ns(deadline_ns, _give_up, future, f"{peer} did not answer {topic}")
        try:
            self._fabric.transmit(Packet(self.life.name, peer, topic, data, number))
            return _read_reply(await future, reply)
        finally:
            timer.cancel()
            del self._calls[number]

    async def _refuse_unreachable(self, peer: str) -> None:
        """A peer that is down or cut off is found out at once, or not at all."""
        link = (self.life.name, peer)
        reachable = self._fabric.alive(peer) and link not in self._fabric.cut_links
        if not reachable and (peer not in self._fabric.ports or self._fabric.refusal.random() < 0.5):
            await asyncio.sleep(LATENCY_MAX_NS / 1e9)
            raise UnreachableError(f"{peer} cannot be reached: nothing was sent")

    def take(self, packet: Packet) -> None:
        """A packet arrived here."""
        if packet.is_reply:
            future = self._calls.get(packet.call)
            if future is not None and not future.done():
                future.set_result(packet)
            return
        served = self._served.get(packet.topic)
        if served is None:
            self._answer(packet, f"{packet.to} does not serve {packet.topic}".encode(), is_error=True)
            return
        decoder, handler, anyone = served
        if not anyone and not self._fabric.is_from_member(packet):
            self._history.add(self._who, "refused", sender=packet.sender, topic=packet.topic)
            return
        try:
            message = decoder.decode(packet.data)
        except msgspec.MsgspecError as error:
            self._answer(packet, f"{packet.topic}: not a request: {error}".encode(), is_error=True)
            return
        self._history.add(self._who, "received", sender=packet.sender, message=message)
        self._spawn(self._handle(packet, handler, message), packet.topic)

    async def _handle(self, packet: Packet, handler: Handler, message: Any) -> None:
        try:
            reply = await handler(packet.sender, message)
        except BursarError as error:
            self.life.check()
            self._history.add(self._who, "handler.failed", topic=packet.topic, error=repr(error))
            self._answer(packet, str(error).encode(), is_error=True)
            return
        if reply is not None:
            self._answer(packet, encode(reply))

    def _answer(self, packet: Packet, data: bytes, is_error: bool = False) -> None:
        self.life.check()
        if packet.call and not packet.muted and not packet.forged:
            answer = Packet(packet.to, packet.sender, packet.topic, data, packet.call, True, is_error)
            self._fabric.transmit(answer)


def encode(message: Message) -> bytes:
    """As on the wire. Raises UsageError for what is too large or no message."""
    if not isinstance(message, Message):
        raise UsageError(f"{message!r:.80} is no Message: derive it from bursar.world.Message")
    data = _encode(message)
    if len(data) > MESSAGE_MAX_BYTES:
        raise UsageError(
            f"{type(message).__name__} has {len(data)} bytes, at most {MESSAGE_MAX_BYTES} are sent: split it"
        )
    return data


def _read_reply(packet: Packet, reply: Any) -> Any:
    if packet.is_error:
        raise RemoteError(packet.data.decode())
    try:
        return _decoder(reply).decode(packet.data)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"{packet.sender} answered {packet.topic} with another type: {error}") from error


def _give_up(future: asyncio.Future[Packet], why: str) -> None:
    error: NetworkError = NoAnswerError(f"{why} in time: it may have happened")
    if not future.done():
        future.set_exception(error)
