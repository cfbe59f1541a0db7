"""The memcached proxy: what clients say, what servers answer; and the client of the file's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from bursar.errors import BursarError, FormatError
from bursar.integrations.memcached_backend import Connection
from bursar.integrations.memcached_proxy.commands import STORAGE, CommandReader, Request
from bursar.integrations.memcached_proxy.ketama import Ring
from bursar.integrations.memcached_proxy.replies import (
    DRAINED,
    LINE,
    META,
    PART,
    QUIET,
    VALUES,
    ReplyReader,
    Slot,
)
from bursar.integrations.memcached_proxy.routing import find_shape, route
from bursar.integrations.memcached_proxy.runs import RunReader
from bursar_lab.fuzzing.pieces import Sink, call, cut, mark, pick, run, same
from bursar_lab.fuzzing.target import Target

RING = Ring([("a", 1), ("b", 1)])
NOBODY = 2**31


def read_commands(data: bytes) -> None:
    """However the bytes come, the requests are the same; what is read at once is what is read with care."""
    size, data = pick(data, [1, 2, 5, 64])
    same(lambda: _read_all(data, NOBODY), lambda: _read_all(data, size), ())
    requests = _read_all(data, NOBODY)
    for request in requests:
        parts = route(request, RING)
        find_shape(request, len(parts))
        assert request.local is not None or parts, "it goes nowhere"
    _check_run(data, requests)


def _read_all(data: bytes, size: int) -> list[Request]:
    reader, found = CommandReader(), []
    for piece in cut(data, size):
        reader.feed(piece)
        while (request := reader.read()) is not None:
            found.append(request)
            if request.last:
                return found
    return found


def _check_run(data: bytes, requests: list[Request]) -> None:
    quick = RunReader(b":").read(data, 0)
    if quick is None:
        return
    tenant, keys, shapes, end = quick
    count = sum(number for _, number in shapes)
    assert b"".join(request.raw for request in requests[:count]) == data[:end], (
        "the quick way read other bytes"
    )
    names = [key for request in requests[:count] for key in request.keys]
    assert len(names) == keys, "the quick way counted other keys"
    assert all(name.startswith(tenant.encode() + b":") for name in names) or not tenant.isascii(), (
        "another's key"
    )


def make_commands() -> Iterator[bytes]:
    lines = [
        b"get acme:a\r\n",
        b"get acme:a acme:b c\r\n",
        b"gets acme:a\r\n",
        b"gat 10 acme:a b\r\n",
        b"gat x a\r\n",
        b"set acme:a 0 0 5\r\nhello\r\n",
        b"set acme:a 0 0 5 noreply\r\nhello\r\n",
        b"cas a 1 2 2 7\r\nhi\r\n",
        b"add a 0 0 9999999\r\n" + b"x" * 30,
        b"set a 0 0 -1\r\n",
        b"set a 0 0 5\r\nhelloXX",
        b"set a b 0 5\r\n",
        b"incr acme:n 1\r\n",
        b"decr n 1 noreply\r\n",
        b"delete acme:a\r\n",
        b"delete a 0 noreply\r\n",
        b"touch a 5\r\n",
        b"mg acme:a v q k O1\r\n",
        b"mg YWNtZTph b v\r\n",
        b"mg !!! b\r\n",
        b"md a q\r\n",
        b"ma n N0 J1 D2\r\n",
        b"ms acme:a 2 T0 F1\r\nhi\r\n",
        b"ms a\r\n",
        b"ms a 2 zz\r\nhi\r\n",
        b"me a\r\n",
        b"me a b x\r\n",
        b"mn\r\n",
        b"mg a v v\r\n",
        b"version\r\n",
        b"quit\r\n",
        b"stats\r\n",
        b"flush_all noreply\r\n",
        b"nothing\r\n",
        b"\r\n",
        b"get " + b"k" * 251 + b"\r\n",
        b"set " + b"k" * 251 + b" 0 0 1\r\nx\r\n",
        b"mg " + b"k" * 251 + b" v\r\n",
        b"get\r\n",
        b"mg\r\n",
        b"\x80binary",
        b"get a\x00\r\n",
        b"incr a x\r\n",
        b"set a 0 0 2000000 noreply\r\nx",
        b"set a 0 0 99999999999\r\n",
    ]
    for line in lines:
        yield mark(1, line)
    yield mark(0, b"".join(lines[:6] + lines[12:18]))
    yield mark(3, b"get acme:a\r\n" * 70)
    yield mark(2, b"x" * 33_000 + b"\r\n")


# -- what servers answer


SHAPES = [LINE, VALUES, META, PART, QUIET, DRAINED]


def read_replies(data: bytes) -> None:
    """However the bytes come, as many replies are over, and the same is passed on."""
    shape, data = pick(data, SHAPES)
    count, data = pick(data, [1, 2, 5])
    same(
        lambda: _pass_on(shape, count, data, NOBODY), lambda: _pass_on(shape, count, data, 3), (FormatError,)
    )


def _pass_on(shape: int, count: int, data: bytes, size: int) -> tuple[int, bytes]:
    reader, slot, rest, passed = ReplyReader(), Slot(shape, count), b"", bytearray()
    for piece in cut(data, size):
        rest += piece
        if shape in (PART, QUIET, DRAINED):
            out: list[bytes] = []
            at = reader.sift(rest, 0, slot, out)
            passed += b"".join(out)
        else:
            at = reader.pass_over(rest, 0, slot)
            passed += rest[:at]
        rest = rest[at:]
        if not slot.count:
            break
    return slot.count, bytes(passed)


def make_replies() -> Iterator[bytes]:
    texts = [
        b"STORED\r\n",
        b"END\r\n",
        b"VALUE a 0 5\r\nhello\r\nEND\r\n",
        b"VALUE a 0 5 7\r\nhello\r\nVALUE b 0 0\r\n\r\nEND\r\n",
        b"VA 2 f1 k\r\nhi\r\n",
        b"EN\r\nHD\r\n",
        b"MN\r\n",
        b"HD\r\nMN\r\n",
        b"SERVER_ERROR out of memory\r\nMN\r\n",
        b"VALUE a 0 x\r\n",
        b"VA\r\n",
        b"VALUE a\r\n",
        b"ERROR\r\n",
        b"CLIENT_ERROR\r\nMN\r\n",
        b"NF\r\nMN\r\nSTORED\r\nEND\r\n",
    ]
    for shape in range(len(SHAPES)):
        for text in texts:
            yield mark(shape, mark(0, text))
        yield mark(shape, mark(1, texts[2] + texts[2] + b"END\r\nMN\r\nMN\r\n"))
    yield mark(0, mark(0, b"x" * 33_000))


# -- the client


def answer_client(data: bytes) -> None:
    run(_answer(data))


async def _answer(data: bytes) -> None:
    size, data = pick(data, [1, 7, 4096])
    link = Connection("h:1", 60.0)
    link.connection_made(cast(asyncio.BaseTransport, Sink()))
    answers = [link.ask(b"get a\r\n") for _ in range(3)]
    for piece in cut(data, size):
        await call(link.data_received, piece)
    await call(link.connection_lost, None)
    for answer in answers:
        try:
            await answer
        except BursarError:
            continue


def make_answers() -> Iterator[bytes]:
    for text in (
        b"VALUE a 0 5\r\nhello\r\nEND\r\nSTORED\r\nEND\r\n",
        b"ERROR\r\nSERVER_ERROR x\r\n",
        b"VALUE a 0 5\r\nhelloXXEND\r\n",
        b"VALUE a\r\n",
        b"VALUE a 0 9999999\r\n",
        b"x" * 3000,
        b"END\r\n" * 4,
        b"VALUE a 0 5\r\nhe",
    ):
        yield mark(1, text)


WORDS = (
    *STORAGE,
    *(
        b"get ",
        b"gets ",
        b"gat ",
        b"delete ",
        b"incr ",
        b"touch ",
        b"mg ",
        b"ms ",
        b"md ",
        b"ma ",
        b"me ",
        b"mn\r\n",
    ),
    *(
        b" noreply\r\n",
        b"\r\n",
        b" 0 0 5\r\n",
        b"acme:",
        b"VALUE ",
        b"VA ",
        b"END\r\n",
        b"MN\r\n",
        b" b",
        b" q",
        b" k",
        b" O",
    ),
)

PROXY = "bursar.integrations.memcached_proxy"
TARGETS = (
    Target(
        "memcached-commands",
        (
            f"{PROXY}.commands:-incomplete",
            f"{PROXY}.routing",
            f"{PROXY}.runs:RunReader.read,RunReader._read_many",
        ),
        read_commands,
        make_commands,
        (),
        WORDS,
        input_max_bytes=40_000,
    ),
    Target(
        "memcached-replies",
        (f"{PROXY}.replies:ReplyReader,_read_size",),
        read_replies,
        make_replies,
        (FormatError,),
        WORDS,
        input_max_bytes=40_000,
    ),
    Target(
        "memcached-answers",
        (
            "bursar.integrations.memcached_backend:Connection.data_received,Connection._read_answer,Connection._answer,Connection._resolve,_read_size",
        ),
        answer_client,
        make_answers,
        (),
        WORDS,
    ),
)
