"""The proxy before a real memcached: values of any bytes, pipelines, refusals in their place, and
clients that behave badly."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
from memcached_stand import Stand, ask, connect, run_memcached, run_proxy, wait_until

from bursar.errors import FormatError, UsageError
from bursar.integrations.memcached_proxy import Proxy, by_prefix
from bursar.integrations.memcached_proxy.commands import VALUE_MAX_BYTES, CommandReader, Request
from bursar.integrations.memcached_proxy.replies import (
    LINE,
    LINE_MAX_BYTES,
    META,
    NONE,
    QUIET,
    VALUES,
    ReplyReader,
    Slot,
)

# --- commands and replies, without I/O ----------------------------------------------------------


def read_all(data: bytes, piece: int | None = None) -> list[Request]:
    reader, found = CommandReader(), []
    for start in range(0, len(data), piece or len(data)):
        reader.feed(data[start : start + (piece or len(data))])
        while (request := reader.read()) is not None:
            found.append(request)
    return found


STREAM = (
    b"get acme:a acme:b\r\n"
    b"set acme:a 0 0 5\r\n\r\nend\r\n"
    b"set acme:b 0 0 0 noreply\r\n\r\n"
    b"cas acme:a 0 0 3 77\r\nabc\r\n"
    b"incr acme:n 5\r\ndelete acme:a noreply\r\ntouch acme:a 10\r\ngat 10 acme:a\r\n"
    b"mg acme:a v t\r\nms acme:a 4 T0 q\r\n\r\n\r\n\r\nmg acme:a q v\r\nmd acme:a q\r\n"
    b"version\r\nget x\n"
)
SHAPES = [VALUES, LINE, NONE, LINE, LINE, NONE, LINE, VALUES, META, QUIET, QUIET, QUIET, LINE, VALUES]


@pytest.mark.parametrize("piece", [None, 1, 2, 7, 19])
def test_requests_are_the_same_however_the_bytes_are_cut(piece: int | None) -> None:
    found = read_all(STREAM, piece)
    assert [request.shape for request in found] == SHAPES
    assert b"".join(request.raw for request in found) == STREAM
    assert found[0].keys == (b"acme:a", b"acme:b")
    assert all(request.local is None for request in found)


@pytest.mark.parametrize(
    ("data", "reply", "last"),
    [
        (b"bogus\r\n", b"ERROR\r\n", False),
        (b"\r\n", b"ERROR\r\n", False),
        (b"get\r\n", b"ERROR\r\n", False),
        (b"get " + b"k" * 251 + b"\r\n", b"CLIENT_ERROR key too long\r\n", False),
        (b"set a 0 0\r\n", b"ERROR\r\n", True),
        (b"set a 0 0 -1\r\n", b"CLIENT_ERROR bad data chunk\r\n", True),
        (b"set a 0 0 99999999999\r\n", b"CLIENT_ERROR bad data chunk\r\n", True),
        (b"set a 0 0 3\r\nabcdef\r\n", b"CLIENT_ERROR bad data chunk\r\n", True),
        (b"x" * (LINE_MAX_BYTES + 1), b"CLIENT_ERROR line too long\r\n", True),
        (b"\x80\x00\x00\x00", b"CLIENT_ERROR this proxy speaks the text protocol only\r\n", True),
        (b"flush_all\r\n", b"CLIENT_ERROR flush_all concerns all tenants and is not passed on\r\n", False),
        (b"set a x 0 5\r\n", b"CLIENT_ERROR bad command line format\r\n", True),
        (b"set a 4294967296 0 5\r\n", b"CLIENT_ERROR bad command line format\r\n", True),
        (b"set\ta 0 0 5\r\n", b"CLIENT_ERROR control characters in a command\r\n", True),
        (b"get a\x00b\r\n", b"CLIENT_ERROR control characters in a command\r\n", True),
        (b"incr a noreply\r\n", b"CLIENT_ERROR bad command line format\r\n", False),
        (b"delete a 5 noreply\r\n", b"CLIENT_ERROR bad command line format\r\n", False),
        (b"touch a never\r\n", b"CLIENT_ERROR bad command line format\r\n", False),
        (b"gat soon a\r\n", b"ERROR\r\n", False),
        (b"ms a 2 Z\r\n", b"CLIENT_ERROR invalid flag\r\n", True),
        (b"ms a 2 T0 T1\r\n", b"CLIENT_ERROR duplicate flag\r\n", True),
        (b"ms a 2 Fx\r\n", b"CLIENT_ERROR invalid flag\r\n", True),
        (b"ms a -2\r\n", b"CLIENT_ERROR bad data chunk\r\n", True),
        (b"ms a 2 b\r\nhi\r\n", b"CLIENT_ERROR error decoding key\r\n", False),
        (b"mg a Z\r\n", b"CLIENT_ERROR invalid flag\r\n", False),
        (b"mn\r\n", b"MN\r\n", False),
        (b"flush_all noreply\r\n", b"", False),
    ],
)
def test_what_cannot_be_understood_gets_the_documented_answer(data: bytes, reply: bytes, last: bool) -> None:
    found = read_all(data)[0]
    assert (found.local, found.last) == (reply, last)


@pytest.mark.parametrize("piece", [None, 4096])
def test_a_value_that_is_too_large_is_swallowed_and_the_next_request_understood(piece: int | None) -> None:
    size = VALUE_MAX_BYTES + 1
    found = read_all(b"set a 0 0 %d\r\n" % size + b"x" * size + b"\r\nget b\r\n", piece)
    assert found[0].local == b"SERVER_ERROR object too large for cache\r\n"
    assert found[1].raw == b"get b\r\n"


REPLIES = [
    (VALUES, b"VALUE a 0 5\r\n\r\nEND\r\nVALUE b 0 0 9\r\n\r\nEND\r\n"),
    (LINE, b"STORED\r\n"),
    (VALUES, b"END\r\n"),
    (VALUES, b"VALUE a 0 5 7\r\nEND\r\n\r\nEND\r\n"),
    (VALUES, b"SERVER_ERROR out of memory\r\n"),
    (META, b"VA 4\r\nHD\r\n\r\n"),
    (META, b"HD\r\n"),
]


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_replies_end_where_they_end(piece: int) -> None:
    data = b"".join(reply for _, reply in REPLIES)
    reader, ends = ReplyReader(), []
    left, passed, rest = [Slot(shape, 1) for shape, _ in REPLIES], 0, b""
    for start in range(0, len(data), piece):
        here, at = rest + data[start : start + piece], 0
        while left:
            at = reader.pass_over(here, at, left[0])
            if left[0].count:
                break
            left.pop(0)
            ends.append(passed + at)
        passed += at
        rest = here[at:]
    assert not left
    expected = [sum(len(reply) for _, reply in REPLIES[: n + 1]) for n in range(len(REPLIES))]
    assert ends == expected


def test_a_server_that_talks_nonsense_is_found_out() -> None:
    with pytest.raises(FormatError, match="without its size"):
        ReplyReader().pass_over(b"VALUE a 0 many\r\n", 0, Slot(VALUES, 1))
    with pytest.raises(FormatError, match="without end"):
        ReplyReader().pass_over(b"x" * (LINE_MAX_BYTES + 1), 0, Slot(LINE, 1))


# --- a real memcached ---------------------------------------------------------------------------


@pytest.fixture
async def memcached() -> AsyncIterator[tuple[int, subprocess.Popen[bytes]]]:
    async with run_memcached() as found:
        yield found


@pytest.fixture
async def stand(memcached: Any) -> AsyncIterator[Stand]:
    async with run_proxy([memcached[0]]) as found:
        yield found


pytestmark = pytest.mark.needs("memcached")


async def test_values_of_any_bytes_come_back(stand: Stand) -> None:
    rng = random.Random(9)
    for size in (0, 1, 1000, VALUE_MAX_BYTES - 1000):
        value = rng.randbytes(size) if size < 5000 else b"\r\nEND\r\nVALUE " * (size // 14)
        got = await ask(stand.port, b"set acme:k 3 0 %d\r\n" % len(value) + value + b"\r\nget acme:k\r\n")
        assert got == b"STORED\r\nVALUE acme:k 3 %d\r\n" % len(value) + value + b"\r\nEND\r\n"


async def test_a_long_pipeline_is_answered_in_order(stand: Stand) -> None:
    sent = b"".join(b"set acme:%d 0 0 4\r\n%04d\r\nget acme:%d\r\n" % (n, n, n) for n in range(3000))
    got = await ask(stand.port, sent)
    expected = b"".join(b"STORED\r\nVALUE acme:%d 0 4\r\n%04d\r\nEND\r\n" % (n, n) for n in range(3000))
    assert got == expected
    assert stand.tokens.left["acme"] == 1_000_000 - 6000
    assert stand.tokens.open == 0


async def test_a_refusal_stands_where_its_answer_would(stand: Stand) -> None:
    sent = b"get acme:x\r\n" + b"get few:x\r\n" * 3 + b"get other:x\r\nbogus\r\nget vague:x\r\nget acme:y\r\n"
    lines = (await ask(stand.port, sent)).split(b"\r\n")
    assert lines[:3] == [b"END"] * 3
    assert lines[3] == b"CLIENT_ERROR refused: few has used its tokens; retry in 0.250 s"
    assert lines[4] == b"CLIENT_ERROR no tenant for this key"
    assert lines[5] == b"ERROR"
    assert lines[6] == b"CLIENT_ERROR the quota cannot be learnt now"
    assert lines[7] == b"END"


async def test_a_refused_request_without_reply_is_dropped_without_a_word(stand: Stand) -> None:
    stand.tokens.left["few"] = 1
    sent = b"set few:a 0 0 1 noreply\r\n1\r\nset few:a 0 0 1 noreply\r\n2\r\nget acme:z\r\n"
    assert await ask(stand.port, sent) == b"END\r\n"
    stand.tokens.left["few"] = 1
    assert b"\r\n1\r\n" in await ask(stand.port, b"get few:a\r\n")


async def test_no_command_hides_in_the_data_of_one_that_memcached_would_not_accept(stand: Stand) -> None:
    await ask(stand.port, b"set acme:secret 0 0 3\r\nabc\r\n")
    hidden = b"set acme:secret 0 0 3\r\nxyz\r\n"
    for line in (
        b"set few:a x 0 %d",
        b"set few:a 0 x %d",
        b"set\tfew:a 0 0 %d",
        b"set few:a 9999999999 0 %d",
    ):
        await ask(stand.port, line % len(hidden) + b"\r\n" + hidden + b"\r\n")
    assert b"abc" in await ask(stand.port, b"get acme:secret\r\n")


async def test_a_multiget_costs_its_keys_and_has_one_tenant(stand: Stand) -> None:
    await ask(stand.port, b"get acme:a acme:b acme:c\r\n")
    assert stand.tokens.left["acme"] == 1_000_000 - 3
    assert await ask(stand.port, b"get acme:a few:b\r\n") == b"CLIENT_ERROR no tenant for this key\r\n"


async def test_a_port_may_belong_to_a_tenant(stand: Stand) -> None:
    (address,) = await stand.proxy.listen({"127.0.0.1:0": "few"})
    got = await ask(address.port, b"set any 0 0 1\r\n1\r\nget any\r\nget any\r\n")
    assert got.startswith(b"STORED\r\nVALUE any 0 1\r\n1\r\nEND\r\nCLIENT_ERROR refused")


async def test_a_request_waits_for_its_tokens_if_told_to_and_those_behind_it_too(stand: Stand) -> None:
    stand.proxy.wait_s = 5.0
    stand.tokens.left["few"] = 0
    async with connect(stand.port) as (reader, writer):
        writer.write(b"get acme:a\r\nget few:a\r\nget acme:b\r\n")
        assert await reader.readline() == b"END\r\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.2)
        stand.tokens.give("few", 1)
        assert await reader.readline() == b"END\r\n"
        assert await reader.readline() == b"END\r\n"


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(stand: Stand) -> None:
    value = b"v" * 1_000_000
    await ask(stand.port, b"set acme:big 0 0 1000000\r\n" + value + b"\r\n")
    async with connect(stand.port) as (_, writer):
        writer.write(b"get acme:big\r\n" * 100)
        await wait_until(lambda: stand.proxy.counts["cut_off"] == 1)
        assert await ask(stand.port, b"get acme:none\r\n") == b"END\r\n"
    assert stand.tokens.open == 0


async def test_a_client_that_never_ends_its_request_is_cut_off(stand: Stand) -> None:
    async with connect(stand.port) as (reader, writer):
        writer.write(b"set acme:a 0 0 10\r\n123")
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert stand.proxy.counts["cut_off"] == 1


async def test_a_client_that_leaves_takes_nothing_with_it(stand: Stand) -> None:
    for _ in range(20):
        async with connect(stand.port) as (_, writer):
            writer.write(b"get acme:a\r\n" * 50)
    await wait_until(lambda: stand.proxy.connections == 0)
    assert stand.tokens.open == 0


async def test_a_server_that_dies_is_said_so(stand: Stand, memcached: Any) -> None:
    server = memcached[1]
    async with connect(stand.port) as (reader, writer):
        writer.write(b"version\r\n")
        assert (await reader.readline()).startswith(b"VERSION")
        server.send_signal(signal.SIGSTOP)
        writer.write(b"get acme:a\r\nset acme:a 0 0 1 noreply\r\n1\r\nmg acme:a q v\r\nversion\r\n")
        await wait_until(lambda: stand.proxy.requests == 3)
        server.send_signal(signal.SIGKILL)
        gone = b"SERVER_ERROR the memcached server is gone\r\n"
        assert await reader.readline() == gone
        assert await reader.readline() == gone, "the version; what wants no reply gets none"
        await asyncio.to_thread(server.wait, 5)  # until then its port takes connections
        writer.write(b"version\r\n")
        assert b"cannot be reached" in await asyncio.wait_for(reader.readline(), 5)
    assert stand.tokens.open == 0


async def test_connections_beyond_the_bound_are_turned_away(stand: Stand, memcached: Any) -> None:
    proxy = Proxy(stand.proxy.resource, f"127.0.0.1:{memcached[0]}", connections_max=1)
    (address,) = await proxy.listen({"127.0.0.1:0": None})
    async with connect(address.port) as (reader, writer):
        writer.write(b"get acme:a\r\n")
        assert await reader.readline() == b"END\r\n"
        assert await ask(address.port, b"") == b"SERVER_ERROR too many connections\r\n"
    proxy.close()


async def test_it_listens_on_loopback_only(stand: Stand) -> None:
    with pytest.raises(UsageError, match="loopback only"):
        await Proxy(stand.proxy.resource, "127.0.0.1:1").listen({"0.0.0.0:0": None})


def test_the_tenant_is_the_prefix() -> None:
    assert by_prefix(":")(b"acme:user:7") == "acme"
    assert by_prefix("/")(b"acme/x") == "acme"
    assert by_prefix()(b"plain") == "plain"


def test_tenants_are_read_as_utf_8() -> None:
    assert by_prefix()("müller:7".encode()) == "müller"
    assert by_prefix()(b"\xff\xfe:7") == "\ufffd\ufffd", "no tenant has such a name"


async def test_a_client_that_says_nothing_is_cut_off_and_costs_the_server_nothing(
    stand: Stand, memcached: Any
) -> None:
    proxy = Proxy(stand.proxy.resource, f"127.0.0.1:{memcached[0]}", idle_timeout_s=0.2)
    (address,) = await proxy.listen({"127.0.0.1:0": None})
    async with connect(address.port) as (silent, _), connect(address.port) as (reader, writer):
        writer.write(b"get acme:a\r\n")
        assert await reader.readline() == b"END\r\n"
        assert [client.spoke for client in proxy._clients].count(False) == 1
        assert await asyncio.wait_for(silent.read(), 5) == b""
        assert await asyncio.wait_for(reader.read(), 5) == b"", "it was idle as well, in the end"
    assert proxy.counts["idle_ended"] == 2
    proxy.close()


async def test_where_all_places_are_taken_the_longest_idle_client_makes_way(
    stand: Stand, memcached: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.integrations.memcached_proxy.proxy.MAKES_WAY_S", 0.0)
    proxy = Proxy(stand.proxy.resource, f"127.0.0.1:{memcached[0]}", connections_max=20)
    (address,) = await proxy.listen({"127.0.0.1:0": None})
    held = [await asyncio.open_connection("127.0.0.1", address.port) for _ in range(20)]
    await wait_until(lambda: proxy.connections == 20)
    held[0][1].write(b"get acme:a\r\n")
    assert await held[0][0].readline() == b"END\r\n"
    assert await ask(address.port, b"get acme:none\r\n") == b"END\r\n"
    assert await asyncio.wait_for(held[1][0].read(), 5) == b"", "the first of those that never spoke"
    held[0][1].write(b"get acme:a\r\n")
    assert await held[0][0].readline() == b"END\r\n"
    assert proxy.counts["turned_away"] == 0
    for _, writer in held:
        writer.close()
    proxy.close()
