"""What comes from other nodes and from clients: frames, links, and the messages in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError, UsageError
from bursar.quotas import history, settling, survey
from bursar.quotas import messages as quotas
from bursar.rates import messages as rates
from bursar.resource import wire
from bursar.runtime import frames, identity
from bursar.runtime.frames import CALL, FAILURE, GOODBYE, HELLO, PROOF, REPLY, SEND, Hello, Splitter
from bursar.runtime.limits import Limits
from bursar.runtime.link import Link
from bursar.runtime.network import SocketNetwork
from bursar_lab.fuzzing.house import watch_mistakes
from bursar_lab.fuzzing.pieces import Sink, call, cut, frame, mark, pick, run, same
from bursar_lab.fuzzing.target import Target
from bursar_lab.fuzzing.targets.clients import TARGETS as CLIENTS

SECRET = b"s" * 32


# -- frames: the bytes of a connection


def split_frames(data: bytes) -> None:
    """However the bytes come, the frames are the same; and each is written as it came."""
    size, data = pick(data, [1, 2, 3, 7, 64])
    refusals = (FormatError,)
    same(lambda: _feed(data, len(data)), lambda: _feed(data, size), refusals)
    for kind, number, topic, body in _feed(data, len(data)):
        again = _feed(frame(kind, number, topic, body), 1)
        assert again == [(kind, number, topic, body)], "written and read, and not the same"


def _feed(data: bytes, size: int) -> list[frames.Envelope]:
    splitter = Splitter()
    return [each for piece in cut(data, size) for each in splitter.feed(piece)]


def make_frames() -> Iterator[bytes]:
    hello = frames.encode(HELLO, 0, "", Hello(frames.VERSION, "web/1", 1))
    call = frames.encode(CALL, 1, wire.TOPIC, wire.Alive())
    for each in (
        hello,
        call,
        hello + call,
        hello + call[:9],
        b"",
        b"\xff" * 10,
        b"\0\0\0\x06\x01\0\0\0\0\xff",
    ):
        for size in range(5):
            yield mark(size, each)


# -- links: what a connection says, until it is a peer and after


def talk_to_link(data: bytes) -> None:
    """One that was dialled by a node, by a client, or that dialled itself."""
    run(_talk(*pick(data, ["dialled", "dialler", "client"])))


async def _talk(role: str, data: bytes) -> None:
    secret, limits = SECRET if role != "client" else b"", Limits(requests_max=2)
    network = SocketNetwork("a", 1, secret=secret, limits=limits)
    network.serve("echo", wire.Requests, _echo)
    network.serve("open", wire.Requests, _echo, anyone=True)
    link = Link(network) if role == "dialled" else Link(network, "b", "b")
    nonce = link._hello.nonce
    link._hello = msgspec.structs.replace(link._hello, nonce=b"n" * len(nonce))  # so that a seed can prove it
    with watch_mistakes():
        await call(link.connection_made, Sink())
        for piece in cut(data, 64):
            await call(link.data_received, piece)
        for _ in range(3):
            await asyncio.sleep(0)
        await call(link.connection_lost, None)


async def _echo(peer: str, message: Any) -> Any:
    if isinstance(message, wire.Fleet):
        raise UsageError("no")
    if isinstance(message, wire.Open):
        await asyncio.sleep(0)
    return wire.Done()


def make_talks() -> Iterator[bytes]:
    ours = Hello(frames.VERSION, "a", 1, b"n" * len(identity.draw_nonce()))
    theirs = Hello(frames.VERSION, "b", 1, b"m" * len(ours.nonce))
    hello = frames.encode(HELLO, 0, "", theirs)
    proof = frames.encode(PROOF, 0, "", identity.prove(SECRET, identity.DIALLER, theirs, ours))
    proved = msgspec.structs.replace(theirs, proof=identity.prove(SECRET, identity.DIALLED, ours, theirs))
    answer = frames.encode(HELLO, 0, "", proved)
    client = frames.encode(HELLO, 0, "", Hello(frames.VERSION, "web/1", 1))
    calls = [frames.encode(CALL, 1, topic, wire.Alive()) for topic in ("echo", "open", "nobody")]
    calls += [frames.encode(SEND, 0, "open", wire.Fleet()), frames.encode(CALL, 2, "open", wire.Fleet())]
    calls += [
        frames.encode(CALL, 3, "open", [1]),
        frames.encode(REPLY, 4, "", 1),
        frames.encode(FAILURE, 4, "", "no"),
        b"".join(frames.encode(CALL, number, "open", wire.Open()) for number in range(4)),
    ]
    for greeting, role in ((hello + proof, 0), (answer, 1), (client, 0), (hello, 2)):
        for each in calls:
            yield mark(role, greeting + each)
        yield mark(role, greeting + frames.encode(GOODBYE, 0, "", "bye"))
        yield mark(role, greeting + hello)
        yield mark(role, greeting + frames.encode(9, 0, "", 1))
    yield mark(0, hello + frames.encode(PROOF, 0, "", b"wrong"))
    yield mark(0, hello + frames.encode(PROOF, 0, "", "text"))
    yield mark(0, hello + calls[0])
    yield mark(1, hello)
    for wrong in (Hello(1, "b", 1), Hello(frames.VERSION, "b", 1), Hello(frames.VERSION, "", 1), "hello"):
        yield mark(0, frames.encode(HELLO, 0, "", wrong))
        yield mark(1, frames.encode(HELLO, 0, "", wrong))
    yield mark(0, frames.encode(GOODBYE, 0, "", 1))
    yield mark(0, calls[0])


# -- messages: every topic's


@cache
def find_forms() -> list[Any]:
    kinds = [rates.ToServer, rates.ToController, rates.State, quotas.Messages, history.Keep | history.Compare]
    kinds += [survey.Ask, survey.Report, settling.Settle | settling.Extend | settling.Grow | settling.Whose]
    return [*kinds, wire.Requests, wire.Replies, wire.Recall, wire.Recalled, Hello]


def read_message(data: bytes) -> None:
    """Whatever is read is written and read again."""
    form, data = pick(data, find_forms())
    decoder = frames.decoder_of(form)
    try:
        message = decoder.decode(data)
    except DECODE_ERRORS:
        return
    written = msgspec.msgpack.encode(message)
    again = msgspec.msgpack.encode(decoder.decode(written))
    assert again == written, "written and read, and not the same"


def make_messages() -> Iterator[bytes]:
    for number, form in enumerate(find_forms()):
        for each in getattr(form, "__args__", (form,)):
            yield mark(number, msgspec.msgpack.encode(fill(each)))
            yield mark(number, msgspec.msgpack.encode(fill(each))[:-1])


def fill(form: Any) -> Any:
    """An instance with a value in every field."""
    return _value_of(msgspec.inspect.type_info(form), 0)


def _value_of(info: Any, depth: int) -> Any:
    kinds = msgspec.inspect
    match info:
        case kinds.StructType():
            values = [(field.encode_name, _value_of(field.type, depth + 1)) for field in info.fields]
            named = dict(([(info.tag_field, info.tag)] if info.tag_field else []) + values)
            rows = ([info.tag] if info.tag is not None else []) + [value for _, value in values]
            return rows if info.array_like else named
        case kinds.UnionType():
            return _value_of(
                next((each for each in info.types if not isinstance(each, kinds.NoneType)), None), depth
            )
        case kinds.TupleType():
            return [_value_of(each, depth + 1) for each in info.item_types]
        case kinds.VarTupleType() | kinds.ListType() | kinds.SetType() | kinds.FrozenSetType():
            return [_value_of(info.item_type, depth + 1)] if depth < 8 else []
        case kinds.DictType():
            return {_value_of(info.key_type, depth + 1): _value_of(info.value_type, depth + 1)}
        case kinds.BytesType():
            return b"b"
        case kinds.StrType():
            return "acme"
        case kinds.BoolType():
            return True
        case kinds.FloatType():
            return 1.5
        case kinds.LiteralType():
            return info.values[0]
        case kinds.EnumType():
            return next(iter(info.cls)).value
    return 7 if isinstance(info, kinds.IntType) else None


TARGETS = (
    Target(
        "wire-frames", ("bursar.runtime.frames:Splitter,-partial",), split_frames, make_frames, (FormatError,)
    ),
    Target(
        "wire-links",
        (
            "bursar.runtime.link:Link.data_received,Link._note_waiting,Link._take,Link._text,Link._greet",
            "bursar.runtime.link:Link._ask_for_proof,Link._answer_proof,Link._check_proof,Link._open_for",
            "bursar.runtime.network:SocketNetwork.dispatch,SocketNetwork._refuse,SocketNetwork._refuse_stranger",
            "bursar.runtime.network:SocketNetwork._is_peer,SocketNetwork._handle",
        ),
        talk_to_link,
        make_talks,
        (),
    ),
    Target("wire-messages", ("bursar.runtime.frames:decoder_of",), read_message, make_messages, ()),
    *CLIENTS,
)
