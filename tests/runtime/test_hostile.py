"""A client is not a node: whatever it says in the nodes' own words changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.errors import RemoteError, UnreachableError
from bursar.policy import build
from bursar.quotas.messages import Credit
from bursar.quotas.tree import Ping, Pong
from bursar.rates.columns import make_allowances
from bursar.rates.messages import UNBOUNDED, Allowance, Grant, Poll, Started
from bursar.runtime import frames, identity
from bursar.runtime.daemon import Daemon
from bursar.runtime.frames import Hello
from bursar.runtime.host import Host
from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

HUGE = 2**62
TOKEN = "a token of the daemon's own"
SECRET, OTHER = bytes(32), bytes([1] * 32)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    policy = build(
        {
            "daemon": {
                "name": "a",
                "listen": "127.0.0.1:0",
                "http": "off",
                "state": str(tmp_path / "state"),
                "token_file": str(tmp_path / "token"),
            },
            "resource": {
                "llm": {"kind": "quota", "tenant": {"acme": {"limit": 100}}},
                "cache": {
                    "kind": "rate",
                    "period": "200ms",
                    "servers": {"a": "10k/s"},
                    "tenant": {"acme": {"reservation": "100/s", "limit": "1k/s"}},
                },
            },
        }
    )
    opened = await Daemon.open(policy)
    yield opened
    await opened.close()


class Raw:
    """Bytes to a node, and what it answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, port: int, *frames_: bytes) -> Raw:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.writer.write(b"".join(frames_))
        return raw

    async def read_frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(5):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            body = await self.reader.readexactly(size)
        return body[0], body[6:]

    async def read_all(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def call(self, topic: str, message: Message) -> str:
        """The text of the refusal."""
        self.writer.write(frames.encode(frames.CALL, 1, topic, message))
        kind, body = await self.read_frame()
        assert kind == frames.FAILURE, (kind, body)
        return str(frames.decoder_of(str).decode(body))

    def send(self, topic: str, message: Message) -> None:
        self.writer.write(frames.encode(frames.SEND, 0, topic, message))


def hello(name: str, nonce: bytes = b"") -> bytes:
    return frames.encode(frames.HELLO, 0, "", Hello(frames.VERSION, name, 1, nonce))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def intrude(daemon: Daemon, name: str = "mallory/1") -> Raw:
    listening = daemon.host.world.listening
    assert listening is not None
    raw = await Raw.dial(listening.port, hello(name))
    await raw.read_frame()
    return raw


async def test_credits_of_a_client_let_nothing_through(daemon: Daemon) -> None:
    client = await bursar.connect(f"bursar://{daemon.host.world.listening}", token=TOKEN)
    await client.resource("llm").acquire("acme", 100)
    raw = await intrude(daemon)
    source = "mallory/1"
    account = next(iter(daemon.host.resources["llm"].decider.courier.book.ledger.accounts), "acme")  # type: ignore[attr-defined]
    for number in range(1, 5):
        raw.send("quota/llm", Credit(account, source, "a", ((number, 100),), 0))
    assert "members of the fleet" in await raw.call("quota/llm", Credit(account, source, "a", ((5, 100),), 0))
    with pytest.raises(bursar.Refused):
        await client.resource("llm").acquire("acme", 1)
    assert daemon.host.world.sockets.counts["refused.not_a_member"] == 5
    await client.close()


async def test_epochs_of_a_client_do_not_end_the_control_of_a_rate(daemon: Daemon) -> None:
    client = await bursar.connect(f"bursar://{daemon.host.world.listening}", token=TOKEN)
    raw = await intrude(daemon)
    raw.send("rate/cache/a", Poll(HUGE, 0, True, HUGE))
    row = Allowance("acme", UNBOUNDED, 0)
    raw.send("rate/cache/a", Grant(HUGE, 1, HUGE, 1, 0, SECOND_NS, make_allowances([row])))
    assert "members" in await raw.call("rate/cache", Started("a"))
    periods = set()
    async with asyncio.timeout(10):
        while len(periods) < 3:
            grant = await client.resource("cache").acquire("acme", 5, wait=2.0)
            periods.add(grant.period)
    assert max(periods) < HUGE
    assert daemon.host.world.sockets.counts["refused.not_a_member"] == 3
    await client.close()


@pytest.mark.parametrize(
    ("topic", "message"), [("/quotas/llm/ping", Ping()), ("rate/cache/a", Poll(1, 0, True, 1))]
)
async def test_every_topic_of_nodes_is_refused_to_clients(
    daemon: Daemon, topic: str, message: Message
) -> None:
    raw = await intrude(daemon)
    assert "members of the fleet" in await raw.call(topic, message)


async def test_only_the_door_is_for_anyone(daemon: Daemon) -> None:
    served = daemon.host.world.sockets._served.values()
    assert [each.topic for each in served if each.anyone] == ["bursar/client"]
    assert len(served) > 5


# -- names and proofs


async def echo(sender: str, message: Ping) -> Pong:
    return Pong()


@pytest.fixture
async def node() -> AsyncIterator[Any]:
    a = SocketNetwork("a", 1, secret=SECRET)
    a.serve("ping", Ping, echo)
    a.at = await a.listen("127.0.0.1:0")  # type: ignore[attr-defined]
    yield a
    await a.close()


async def ask(node: Any, caller: SocketNetwork) -> Pong:
    caller.add_route("a", node.at)
    try:
        answer: Pong = await caller.call("a", "ping", Ping(), Pong, 2 * SECOND_NS)
        return answer
    finally:
        await caller.close()


async def test_who_knows_the_secret_is_a_peer_and_who_does_not_is_none(node: Any) -> None:
    assert await ask(node, SocketNetwork("b", 1, secret=SECRET)) == Pong()
    with pytest.raises(RemoteError, match=r"web/1 is none"):
        await ask(node, SocketNetwork("web/1", 1))
    with pytest.raises(UnreachableError, match="nothing proves it"):
        await ask(node, SocketNetwork("b", 1))
    with pytest.raises(UnreachableError, match="does not prove"):
        await ask(node, SocketNetwork("b", 1, secret=OTHER))


async def test_a_node_believes_nobody_who_only_sits_at_the_right_address(node: Any) -> None:
    """It took the port of a node that is down, and knows no secret."""
    squatter = SocketNetwork("b", 1, secret=OTHER)
    node.add_route("b", await squatter.listen("127.0.0.1:0"))
    with pytest.raises(UnreachableError, match="does not prove"):
        await node.call("b", "ping", Ping(), Pong, 2 * SECOND_NS)
    await squatter.close()


async def test_a_proof_is_good_for_one_connection_and_one_side(node: Any) -> None:
    nonce = identity.draw_nonce()
    dialler = Hello(frames.VERSION, "b", 1, nonce)
    raw = await Raw.dial(node.at.port, hello("b", nonce))
    _, body = await raw.read_frame()
    dialled = frames.decoder_of(Hello).decode(body)
    good = identity.prove(SECRET, identity.DIALLER, dialler, dialled)
    for wrong in (dialled.proof, identity.prove(OTHER, identity.DIALLER, dialler, dialled), b"", good[:-1]):
        other = await Raw.dial(node.at.port, hello("b", nonce), frames.encode(frames.PROOF, 0, "", wrong))
        assert b"does not prove" in await other.read_all()
    replayed = await Raw.dial(node.at.port, hello("b", nonce), frames.encode(frames.PROOF, 0, "", good))
    assert b"does not prove" in await replayed.read_all()
    raw.writer.write(frames.encode(frames.PROOF, 0, "", good) + frames.encode(frames.CALL, 1, "ping", Ping()))
    assert (await raw.read_frame())[0] == frames.REPLY
    assert node.counts["cut.identity"] == 5


async def test_nothing_is_answered_before_the_proof(node: Any) -> None:
    raw = await Raw.dial(
        node.at.port, hello("b", identity.draw_nonce()), frames.encode(frames.CALL, 1, "ping", Ping())
    )
    assert b"before the proof" in await raw.read_all()
    assert node.counts["cut.garbage"] == 1


async def test_who_is_no_member_any_more_is_refused_although_it_knows_the_secret(node: Any) -> None:
    members = {"b"}
    node.is_member = members.__contains__
    b = SocketNetwork("b", 1, secret=SECRET, peers={"a": node.at})
    assert await b.call("a", "ping", Ping(), Pong, SECOND_NS) == Pong()
    members.clear()
    with pytest.raises(RemoteError, match="b is none"):
        await b.call("a", "ping", Ping(), Pong, SECOND_NS)
    assert node.counts["refused.not_a_member"] == 1
    await b.close()


async def test_messages_for_a_node_never_go_to_a_client_of_its_name(node: Any) -> None:
    raw = await Raw.dial(node.at.port, hello("b"))
    assert b"nothing proves it" in await raw.read_all()
    with pytest.raises(UnreachableError):
        await node.call("b", "ping", Ping(), Pong, SECOND_NS)


async def test_a_stream_of_refusals_is_one_line_in_the_logs(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw = await Raw.dial(node.at.port, hello("web/1"))
    for _ in range(1000):
        raw.send("ping", Ping())
    await until(lambda: node.counts["refused.not_a_member"] == 1000)
    assert sum(record.getMessage() == "refused.not_a_member" for record in caplog.records) == 1


async def test_nodes_that_share_a_store_know_each_other_without_being_told(tmp_path: Path) -> None:
    def make(name: str) -> Any:
        settings = {"name": name, "listen": "127.0.0.1:0", "http": "off", "state": str(tmp_path / name)}
        llm = {"kind": "quota", "tenant": {"acme": {"limit": 100}}}
        store = f"sqlite://{tmp_path}/store.db"
        return build({"store": store, "daemon": settings, "resource": {"llm": llm}})

    hosts = [await Host.open(make(name), listen="127.0.0.1:0") for name in ("a", "b")]
    try:
        for host, amount in zip(hosts, (60, 40), strict=True):  # more than half: units have to move
            await host.resources["llm"].acquire("acme", amount, wait=10.0)
        assert hosts[0].world.sockets.secret == hosts[1].world.sockets.secret
        linked = [links for host in hosts for links in host.world.sockets._peers.values()]
        assert linked and all(link.proved for links in linked for link in links)
        a, b = hosts
        accounts = a.resources["llm"].decider.courier.book.ledger.accounts  # type: ignore[attr-defined]
        forged = Credit(next(iter(accounts)), "c", "a", ((1, 100),), 0)
        assert await b.world.network.call("a", "quota/llm", forged, Pong | None, SECOND_NS) is None
        with pytest.raises(bursar.Refused):  # a member speaks for its own ledger only
            await a.resources["llm"].acquire("acme", 1, wait=5.0)
    finally:
        for host in hosts:
            await host.close()
