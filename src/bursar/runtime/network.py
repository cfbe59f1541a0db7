"""Messages between named nodes over TCP: who may listen, who is connected, who answers what.

A node dials the peers it has addresses for (`routes`), and answers those that dialled it; either
way there is a `Link`, and the newest to a peer is used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import BursarError, CrashedError, UnreachableError, UsageError
from bursar.policy.names import is_loopback
from bursar.policy.values import Tls
from bursar.runtime import eager, frames, identity, logs
from bursar.runtime.admission import Admission, Place
from bursar.runtime.clock import BootClock
from bursar.runtime.frames import FAILURE, REPLY, SEND, Hello
from bursar.runtime.limits import Limits
from bursar.runtime.link import Link, SelfLink, describe_failure
from bursar.runtime.listener import Listener
from bursar.runtime.routes import Address, Dialler
from bursar.runtime.tls import Certificates
from bursar.world import MILLISECOND_NS, SECOND_NS, Handler, Message

CLOSE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Served:
    topic: str
    requests: msgspec.msgpack.Decoder[Any]
    handler: Handler
    anyone: bool


def _whoever(name: str) -> bool:
    return True


class SocketNetwork:
    """Implements `bursar.world.Network`. `secret` is the fleet's: without it this is a client, and nobody
    is a node to it. `is_member` is asked for the name of a peer that has proved it."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        *,
        peers: Mapping[str, str | Address] | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        clock: BootClock | None = None,
        seed: int | None = None,
        secret: bytes = b"",
        is_member: Callable[[str], bool] = _whoever,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.secret = secret
        self.is_member = is_member
        self.limits = limits or Limits()
        self.clock = clock or BootClock()
        self.counts: Counter[str] = Counter()
        self._noted = logs.Sparse(self.clock.now)
        self._admission = Admission(self.limits)
        self._idle: list[Link] = []
        self.certificates = Certificates(tls) if tls else None
        self._served: dict[bytes, Served] = {}
        self._links: dict[Link, None] = {}
        self._peers: dict[str, list[Link]] = {}
        self._dialler = Dialler(self, seed)
        self._observers: list[Callable[[str, bool], None]] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._self: SelfLink | None = None
        self._crashed = False
        for peer, address in (peers or {}).items():
            self.add_route(peer, address)

    def add_route(self, peer: str, address: str | Address, *, any_name: bool = False) -> None:
        """Dial `peer` there from now on."""
        self._dialler.add(peer, address, any_name=any_name)

    def peers(self) -> list[str]:
        """Implements `bursar.world.Network`."""
        return self._dialler.peers()

    def observe(self, observer: Callable[[str, bool], None]) -> None:
        """Implements `bursar.world.Network`."""
        self._observers.append(observer)

    async def listen(self, address: str | Address) -> Address:
        """Take connections there; returns the address with the port that was chosen for port 0."""
        wanted = Address.parse(address) if isinstance(address, str) else address
        if not is_loopback(str(wanted)) and self.certificates is None:
            raise UsageError(
                f"refusing to listen on {wanted} without TLS: anyone who reaches it could speak as any node; "
                "listen on 127.0.0.1, or set tls (docs/security.md)"
            )
        self._listener = Listener(self, self._admission)
        found = await self._listener.open(wanted)
        self.start_sweep()
        return found

    def serve(self, topic: str, requests: Any, handler: Handler, *, anyone: bool = False) -> None:
        self._served[topic.encode()] = Served(topic, frames.decoder_of(requests), handler, anyone)

    async def call(self, peer: str, topic: str, message: Message, reply: Any, timeout_ns: int) -> Any:
        links = self._peers.get(peer)
        link = links[-1] if links else None
        if link is None:
            self._check_alive()
            link = self._own_link() if peer == self.name else self._link_to(peer)
        if link is None:
            began = self.clock.now()
            link = await self._dialler.reach(peer, timeout_ns)
            timeout_ns -= self.clock.now() - began
        if timeout_ns <= 0:
            raise UnreachableError(f"no time left to call {peer}; nothing was sent")
        return await link.call(topic, message, reply, timeout_ns)

    def send(self, peer: str, topic: str, message: Message) -> None:
        self._check_alive()
        frame = frames.encode(SEND, 0, topic, message)
        if peer == self.name:
            self._own_link().send(frame)
            return
        link = self._link_to(peer)
        if not (self._dialler.queue(peer, frame) if link is None else link.send(frame)):
            self.counts["dropped"] += 1

    def _check_alive(self) -> None:
        if self._crashed:
            raise CrashedError(f"node {self.name} is down")

    def _own_link(self) -> Link:
        """A node's messages to itself go the same way, without a socket."""
        if self._self is None:
            self._self = SelfLink(self)
        return self._self

    def _link_to(self, peer: str) -> Link | None:
        links = self._peers.get(peer)
        return links[-1] if links else self._dialler.link_to(peer)

    def is_connected(self, peer: str) -> bool:
        return peer in self._peers

    # What links tell their network.

    def introduce_as(self, *, is_node: bool) -> Hello:
        """What a new link says of this node."""
        nonce = identity.draw_nonce() if is_node and self.secret else b""
        return Hello(frames.VERSION, self.name, self.incarnation, nonce)

    def admit(self, link: Link) -> bool:
        if self._crashed:
            return False
        self._links[link] = None
        self.counts["connections"] += 1
        link.keep_alive()
        return True

    def settle(self, link: Link, *, is_node: bool) -> bool:
        """Whether there is a place for one of those that the link has turned out to be."""
        if link.place is None or self._admission.settle(link.place, is_node=is_node):
            return True
        return self._end_idle_client() and self._admission.settle(link.place, is_node=is_node)

    def _end_idle_client(self) -> bool:
        now = self.clock.now()
        while self._idle:
            link = self._idle.pop()
            if link.is_idle(now) and link.place is not None:
                self.dismiss(link.place)
                link.cut("idle", "others came, and it had said nothing for long")
                return True
        return False

    def dismiss(self, place: Place) -> None:
        self._admission.leave(place)

    def introduce(self, link: Link) -> None:
        links = self._peers.setdefault(link.peer, [])
        links.append(link)
        if len(links) > self.limits.connections_per_peer_max:
            links.pop(0).cut("replaced", "the same peer has opened newer connections")
        if len(links) == 1:
            self._log_peer("peer.connected", link)
            self._tell(link.peer, True)
        self._dialler.introduce(link)

    def forget(self, link: Link) -> None:
        self._links.pop(link, None)
        if link.place is not None:
            self.dismiss(link.place)
        self._dialler.forget(link)
        links = self._peers.get(link.peer, [])
        if link in links:
            links.remove(link)
            if not links:
                del self._peers[link.peer]
                self._log_peer("peer.disconnected", link, why=link.why_closed)
                self._tell(link.peer, False)

    def _log_peer(self, event: str, link: Link, **fields: Any) -> None:
        """Nodes are few; clients may come and go by the thousand."""
        (logs.info if link.proved else logs.debug)(event, node=self.name, peer=link.peer, **fields)

    def _tell(self, peer: str, connected: bool) -> None:
        for observer in self._observers:
            observer(peer, connected)

    def count_cut(self, reason: str, link: Link, why: str) -> None:
        self.counts[f"cut.{reason}"] += 1
        peer = link.peer or "(unknown)"
        self._noted.warning("peer.cut", reason, node=self.name, peer=peer, reason=reason, why=why)

    def note(self, event: str, **fields: Any) -> None:
        """Count it, and log it now and then."""
        self.counts[event] += 1
        self._noted.warning(event, "", node=self.name, **fields)

    def dispatch(self, link: Link, number: int | None, topic: bytes, body: bytes) -> None:
        """Hand a request to its handler; everything that is wrong with it is answered."""
        served = self._served.get(topic)
        if served is None:
            self._refuse(link, number, f"nothing is served on topic {topic.decode(errors='replace')!r}")
            return
        if not served.anyone and not self._is_peer(link):
            self._refuse_stranger(link, number, served.topic)
            return
        try:
            message = served.requests.decode(body)
        except DECODE_ERRORS as error:
            self._refuse(link, number, f"not a message of topic {served.topic!r}: {error}")
            return
        if not link.begin_request():
            self._refuse(link, number, f"more than {self.limits.requests_max} requests are under way")
            return
        work = self._handle(link, number, served, message)
        task = eager.start(link.loop, work)
        if task is not None:
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

    def _is_peer(self, link: Link) -> bool:
        return link.proved and (link.peer == self.name or self.is_member(link.peer))

    def _refuse_stranger(self, link: Link, number: int | None, topic: str) -> None:
        self.note("refused.not_a_member", peer=link.peer, topic=topic)
        self._refuse(link, number, f"{topic!r} is for members of the fleet, and {link.peer} is none")

    def _refuse(self, link: Link, number: int | None, why: str) -> None:
        self.counts["refused"] += 1
        if number is not None:
            link.send(frames.encode(FAILURE, number, "", why[:500]))

    async def _handle(self, link: Link, number: int | None, served: Served, message: Any) -> None:
        frame = None
        try:
            answer = await served.handler(link.peer, message)
            if number is not None:
                frame = frames.encode(REPLY, number, "", answer)
        except Exception as error:  # noqa: BLE001  whatever a handler does, its caller is answered
            frame = self._report(served.topic, number, error)
        finally:
            link.end_request(frame)

    def _report(self, topic: str, number: int | None, error: Exception) -> bytes | None:
        self.counts["handler.failed"] += 1
        if not isinstance(error, BursarError):
            logs.failure("handler.failed", error, node=self.name, topic=topic)
        return None if number is None else frames.encode(FAILURE, number, "", describe_failure(error))

    # The end of the node.

    def reload_certificates(self, *, only_changed: bool = False) -> None:
        """Read them again; whoever's was revoked is cut off."""
        if self.certificates is None or not self.certificates.reload(only_changed=only_changed):
            return
        for link in list(self._links):
            if self.certificates.is_revoked(link.certificate):
                link.cut("revoked", "its certificate was revoked")

    def start_sweep(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """One timer for all connections, rather than one for each frame."""
        bound_ns = min(self.limits.hello_timeout_ns, self.limits.stall_timeout_ns)
        pause_s = max(10 * MILLISECOND_NS, bound_ns // 4) / SECOND_NS
        while True:
            await asyncio.sleep(pause_s)
            now = self.clock.now()
            self._admission.sweep(now)
            self.reload_certificates(only_changed=True)
            for link in list(self._links):
                link.check_stall(now)
            self._idle = [link for link in self._links if link.is_idle(now)]

    def crash(self) -> None:
        """Let go of everything at once: nothing more is said in this node's name."""
        self._crashed = True
        self._peers.clear()
        self._stop_work()
        for link in list(self._links):
            link.abort()

    async def close(self) -> None:
        """Send what is queued, close the connections, stop the handlers: within a second."""
        self._crashed = True
        self._stop_work()
        links = list(self._links)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.closed for link in links], timeout=CLOSE_TIMEOUT_S)
        for link in list(self._links):
            link.abort()

    def _stop_work(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._dialler.stop()
        for task in (self._sweeping, *self._handlers):
            if task is not None:
                task.cancel()
