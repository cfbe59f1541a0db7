"""Requests of clients to a daemon, over its own links."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.resource import wire
from bursar.runtime import frames
from bursar.runtime.frames import CALL, HELLO, REPLY, Hello, Splitter
from bursar.runtime.link import Link
from bursar.world import Message
from bursar_lab.fuzzing.house import open_daemon, watch_mistakes
from bursar_lab.fuzzing.pieces import Sink, call, frame, join, run, split
from bursar_lab.fuzzing.target import Target

PATIENCE_S = 0.1
"""What is decided at once, with a journal to be written, is decided by then."""

_numbers = count()


def ask_daemon(data: bytes) -> None:
    """A client says hello, and then what the input has in it, each part a request."""
    open_daemon()
    run(_ask(split(data)))


async def _ask(requests: list[bytes]) -> None:
    daemon = open_daemon()
    network = daemon.host.world.sockets
    link, sink, name = Link(network), Sink(), f"fuzz/{next(_numbers)}"
    grant = ""
    with watch_mistakes():
        await call(link.connection_made, sink)
        await call(link.data_received, frames.encode(HELLO, 0, "", Hello(frames.VERSION, name, 1)))
        for number, body in enumerate(requests[:12]):
            sink.written.clear()
            before = set(network._handlers)
            sent = frame(CALL, number, wire.TOPIC.encode(), _fill_in(body, grant))
            await call(link.data_received, sent)
            await _finish(set(network._handlers) - before)
            grant = _find_grant(bytes(sink.written)) or grant
        await call(link.connection_lost, None)
        session = daemon.clients._sessions.pop(name, None)
        if session is not None:
            await daemon.clients._end(session)  # as when it had been silent for long


async def _finish(answering: set[asyncio.Task[None]]) -> None:
    """Who waits for tokens would wait for as long as it said."""
    if answering:
        await asyncio.wait(answering, timeout=PATIENCE_S)
    for task in answering:
        task.cancel()
    await asyncio.gather(*answering, return_exceptions=True)


def _fill_in(body: bytes, grant: str) -> bytes:
    """The id of the grant before, where a request says GRANT."""
    try:
        message = msgspec.msgpack.decode(body)
    except DECODE_ERRORS:
        return body
    if not isinstance(message, dict) or message.get("id") != "GRANT":
        return body
    return msgspec.msgpack.encode({**message, "id": grant})


def _find_grant(written: bytes) -> str:
    """Its id, if that is what was answered. Every answer is a message."""
    found = ""
    for kind, _, _, body in Splitter().feed(written):
        if kind == REPLY:
            answer = frames.decoder_of(wire.Replies).decode(body)
            found = answer.id if isinstance(answer, wire.Given) else found
    return found


def make_requests() -> Iterator[bytes]:
    write = msgspec.msgpack.encode
    take = [
        wire.Take(1, "cache", "acme", 1, 0),
        wire.Take(2, "disk", "acme", 1, 0, ahead=True),
        wire.Take(3, "llm", "acme", 5, 0, key="k", hold_ns=10**12),
        wire.Take(4, "vm", "acme", 1, 10**6, names=("a:E", "b:S"), priority=3),
        wire.Take(5, "llm", "globex", 10**6, 10**6, told=(wire.Told(1, 2, 3, 4, 5),)),
        wire.Take(6, "cache", "stranger", 0, -1),
    ]
    rest = [
        wire.Open(),
        wire.Open("bursar_x_y"),
        wire.GiveBack(((1, 0), (3, wire.UNDONE)), (wire.Told(1, 2, 1, 1, 1),)),
        wire.Settle("llm", "id", 3, 3),
        wire.Grow("llm", "id", 9, 3),
        wire.Extend("llm", "id", 10**9, 3),
        wire.More("vm", 4, ("c:E",), 0),
        wire.Explain("cache", "acme"),
        wire.Count("llm", 2, ("a",)),
        wire.Count("disk"),
        wire.Do("vm", "submit", {"tenant": "acme", "names": ["x:E"]}),
        wire.Do("llm", "top_up", {"account": "acme", "amount": 1}),
        wire.Do("llm", "survey", {"after": 0, "most": 3}),
        wire.Do("llm", "usage", {"since": "2026-01-01"}),
        wire.Do("llm", "balance", {"tenant": "acme"}),
        wire.Do("llm", "set_limit", {"tenant": "globex", "limit": 9}),
        wire.Do("cache", "list_tenants", {"page": 1}),
        wire.Do("cache", "show_tenant", {"tenant": "acme"}),
        wire.Do("vm", "tasks", {"tenant": "acme"}),
        wire.Do("vm", "holders", {"of": "a"}),
        wire.Do("vm", "why", {"id": "t"}),
        wire.Do("vm", "cancel", {"id": "t", "wait": 0.0}),
        wire.Do("vm", "history", {"most": 3}),
        wire.Do("cache", "nothing", {}),
        wire.Alive(),
        wire.Fleet(),
    ]
    held = wire.Take(9, "llm", "acme", 5, 0)
    ends: list[Message] = [
        wire.Settle("llm", "GRANT", 3, 9),
        wire.Settle("llm", "GRANT", 3, 8),
        wire.Grow("llm", "GRANT", 9, 9),
        wire.Extend("llm", "GRANT", 10**10, 9),
        wire.GiveBack(((9, 2),)),
        wire.GiveBack(((9, wire.UNDONE), (4, 1))),
        held,
    ]
    for each in ends:
        yield join(map(write, [held, each, each]))
    yield join(map(write, [wire.GiveBack(((9, 0),)), held, wire.Take(2, "nothing", "acme", 1, 0)]))
    yield join(map(write, [wire.Take(4, "vm", "a", 1, 0, names=("z:E",)), wire.More("vm", 4, ("y:E",), 0)]))
    yield join(map(write, take))
    for each in rest:
        yield join(map(write, [*take, each]))
        yield join([write(each)])


WORDS = tuple(
    word.encode() for word in ("cache", "disk", "llm", "vm", "acme", "globex", "a:E", "b:S", "Take", "Do")
)

TARGETS = (
    Target(
        "wire-clients",
        (
            "bursar.resource.clients:Clients._handle,Clients._find,Clients._find_held,Clients._settle",
            "bursar.resource.clients:Clients._grow,Clients._given,Clients._take_once,_write_refusal",
        ),
        ask_daemon,
        make_requests,
        (),
        WORDS,
    ),
)
