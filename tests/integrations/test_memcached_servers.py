"""The proxy before several servers, beside a memcached that is asked straight: what clients are told is the
same, whatever the commands, the pieces they come in, and who is slower."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from memcached_stand import Stand, ask, connect, run_memcached, run_proxy, wait_until

from bursar.errors import UsageError
from bursar.integrations.memcached_proxy import Proxy, Refusals, by_pattern
from bursar.integrations.memcached_proxy.ketama import Ring
from bursar.integrations.memcached_proxy.runs import RUN_MAX, RunReader

pytestmark = pytest.mark.needs("memcached")


@pytest.fixture
async def servers() -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as held:
        yield [await held.enter_async_context(run_memcached()) for _ in range(3)]


def draw(rng: random.Random) -> bytes:
    """A command of acme's, of any sort that answers the same on any server."""
    key, size = b"acme:%d" % rng.randrange(12), rng.choice([0, 1, 9, 700])
    value = rng.choice([b"END\r\n", b"VALUE ", b"\r\n", b"x"])
    data = (value * (size // len(value) + 1))[:size]
    number = rng.randrange(100)
    return rng.choice(
        [
            b"get %b\r\n" % key,
            b"get %b\r\n" % key,
            b"gat %d %b\r\n" % (number + 60, key),
            b"set %b %d 0 %d\r\n%b\r\n" % (key, number, size, data),
            b"set %b 0 0 %d noreply\r\n%b\r\n" % (key, size, data),
            b"add %b 0 0 %d\r\n%b\r\n" % (key, size, data),
            b"append %b 0 0 2 noreply\r\nab\r\n" % key,
            b"incr %b %d\r\n" % (key, number),
            b"incr %b 1 noreply\r\n" % key,
            b"set %b 0 0 2\r\n%02d\r\n" % (key, number),
            b"delete %b\r\n" % key,
            b"delete %b noreply\r\n" % key,
            b"touch %b 100\r\n" % key,
            b"mg %b v f q k O%d\r\n" % (key, number),
            b"mg %b v\r\n" % key,
            b"ms %b %d T0 F%d\r\n%b\r\n" % (key, size, number, data),
            b"ms %b %d q\r\n%b\r\n" % (key, size, data),
            b"md %b q\r\n" % key,
            b"ma %b D%d N0 J3 v\r\n" % (key, number),
            b"mn\r\n",
            b"bogus\r\n",
        ]
    )


@pytest.mark.parametrize(("count", "seed"), [(1, 1), (1, 2), (3, 3), (3, 4)])
async def test_a_client_is_told_what_one_memcached_would_have_said(
    servers: list[Any], count: int, seed: int
) -> None:
    rng = random.Random(seed)
    stream = b"".join(draw(rng) for _ in range(600))
    async with run_memcached() as (straight, _), run_proxy([port for port, _ in servers[:count]]) as stand:
        expected = await ask(straight, stream)
        async with connect(stand.port) as (reader, writer):
            at = 0
            while at < len(stream):
                size = rng.choice([1, 30, 500, 20_000])
                writer.write(stream[at : at + size])
                at += size
                if rng.random() < 0.3:
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 20) == expected
        await wait_until(lambda: stand.tokens.open == 0)


async def test_a_get_of_many_keys_is_one_answer_over_all_servers(servers: list[Any]) -> None:
    keys = [b"acme:%d" % number for number in range(30)]
    async with run_proxy([port for port, _ in servers]) as stand:
        assert len({stand.proxy.ring.find(key) for key in keys}) == 3  # type: ignore[union-attr]
        await ask(
            stand.port, b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(key), key) for key in keys[:25])
        )
        got = await ask(stand.port, b"get %b\r\ngat 100 %b\r\nget acme:99\r\n" % ((b" ".join(keys),) * 2))
        first, second, rest = got.split(b"END\r\n", 2)
        for part in (first, second):
            assert sorted(part.split(b"VALUE ")[1:]) == sorted(
                b"%b 0 %d\r\n%b\r\n" % (key, len(key), key) for key in keys[:25]
            )
        assert rest == b"END\r\n"
        assert stand.tokens.left["acme"] == 1_000_000 - 25 - 61
        assert stand.tokens.open == 0


async def test_answers_keep_their_order_where_a_server_is_slow(servers: list[Any]) -> None:
    big = b"v" * 100_000
    async with run_proxy([port for port, _ in servers]) as stand:
        places = {place: b"acme:%d" % number for number in range(50) for place in [find(stand, number)]}
        stored = b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(big), big) for key in places.values())
        await ask(stand.port, stored)
        servers[0][1].send_signal(signal.SIGSTOP)
        async with connect(stand.port) as (reader, writer):
            order = [places[0], *[places[1], places[2]] * 10, places[0]]
            writer.write(b"".join(b"get %b\r\n" % key for key in order) + b"bogus\r\nmn\r\n")
            (client,) = stand.proxy._clients
            await wait_until(lambda: client._paused)
            assert client._kept_bytes < 3_000_000, "others are not read on meanwhile"
            servers[0][1].send_signal(signal.SIGCONT)
            for key in order:
                head = b"VALUE %b 0 %d\r\n" % (key, len(big))
                expected = head + big + b"\r\nEND\r\n"
                assert await asyncio.wait_for(reader.readexactly(len(expected)), 10) == expected
            assert await reader.readline() + await reader.readline() == b"ERROR\r\nMN\r\n"


def find(stand: Stand, number: int) -> int:
    ring = stand.proxy.ring
    assert ring is not None
    return ring.find(b"acme:%d" % number)


async def test_one_server_of_several_may_die_and_its_keys_alone_are_concerned(servers: list[Any]) -> None:
    async with run_proxy([port for port, _ in servers]) as stand:
        dead = {find(stand, number) == 1: b"acme:%d" % number for number in range(20)}
        async with connect(stand.port) as (reader, writer):
            for key in dead.values():
                writer.write(b"get %b\r\n" % key)
                assert await reader.readline() == b"END\r\n"
            servers[1][1].kill()
            await asyncio.to_thread(servers[1][1].wait)
            await wait_until(lambda: 1 not in next(iter(stand.proxy._clients))._links)
            for _ in range(3):
                writer.write(b"get %b\r\nget %b\r\n" % (dead[True], dead[False]))
                assert await reader.readline() == b"CLIENT_ERROR the memcached server cannot be reached\r\n"
                assert await reader.readline() == b"END\r\n"


def test_keys_are_where_libmemcached_looks_for_them() -> None:
    """As pylibmc put them, with `ketama_weighted`."""
    ring = Ring([("127.0.0.1", 11211), ("127.0.0.2", 11211), ("127.0.0.1", 11219)])
    told = "".join(str(ring.find(b"acme:%d" % number)) for number in range(40))
    assert told == "1112212022211001202210210202220122202210"


def test_a_server_is_named_once() -> None:
    with pytest.raises(UsageError, match="name each once"):
        Proxy(None, ["a:1", "a:1"])  # type: ignore[arg-type]


# --- replies that were not wanted, or come anyway -----------------------------------------------


async def test_what_wants_no_reply_never_shifts_the_next(servers: list[Any]) -> None:
    """memcached says that a value is too large also to whom it should not answer."""
    large = b"set acme:a 0 0 1048576 noreply\r\n" + b"x" * 1048576 + b"\r\n"
    for count in (1, 3):
        async with run_proxy([port for port, _ in servers[:count]]) as stand:
            sent = large + b"flush_all noreply\r\nverbosity 1 noreply\r\nget acme:a\r\nget acme:b\r\n"
            assert await ask(stand.port, sent) == b"END\r\nEND\r\n"
            assert stand.tokens.open == 0


QUIET = b"mg few:a v q\r\nms few:a 1 q k O7\r\nx\r\nmd few:a q\r\nma few:a q\r\nmn\r\n"
PLAIN = (
    b"get few:a\r\nset few:a 0 0 1\r\nx\r\nset few:a 0 0 1 noreply\r\nx\r\ndelete few:a\r\nincr few:a 1\r\n"
)
ERROR = b"CLIENT_ERROR refused: few has used its tokens; retry in 0.250 s\r\n"


@pytest.mark.parametrize(
    ("refusals", "quiet", "plain"),
    [
        (Refusals(), ERROR * 4 + b"MN\r\n", ERROR * 4),
        (
            Refusals("miss", "not-stored"),
            b"NS k" + b"few:a O7\r\n" + ERROR + b"NF\r\nMN\r\n",
            b"END\r\nNOT_STORED\r\n" + ERROR + b"NOT_FOUND\r\n",
        ),
        (
            Refusals("miss", "not-stored", "not-found"),
            b"NS kfew:a O7\r\nNF\r\nNF\r\nMN\r\n",
            b"END\r\nNOT_STORED\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
        ),
    ],
)
async def test_a_refusal_is_said_as_was_chosen(
    servers: list[Any], refusals: Refusals, quiet: bytes, plain: bytes
) -> None:
    async with run_proxy([servers[0][0]], refusals=refusals) as stand:
        stand.tokens.left["few"] = 0
        assert await ask(stand.port, QUIET) == quiet
        assert await ask(stand.port, PLAIN) == plain
        assert stand.proxy.counts["refused"] == 9


def test_a_refusal_that_is_not_known_is_said_so() -> None:
    with pytest.raises(UsageError, match="refused reads"):
        Refusals(reads="never")  # type: ignore[arg-type]


# --- whose key ----------------------------------------------------------------------------------


async def test_the_tenant_may_stand_anywhere_in_a_key(servers: list[Any]) -> None:
    pattern = by_pattern(r":\d+:(?P<tenant>[^:]+):")
    async with run_proxy([servers[0][0]], find_tenant=pattern) as stand:
        got = await ask(stand.port, b"get :1:acme:user\r\nget :2:acme:user\r\nget acme:user\r\nget :1:x\r\n")
        stranger = b"CLIENT_ERROR no tenant for this key\r\n"
        assert got == b"END\r\nEND\r\n" + stranger + stranger
        assert stand.tokens.left["acme"] == 1_000_000 - 2
    for wrong, why in ((r"(", "no regular expression"), (r":\d+:", "no group named tenant")):
        with pytest.raises(UsageError, match=why):
            by_pattern(wrong)


async def test_a_key_that_is_encoded_belongs_to_whom_it_says_inside(servers: list[Any]) -> None:
    async with run_proxy([servers[0][0]]) as stand:
        # "few:a" in Base64 has no separator, and that of "acme:a" must not be charged to anybody else.
        got = await ask(stand.port, b"mg ZmV3OmE= v b\r\nmg ZmV3OmE= v b\r\nmg ZmV3OmE= v b\r\n")
        assert got.startswith(b"EN") and got.endswith(b"CLIENT_ERROR refused: " + ERROR.partition(b": ")[2])


@pytest.mark.parametrize(
    "data",
    [
        b"get acme:" + b"k" * 246 + b"\r\n",
        b"get acme:a acme:b\r\n",
        b"get  acme:a\r\n",
        b"get acme:\x7fa\r\n",
        b"get acme\r\n",
        b"set acme:a 0 0 3\r\nabcd\r\n",
        b"set acme:a 0 -1 3\r\nabc\r\n",
        b"set acme:a 0 0 3 noreply\r\nabc\r\n",
        b"set acme:a 0 0 3\r\nab",
        b"gets acme:a\r\n",
        b"get acme:a",
    ],
)
def test_what_is_not_plain_is_read_with_care(data: bytes) -> None:
    assert RunReader(b":").read(data, 0) is None


def test_a_run_is_of_one_tenant_and_bounded() -> None:
    reader = RunReader(b":")
    run = reader.read(b"get a:1\r\nset a:2 0 0 1\r\nx\r\nget a:3\r\nget b:1\r\n", 0)
    assert run is not None and (run[0], run[1], len(run[2])) == ("a", 3, 3)
    long = reader.read(b"get a:1\r\n" * 500, 0)
    assert long is not None and long[1] == RUN_MAX
    mixed = reader.read(b"get a:1\r\nset a:2 0 0 1\r\nx\r\n" + b"get a:1\r\n" * 500, 0)
    assert mixed is not None and mixed[1] <= RUN_MAX


# --- in and out ---------------------------------------------------------------------------------


@pytest.mark.needs("openssl")
async def test_clients_with_a_certificate_may_come_from_elsewhere(tmp_path: Any, servers: list[Any]) -> None:
    from bursar.policy.values import Tls
    from bursar.runtime.tls import Certificates
    from bursar_lab.storm.certificates import Authority

    ours = Authority(tmp_path / "pem").issue("proxy", ["proxy"], "127.0.0.1")
    tls = Tls(**ours.table())
    async with run_proxy([servers[0][0]], tls=tls) as stand:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", stand.port, ssl=Certificates(tls).dialling
        )
        writer.write(b"set acme:a 0 0 1\r\nx\r\nget acme:a\r\n")
        assert (
            await asyncio.wait_for(reader.readexactly(34), 10)
            == b"STORED\r\nVALUE acme:a 0 1\r\nx\r\nEND\r\n"
        )
        writer.close()
        plain, speaking = await asyncio.open_connection("127.0.0.1", stand.port)
        speaking.write(b"get acme:a\r\n")
        assert b"VALUE" not in await asyncio.wait_for(plain.read(), 10)
        speaking.close()


async def test_what_happened_is_told_to_prometheus(servers: list[Any]) -> None:
    import httpx

    from bursar.integrations.memcached_proxy.metrics import make_app

    async with run_proxy([servers[0][0]]) as stand:
        await ask(stand.port, b"get acme:a\r\n" * 5 + b"get few:a\r\n" * 3 + b"get nobody:a\r\n")
        transport = httpx.ASGITransport(app=make_app(stand.proxy))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            text = (await client.get("/metrics")).text
            assert (await client.get("/")).status_code == 404
    assert "\nbursar_memcached_requests_total 7\n" in text
    assert "\nbursar_memcached_refused_total 1\n" in text
    assert "\nbursar_memcached_strangers_total 1\n" in text
    assert "# TYPE bursar_memcached_connected gauge\n" in text
