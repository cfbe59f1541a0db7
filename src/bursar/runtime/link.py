"""One connection: its handshake, its frames, its calls under way, and when it is cut off.

    connected -> (hello from both, and the proof of nodes) -> ready -> closed

A peer that sends garbage, too large a frame, half a frame and then nothing, no hello, or that
does not read what it is sent, is cut off and counted; the node goes on. What bounds it:
`Limits`. Reading stops while the peer does not read our replies, and a peer that leaves more than
`unread_max_bytes` unread is cut off.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import (
    BursarError,
    FormatError,
    RemoteError,
    UnreachableError,
    UsageError,
)
from bursar.resource.checks import check_name
from bursar.runtime import frames, identity
from bursar.runtime.admission import Place
from bursar.runtime.calls import Calls
from bursar.runtime.frames import CALL, FAILURE, GOODBYE, HELLO, PROOF, REPLY, SEND, Hello, Splitter
from bursar.runtime.tls import is_named, names_in
from bursar.world import Message

if TYPE_CHECKING:
    from bursar.runtime.network import SocketNetwork

TEXT_MAX = 500
BATCH_MAX_BYTES = 64 * 1024
KEEPALIVE_S = 5
UNACKNOWLEDGED_MAX_MS = 15_000

_NAMES = "clients have names with a slash (web/1), nodes prove theirs by the fleet's secret"
_SAME_STORE = "its nodes use one store"


class Link(asyncio.Protocol):
    """One connection to one peer. `expected` is the name that the peer must have, None for an
    incoming connection; `host` is where it was dialled, `place` what an incoming one was given.
    `proved`: the peer is a node of the fleet."""

    def __init__(
        self,
        network: SocketNetwork,
        expected: str | None = None,
        host: str | None = None,
        place: Place | None = None,
    ) -> None:
        self._network = network
        self.loop = asyncio.get_running_loop()
        self._expected = expected
        self._host = host
        self.place = place
        self._hello = network.introduce_as(is_node=host is None or expected is not None)
        self._claimed: Hello | None = None
        self.proved = False
        self._splitter = Splitter()
        self._calls = Calls(self.loop)
        self._requests = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._corked = False
        self._full = False
        self._waiting_since: int | None = None
        self._full_since: int | None = None
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._spoke = True
        self._quiet_since = 0
        self.peer = ""
        self.incarnation = 0
        self.why_closed = ""
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        # Nobody may be waiting when a connection fails; that is no reason for a warning.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open = True
        self._waiting_since = self._network.clock.now()
        if not self._network.admit(self):
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=self._network.limits.queue_max_bytes)
        if self._host is not None:
            self._say_hello()

    def _say_hello(self) -> None:
        """Who dialled says hello first; who was dialled only to those it takes, so that a caller
        whose connection is ready has been accepted."""
        self._write(frames.encode(HELLO, 0, "", self._hello))

    def keep_alive(self) -> None:
        """Let the kernel find out that a peer's machine is gone; otherwise it takes many minutes."""
        sock = self._transport.get_extra_info("socket") if self._transport else None
        if sock is None:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_S),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MAX_MS),
        ):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._open = False
        why = self.why_closed or (str(error) if error else "the peer closed the connection")
        self.why_closed = why
        self._calls.lose(f"{self.peer}: connection lost before the answer: {why}")
        if not self.ready.done():
            self.ready.set_exception(UnreachableError(why))
        if not self.closed.done():
            self.closed.set_result(None)
        self._network.forget(self)

    def data_received(self, data: bytes) -> None:
        self._corked = self._spoke = True
        try:
            found = self._splitter.feed(data)
            for kind, number, topic, body in found:
                if not self._open:
                    return
                self._take(kind, number, topic, body)
        except FormatError as error:
            self.cut("garbage", str(error))
            return
        finally:
            self._corked = False
            if self._out:
                self._flush()
        if self._splitter.partial or self._waiting_since is not None:
            self._note_waiting(bool(found))

    def _note_waiting(self, progress: bool) -> None:
        """Remember since when the frame under way is: a trickle of bytes does not make it younger."""
        if not self._splitter.partial:
            self._waiting_since = None if self.peer else self._waiting_since
        elif progress or self._waiting_since is None:
            self._waiting_since = self._network.clock.now()

    def _take(self, kind: int, number: int, topic: bytes, body: bytes) -> None:
        if kind == CALL and self.peer:
            self._network.dispatch(self, number, topic, body)
        elif kind == REPLY and self.peer:
            self._calls.settle(number, body, self.peer)
        elif kind == GOODBYE:
            self.why_closed = f"the peer said: {self._text(body)}"
            self.close()
        elif not self.peer and self._claimed is None:
            self._greet(kind, body)
        elif not self.peer:
            self._check_proof(kind, body)
        elif kind == SEND:
            self._network.dispatch(self, None, topic, body)
        elif kind == FAILURE:
            self._calls.fail(number, RemoteError(f"{self.peer}: {self._text(body)}"))
        else:
            raise FormatError(f"a frame of kind {kind} where none belongs")

    def _text(self, body: bytes) -> str:
        try:
            return str(frames.decoder_of(str).decode(body))[:TEXT_MAX]
        except DECODE_ERRORS as error:
            raise FormatError(f"not a text: {error}") from error

    def _greet(self, kind: int, body: bytes) -> None:
        if kind != HELLO:
            raise FormatError("the first frame is not a hello")
        try:
            hello = frames.decoder_of(Hello).decode(body)
            check_name("the peer's name", hello.name)
        except (*DECODE_ERRORS, UsageError) as error:
            raise FormatError(f"not a hello: {error}") from error
        problem = self._find_fault(hello)
        if problem is not None:
            self.cut("identity", problem)
            return
        if self._host is not None:
            self._answer_proof(hello)
        elif hello.nonce and self._hello.nonce:
            self._ask_for_proof(hello)
        elif not identity.is_client_name(hello.name):
            self.cut("identity", f"{hello.name} is a node's name, and nothing proves it; {_NAMES}")
        else:
            self._open_for(hello, proved=False)

    def _ask_for_proof(self, hello: Hello) -> None:
        """A node, as it says: prove ourselves to it, and wait for its own."""
        self._claimed = hello
        proof = identity.prove(self._network.secret, identity.DIALLED, hello, self._hello)
        self._write(frames.encode(HELLO, 0, "", msgspec.structs.replace(self._hello, proof=proof)))

    def _answer_proof(self, hello: Hello) -> None:
        """The one we dialled has answered: one of our fleet, if we are of one ourselves."""
        if not self._hello.nonce:
            self._open_for(hello, proved=False)
        elif not identity.is_proved(self._network.secret, identity.DIALLED, self._hello, hello, hello.proof):
            self.cut("identity", f"{hello.name} does not prove that it is of this fleet; {_SAME_STORE}")
        else:
            proof = identity.prove(self._network.secret, identity.DIALLER, self._hello, hello)
            self._write(frames.encode(PROOF, 0, "", proof))
            self._open_for(hello, proved=True)

    def _check_proof(self, kind: int, body: bytes) -> None:
        hello = self._claimed
        assert hello is not None, "it was asked for its proof"
        if kind != PROOF:
            raise FormatError("a frame before the proof")
        try:
            proof = frames.decoder_of(bytes).decode(body)
        except DECODE_ERRORS as error:
            raise FormatError(f"not a proof: {error}") from error
        if identity.is_proved(self._network.secret, identity.DIALLER, hello, self._hello, proof):
            self._open_for(hello, proved=True)
        else:
            self.cut("identity", f"{hello.name} does not prove that it is of this fleet; {_SAME_STORE}")

    def _open_for(self, hello: Hello, *, proved: bool) -> None:
        if not self._network.settle(self, is_node=proved):
            self.cut("full", "this node has as many clients as it takes; try again later")
            return
        if self._host is None and not proved:
            self._say_hello()
        self.peer, self.incarnation, self.proved = hello.name, hello.incarnation, proved
        self._waiting_since = None
        self._network.introduce(self)
        if not self.ready.done():
            self.ready.set_result(None)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The peer's; None without TLS."""
        found: Mapping[str, Any] | None = (
            self._transport.get_extra_info("peercert") if self._transport else None
        )
        return found

    def _find_fault(self, hello: Hello) -> str | None:
        """Why this peer is not whom it claims to be, or not whom we wanted."""
        if hello.version != frames.VERSION:
            return (
                f"{hello.name} speaks version {hello.version} of the protocol, this node {frames.VERSION}; "
                "run the same version of bursar on both"
            )
        if self._expected is not None and hello.name != self._expected:
            return f"this is {hello.name}, not {self._expected}; check the addresses under peers"
        certificate = self.certificate
        if certificate is None:
            return "no certificate was shown" if self._network.certificates else None
        if not is_named(certificate, hello.name):
            return f"the certificate is for {sorted(names_in(certificate))}, the name claimed is {hello.name}"
        if self._host is not None and self._expected is None and not is_named(certificate, self._host):
            return f"the certificate of {hello.name} is not for {self._host}; add it as an alternative name"
        return None

    def call(self, topic: str, message: Message, reply: Any, timeout_ns: int) -> asyncio.Future[Any]:
        """As `Network.call`, on a connection that is ready: the answer to come."""
        if not self._open:
            raise UnreachableError(f"{self.peer}: {self.why_closed or 'the connection is closing'}")
        if self._full:
            raise UnreachableError(f"{self.peer} reads too slowly: its queue is full, nothing was sent")
        number = self._calls.next_number()
        frame = frames.encode(CALL, number, topic, message)
        future = self._calls.begin(number, reply, timeout_ns)
        self._write(frame)
        return future

    def send(self, frame: bytes) -> bool:
        """Queue a frame; false when the peer's queue is full and it was dropped."""
        if self._full or not self._open:
            return False
        self._write(frame)
        return True

    def begin_request(self) -> bool:
        """Whether one more handler may run. Requests are refused rather than left unread, because
        what the handlers under way wait for (a release, a reply) may come behind them."""
        if self._requests >= self._network.limits.requests_max:
            return False
        self._requests += 1
        return True

    def end_request(self, frame: bytes | None) -> None:
        """A handler has ended: send its answer."""
        self._requests -= 1
        if frame is not None and self._open:
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        if not self._open:
            return
        if self._out or self._corked or len(self._calls) + self._requests > 1:
            # Others are at work on this connection: their frames share one write.
            if not self._out and not self._corked:
                self.loop.call_soon(self._flush)
            self._out.append(frame)
            self._out_bytes += len(frame)
            if self._out_bytes > BATCH_MAX_BYTES:
                self._flush()
        elif self._transport is not None:
            self._transport.write(frame)
            if self._full:
                self._check_unread()

    def _flush(self) -> None:
        if not self._out:
            return
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is not None:
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])
            if self._full:
                self._check_unread()

    def _check_unread(self) -> None:
        assert self._transport is not None, "just written to"
        if self._transport.get_write_buffer_size() > self._network.limits.unread_max_bytes:
            self.cut("slow", "too much was left unread")

    def pause_writing(self) -> None:
        self._full = True
        self._full_since = self._network.clock.now()
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._full_since = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def check_stall(self, now: int) -> None:
        """Cut the peer off if it has been silent in the middle of something for too long."""
        limits = self._network.limits
        if self._spoke:
            self._spoke, self._quiet_since = False, now
        if self._full_since is not None and now - self._full_since > limits.stall_timeout_ns:
            self.cut("slow", "what was sent was not read in time")
        elif self._waiting_since is not None:
            bound_ns = limits.stall_timeout_ns if self.peer else limits.hello_timeout_ns
            if now - self._waiting_since > bound_ns:
                self.cut(
                    "stalled", "half a frame came, and no more" if self.peer else "no hello came in time"
                )

    def is_idle(self, now: int) -> bool:
        """Whether this is a client that has said nothing for long, and waits for nothing."""
        quiet = not self._spoke and now - self._quiet_since > self._network.limits.client_idle_ns
        return quiet and self._open and self._requests == 0 and self.place is not None and not self.proved

    def cut(self, reason: str, why: str) -> None:
        """Cut the peer off, count it, and tell it why if it listens."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.why_closed = why
        self._network.count_cut(reason, self, why)
        if not self._full:
            transport.write(frames.encode(GOODBYE, 0, "", why[:TEXT_MAX]))
        self._out, self._out_bytes = [], 0
        self._open = False
        transport.close()
        self.loop.call_later(1.0, transport.abort)

    def close(self) -> None:
        """Send what is queued, then close."""
        self._flush()
        self._open = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SelfLink(Link):
    """What a node says to itself: the same frames, without a socket."""

    def __init__(self, network: SocketNetwork) -> None:
        super().__init__(network)
        self.peer = network.name
        self.proved = True
        self._open = True

    def _write(self, frame: bytes) -> None:
        for envelope in self._splitter.feed(frame):
            self.loop.call_soon(self._take, *envelope)


def describe_failure(error: BaseException) -> str:
    """What a peer is told of a handler's failure: the words of our own errors, only the type of
    others, whose text may hold what the peer must not see."""
    return (
        str(error)[:TEXT_MAX]
        if isinstance(error, BursarError)
        else f"internal error ({type(error).__name__})"
    )
