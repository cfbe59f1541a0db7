"""What the engines of the store answer: ZooKeeper's packets, rows of PostgreSQL, messages of etcd."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from google.protobuf.message import DecodeError

from bursar.errors import BursarError, FormatError, StoreError
from bursar.runtime.clock import BootClock
from bursar.stores import etcd_plan, etcd_wire, postgresql_changes
from bursar.stores import zookeeper_wire as zookeeper
from bursar.stores.postgresql_link import Seen
from bursar.stores.zookeeper import read_ensemble
from bursar.stores.zookeeper_link import Link, Request, Wire
from bursar.world import Check, CheckAbsent, Create, Delete, Set
from bursar_lab.fuzzing.pieces import Sink, call, cut, mark, pick, run
from bursar_lab.fuzzing.target import Target

# -- ZooKeeper

DECODERS: list[Any] = [
    zookeeper.read_data,
    zookeeper.read_stat,
    zookeeper.read_names,
    zookeeper.read_text,
    lambda body, at: zookeeper.read_results(body, at, 3),
]


def hear_zookeeper(data: bytes) -> None:
    """A stream of packets: the greeting, events, heartbeats, answers to what was asked."""
    decode, data = pick(data, DECODERS)
    run(_hear(decode, data))


async def _hear(decode: Any, data: bytes) -> None:
    link = Link(read_ensemble(urlsplit("zookeeper://h:2181"))[0], BootClock(), 10**10)
    wire = link._wire = Wire(link)
    await call(wire.connection_made, Sink())
    loop, asked = asyncio.get_running_loop(), []
    for xid in range(1, 4):
        request = Request(
            1, b"", "get /x", lambda body, at, revision: decode(body, at), False, loop.create_future()
        )
        wire.sent.append((xid, request))
        asked.append(request.reply)
    for piece in cut(data, 40):
        await call(wire.data_received, piece)
    if wire.greeting.done() and wire.greeting.exception() is None:
        try:
            zookeeper.read_connected(wire.greeting.result())
        except FormatError:
            pass
    for reply in asked:
        if reply.done() and reply.exception() is not None and not isinstance(reply.exception(), BursarError):
            raise reply.exception()  # type: ignore[misc]
    link.closed = True
    await call(wire.connection_lost, None)


def make_zookeeper() -> Iterator[bytes]:
    stat = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    greeting = zookeeper.frame(struct.pack(">iiq", 0, 6000, 7) + zookeeper.text("p" * 16))
    event = zookeeper.frame(struct.pack(">iqi", -1, -1, 0) + struct.pack(">ii", 3, 3) + zookeeper.text("/x"))
    ping, wrong = struct.pack(">iqi", -2, 9, 0), struct.pack(">iqi", -4, 9, -115)
    bodies = [
        zookeeper.text("data") + stat,
        stat,
        struct.pack(">i", 2) + zookeeper.text("a") + zookeeper.text("b"),
        zookeeper.text("/made"),
        b"".join(
            [
                struct.pack(">i?i", 1, False, -1) + zookeeper.text("/x"),
                struct.pack(">i?i", 5, False, -1) + stat,
                struct.pack(">i?i", -1, False, -101) + struct.pack(">i", -101),
                struct.pack(">i?i", -1, True, -1),
            ]
        ),
    ]
    for number, body in enumerate(bodies):
        answer = zookeeper.frame(struct.pack(">iqi", 1, 5, 0) + body)
        yield mark(number, greeting + event + zookeeper.frame(ping) + answer)
        yield mark(number, greeting + zookeeper.frame(struct.pack(">iqi", 1, 5, 0) + body[:-1]))
    for error in (-101, -103, -110, -112, -4, -77):
        yield mark(0, greeting + zookeeper.frame(struct.pack(">iqi", 1, 5, error)))
    yield mark(0, greeting + zookeeper.frame(wrong))
    yield mark(0, greeting + zookeeper.frame(struct.pack(">iqi", 2, 5, 0)))
    yield mark(0, greeting + zookeeper.frame(b"x") + b"\x7f\xff\xff\xff")
    yield mark(2, greeting + zookeeper.frame(struct.pack(">iqi", 1, 5, 0) + b"\x7f\xff\xff\xff"))
    yield mark(3, greeting + zookeeper.frame(struct.pack(">iqi", 1, 5, 0) + b"\0\0\0\1\xff"))
    yield mark(3, greeting + zookeeper.frame(struct.pack(">iqi", 1, 5, 0) + b"\xff\xff\xff\xff"))
    yield mark(0, zookeeper.frame(b"no"))
    yield mark(1, greeting)


# -- PostgreSQL


class Row(msgspec.Struct, array_like=True):
    """As `apply` returns them."""

    change: int
    at: int
    what: str | None
    version: int | None
    created: int | None
    modified: int | None
    owner: int | None
    children: int | None


class Answer(msgspec.Struct, array_like=True):
    rows: list[Row]
    place: str


OPERATIONS = (Create("/a", b"x"), Set("/a", b"y", 3), Delete("/a"), Check("/a", 1), CheckAbsent("/b"))


def read_rows(data: bytes) -> None:
    """Each change is answered by what its rows say, or refused by an error of the store's."""
    answer = msgspec.msgpack.decode(data, type=Answer)
    run(_settle(answer))


async def _settle(answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    group = [postgresql_changes.Change(OPERATIONS, 1, 0, loop.create_future()) for _ in range(3)]
    group[2].reply.cancel()
    postgresql_changes.settle(group, [msgspec.structs.astuple(row) for row in answer.rows])
    for change in group[:2]:
        if change.reply.done() and not isinstance(change.reply.exception(), BursarError | None):
            raise change.reply.exception()  # type: ignore[misc]
    assert Seen.read(answer.place).timeline >= 0


def make_rows() -> Iterator[bytes]:
    write = msgspec.msgpack.encode
    for what in (
        None,
        "/a",
        "!exists",
        "!missing",
        "!parent",
        "!ephemeral",
        "!version",
        "!children",
        "!many",
    ):
        yield write(Answer([Row(0, 1, what, 3, 4, 5, 6, 7), Row(1, 2, None, 3, 4, 5, 6, 7)], "123 7"))
    yield write(Answer([Row(-1, 0, None, 0, 0, 0, 0, 0)], ""))
    yield write(Answer([Row(7, 9, "", 0, 0, 0, 0, 0)], "x y"))
    yield write(Answer([], "1 ²"))


# -- etcd


def read_etcd(data: bytes) -> None:
    """Whatever a key holds: a node, a counter, the name of a child."""
    counts, data = pick(data, [False, True])
    response = etcd_wire._classes["TxnResponse"].FromString(data)
    keys = etcd_plan.Keys("/bursar")
    for answer in etcd_plan.ungroup(response.responses):
        kvs = answer.response_range.kvs
        if answer.response_put.HasField("prev_kv"):
            etcd_plan.read_node(answer.response_put.prev_kv)
        if counts:
            assert etcd_plan.read_counter(kvs[:1]).number >= 0
            continue
        for kv in kvs:
            known, _ = etcd_plan.read_node(kv, answer.response_range.count)
            assert known.ephemeral == bool(known.stat.owner)
            keys.name(kv.key)


def make_etcd() -> Iterator[bytes]:
    keys = etcd_plan.Keys("/bursar")
    form = etcd_wire._classes["TxnResponse"]
    value = struct.pack(">qQB", 1, 2, 0) + b"data"
    for made in (value, b"7", b"", value[:5], "²".encode()):
        response = form(succeeded=True)
        found = response.responses.add().response_range
        found.count = 1
        found.kvs.add(key=keys.node("/a/b", False), value=made, version=3, lease=5, mod_revision=9)
        response.responses.add().response_put.prev_kv.value = made
        response.responses.add().response_txn.responses.add().response_range.kvs.add(key=b"x", value=made)
        yield from (mark(0, response.SerializeToString()), mark(1, response.SerializeToString()))
    yield mark(1, form().SerializeToString())


TARGETS = (
    Target(
        "engines-zookeeper",
        (
            "bursar.stores.zookeeper_wire:make_error,read_reply,read_connected,read_stat,read_data,read_names",
            "bursar.stores.zookeeper_wire:read_text,read_event,read_results,_read_bytes,_unpack",
            "bursar.stores.zookeeper_link:Wire.data_received,Wire._cut,Link.received,Link._answer",
        ),
        hear_zookeeper,
        make_zookeeper,
        (),
    ),
    Target(
        "engines-postgresql",
        ("bursar.stores.postgresql_changes:settle,_make_error", "bursar.stores.postgresql_link:Seen.read"),
        read_rows,
        make_rows,
        (StoreError, msgspec.DecodeError, UnicodeDecodeError),
    ),
    Target(
        "engines-etcd",
        ("bursar.stores.etcd_plan:read_node,read_counter,Keys.name,ungroup,Known",),
        read_etcd,
        make_etcd,
        (FormatError, DecodeError),
    ),
)
