"""The real network: what holds between honest peers, and that no other peer can harm a node."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bursar.errors import (
    CrashedError,
    NoAnswerError,
    RemoteError,
    UnreachableError,
    UsageError,
)
from bursar.runtime import frames
from bursar.runtime.limits import Limits
from bursar.runtime.network import SocketNetwork
from bursar.runtime.routes import Address
from bursar.world import MILLISECOND_NS, SECOND_NS, Message


class Add(Message, frozen=True):
    left: int
    right: int


class Sum(Message, frozen=True):
    value: int


class Blob(Message, frozen=True):
    data: bytes


SECRET = bytes(32)

Open = Callable[..., Awaitable[SocketNetwork]]


@pytest.fixture
async def nodes() -> AsyncIterator[Open]:
    opened: list[SocketNetwork] = []

    async def open_node(name: str, **options: object) -> SocketNetwork:
        node = SocketNetwork(name, 1, **{"secret": SECRET, **options})  # type: ignore[arg-type]
        node.at = await node.listen("127.0.0.1:0")  # type: ignore[attr-defined]
        opened.append(node)
        return node

    yield open_node
    for node in opened:
        await node.close()


async def add(sender: str, message: Add) -> Sum:
    return Sum(message.left + message.right)


async def connect_raw(node: SocketNetwork) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", node.at.port)


def hello(name: str = "raw/1") -> bytes:
    return frames.encode(frames.HELLO, 0, "", frames.Hello(frames.VERSION, name, 1))


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def check_serves(node: SocketNetwork, nodes: Open) -> None:
    """The node still answers a stranger."""
    other = await nodes(f"other-{random.getrandbits(40)}", peers={node.name: str(node.at)})
    assert await other.call(node.name, "add", Add(2, 3), Sum, SECOND_NS) == Sum(5)


async def test_a_call_is_answered_and_the_handler_knows_who_asked(nodes: Open) -> None:
    seen: list[str] = []

    async def handler(sender: str, message: Add) -> Sum:
        seen.append(sender)
        return Sum(message.left + message.right)

    a = await nodes("a")
    a.serve("add", Add, handler)
    b = await nodes("b", peers={"a": str(a.at)})
    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)
    assert seen == ["b"]


async def test_a_node_answers_peers_that_dialled_it_without_having_their_address(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    b.serve("add", Add, add)
    await b.call("a", "add", Add(1, 2), Sum, SECOND_NS)
    assert await a.call("b", "add", Add(3, 4), Sum, SECOND_NS) == Sum(7)


async def test_many_calls_at_once_each_get_their_own_answer(nodes: Open) -> None:
    async def slow_add(sender: str, message: Add) -> Sum:
        await asyncio.sleep(0.001 * (message.left % 5))
        return Sum(message.left + message.right)

    a = await nodes("a")
    a.serve("add", Add, slow_add)
    b = await nodes("b", peers={"a": str(a.at)})
    calls = [b.call("a", "add", Add(i, i), Sum, 10 * SECOND_NS) for i in range(3000)]
    assert await asyncio.gather(*calls) == [Sum(2 * i) for i in range(3000)]


async def test_sends_arrive_also_those_made_before_the_connection(nodes: Open) -> None:
    seen: list[int] = []

    async def handler(sender: str, message: Sum) -> None:
        seen.append(message.value)

    a = await nodes("a")
    a.serve("told", Sum, handler)
    b = await nodes("b", peers={"a": str(a.at)})
    for value in range(100):
        b.send("a", "told", Sum(value))
    await until(lambda: len(seen) == 100)
    assert seen == list(range(100))


async def test_a_node_can_call_and_send_to_itself(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    assert await a.call("a", "add", Add(1, 1), Sum, SECOND_NS) == Sum(2)
    with pytest.raises(RemoteError, match="nothing is served"):
        await a.call("a", "nowhere", Add(1, 1), Sum, SECOND_NS)
    a.send("a", "add", Add(1, 1))


async def test_a_peer_that_is_away_is_unreachable_at_once_and_found_when_it_comes_back(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    address = str(a.at)
    b = await nodes("b", peers={"a": address})
    await b.call("a", "add", Add(1, 2), Sum, SECOND_NS)
    await a.close()
    await until(lambda: b._link_to("a") is None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(20):
        with pytest.raises(UnreachableError):
            await b.call("a", "add", Add(1, 2), Sum, 5 * SECOND_NS)
    assert loop.time() - began < 2.0
    again = SocketNetwork("a", 2, secret=SECRET)
    again.serve("add", Add, add)
    await again.listen(address)
    try:
        async with asyncio.timeout(5):
            while True:
                try:
                    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)
                    break
                except UnreachableError:
                    await asyncio.sleep(0.02)
    finally:
        await again.close()


async def test_a_call_without_answer_says_that_it_may_have_happened(nodes: Open) -> None:
    started = asyncio.Event()

    async def never(sender: str, message: Add) -> Sum:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    a = await nodes("a")
    a.serve("add", Add, never)
    b = await nodes("b", peers={"a": str(a.at)})
    with pytest.raises(NoAnswerError, match="in time"):
        await b.call("a", "add", Add(1, 2), Sum, 50 * MILLISECOND_NS)
    call = asyncio.ensure_future(b.call("a", "add", Add(1, 2), Sum, 60 * SECOND_NS))
    started.clear()
    await started.wait()
    a.crash()
    with pytest.raises(NoAnswerError, match="connection lost"):
        await call


async def test_a_failing_handler_and_a_wrong_answer_are_remote_errors(nodes: Open) -> None:
    async def fail(sender: str, message: Add) -> Sum:
        raise KeyError("secret")

    async def explain(sender: str, message: Add) -> Sum:
        raise UsageError("left must be positive")

    a = await nodes("a")
    a.serve("fail", Add, fail)
    a.serve("explain", Add, explain)
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    with pytest.raises(RemoteError, match=r"internal error \(KeyError\)") as caught:
        await b.call("a", "fail", Add(1, 2), Sum, SECOND_NS)
    assert "secret" not in str(caught.value)
    with pytest.raises(RemoteError, match="left must be positive"):
        await b.call("a", "explain", Add(1, 2), Sum, SECOND_NS)
    with pytest.raises(RemoteError, match="something else"):
        await b.call("a", "add", Add(1, 2), Blob, SECOND_NS)


async def test_unknown_topics_and_wrong_messages_never_reach_a_handler(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    with pytest.raises(RemoteError, match="nothing is served"):
        await b.call("a", "nowhere", Add(1, 2), Sum, SECOND_NS)
    with pytest.raises(RemoteError, match="not a message of topic"):
        await b.call("a", "add", Blob(b"x"), Sum, SECOND_NS)
    b.send("a", "nowhere", Add(1, 2))
    await until(lambda: a.counts["refused"] == 3)
    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)


async def test_a_message_larger_than_the_bound_is_refused_before_it_is_sent(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    await b.call("a", "add", Add(1, 2), Sum, SECOND_NS)
    with pytest.raises(UsageError, match="send it in parts"):
        await b.call("a", "add", Blob(bytes(frames.FRAME_MAX_BYTES)), Sum, SECOND_NS)
    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)


@pytest.mark.parametrize("seed", range(8))
async def test_garbage_is_cut_off_and_counted(nodes: Open, seed: int) -> None:
    chance = random.Random(seed)
    a = await nodes("a")
    a.serve("add", Add, add)
    for trial in range(20):
        reader, writer = await connect_raw(a)
        if trial % 2:
            writer.write(hello(f"raw/{trial}"))
        junk = chance.randbytes(chance.randrange(6, 2000))
        framed = struct.pack(">IBIB", len(junk), chance.randrange(6, 256), 0, 0) + junk[6:]
        writer.write(framed if trial % 4 < 2 else b"\xff" * 10 + junk)
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()
    assert a.counts["cut.garbage"] == 20
    await check_serves(a, nodes)


async def test_deeply_nested_and_ill_encoded_messages_are_refused(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    _, writer = await connect_raw(a)
    writer.write(hello())
    deep, text = b"\x91" * 100_000 + b"\x01", b"\x81\xa4left\xa3\xff\xff\xff"
    for number, (topic, body) in enumerate([(b"add", deep), (b"add", text), (b"\xff", b"")], start=1):
        size = 6 + len(topic) + len(body)
        writer.write(struct.pack(">IBIB", size, frames.CALL, number, len(topic)) + topic + body)
        await until(lambda: a.counts["refused"] == number)  # noqa: B023
    writer.close()
    await check_serves(a, nodes)


async def test_an_oversized_frame_is_cut_off_before_it_is_kept(nodes: Open) -> None:
    a = await nodes("a")
    a.serve("add", Add, add)
    reader, writer = await connect_raw(a)
    writer.write(hello() + struct.pack(">IBIB", frames.FRAME_MAX_BYTES + 1, frames.CALL, 1, 0))
    async with asyncio.timeout(5):
        said = await reader.read()
    assert b"the most is" in said
    assert a.counts["cut.garbage"] == 1
    writer.close()


async def test_half_a_frame_and_then_silence_is_cut_off(nodes: Open) -> None:
    limits = Limits(stall_timeout_ns=100 * MILLISECOND_NS, hello_timeout_ns=100 * MILLISECOND_NS)
    a = await nodes("a", limits=limits)
    a.serve("add", Add, add)
    for opening in (hello() + struct.pack(">I", 100) + b"half", b"", b"\x00\x00"):
        reader, writer = await connect_raw(a)
        writer.write(opening)
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()
    assert a.counts["cut.stalled"] == 3
    await check_serves(a, nodes)


async def test_a_quiet_but_whole_peer_is_not_cut_off(nodes: Open) -> None:
    limits = Limits(stall_timeout_ns=50 * MILLISECOND_NS, hello_timeout_ns=50 * MILLISECOND_NS)
    a = await nodes("a", limits=limits)
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    await b.call("a", "add", Add(1, 2), Sum, SECOND_NS)
    await asyncio.sleep(0.3)
    assert a.counts["cut.stalled"] == 0
    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)


async def test_a_peer_that_does_not_read_is_dropped_to_then_cut_off(nodes: Open) -> None:
    limits = Limits(queue_max_bytes=64 * 1024, stall_timeout_ns=200 * MILLISECOND_NS)
    a = await nodes("a", limits=limits)
    a.serve("add", Add, add)
    _, writer = await connect_raw(a)
    writer.write(hello("slow/1"))
    await until(lambda: a._link_to("slow/1") is not None)
    for _ in range(4000):
        a.send("slow/1", "told", Blob(bytes(4096)))
    assert a.counts["dropped"] > 0
    with pytest.raises(UnreachableError, match="queue is full"):
        await a.call("slow/1", "add", Add(1, 2), Sum, SECOND_NS)
    await until(lambda: a.counts["cut.slow"] == 1)
    writer.close()
    await check_serves(a, nodes)


async def test_a_peer_that_asks_and_does_not_read_the_answers_costs_bounded_memory(nodes: Open) -> None:
    async def big(sender: str, message: Add) -> Blob:
        return Blob(bytes(16 * 1024))

    limits = Limits(queue_max_bytes=64 * 1024, unread_max_bytes=1_000_000)
    a = await nodes("a", limits=limits)
    a.serve("big", Add, big, anyone=True)
    a.serve("add", Add, add)
    _, writer = await connect_raw(a)
    writer.write(hello("greedy/1") + frames.encode(frames.CALL, 1, "big", Add(1, 2)) * 5000)
    largest = 0

    def gone() -> bool:
        nonlocal largest
        link = a._link_to("greedy/1")
        if link is not None and link._transport is not None:
            largest = max(largest, link._transport.get_write_buffer_size())
        return a.counts["cut.slow"] == 1

    await until(gone)
    assert 0 < largest < 1_200_000
    writer.close()
    await check_serves(a, nodes)


async def test_more_requests_at_once_than_the_bound_are_refused(nodes: Open) -> None:
    go = asyncio.Event()

    async def wait(sender: str, message: Add) -> Sum:
        await go.wait()
        return Sum(0)

    a = await nodes("a", limits=Limits(requests_max=10))
    a.serve("add", Add, wait)
    b = await nodes("b", peers={"a": str(a.at)})
    calls = [asyncio.ensure_future(b.call("a", "add", Add(1, 2), Sum, 5 * SECOND_NS)) for _ in range(15)]
    await until(lambda: a.counts["refused"] == 5)
    go.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, RemoteError) for answer in answers) == 5
    assert answers.count(Sum(0)) == 10


async def test_connections_beyond_the_bound_are_turned_away_and_the_rest_served(nodes: Open) -> None:
    a = await nodes("a", limits=Limits(connections_max=200))
    a.serve("add", Add, add)
    b = await nodes("b", peers={"a": str(a.at)})
    await b.call("a", "add", Add(1, 2), Sum, SECOND_NS)
    raw = []
    for number in range(1000):
        raw.append(await connect_raw(a))
        raw[-1][1].write(hello(f"raw/{number}"))
    await until(lambda: a.counts["cut.full"] == 850)
    await until(lambda: len(a._links) == 151)
    assert await b.call("a", "add", Add(1, 2), Sum, SECOND_NS) == Sum(3)
    for _, writer in raw:
        writer.close()
    await until(lambda: len(a._links) == 1)
    await check_serves(a, nodes)


async def test_one_peer_cannot_take_all_connections(nodes: Open) -> None:
    a = await nodes("a", limits=Limits(connections_per_peer_max=3))
    raw = [await connect_raw(a) for _ in range(10)]
    for _, writer in raw:
        writer.write(hello("same/1"))
    await until(lambda: a.counts["cut.replaced"] == 7)
    await until(lambda: len(a._peers["same/1"]) == 3)
    for _, writer in raw:
        writer.close()


async def test_another_version_and_another_name_are_refused_with_the_reason(nodes: Open) -> None:
    a = await nodes("a")
    reader, writer = await connect_raw(a)
    writer.write(frames.encode(frames.HELLO, 0, "", frames.Hello(99, "future/1", 1)))
    async with asyncio.timeout(5):
        assert b"run the same version" in await reader.read()
    writer.close()
    b = await nodes("b", peers={"c": str(a.at)})
    with pytest.raises(UnreachableError, match="this is a, not c"):
        await b.call("c", "add", Add(1, 2), Sum, SECOND_NS)


async def test_nothing_listens_beyond_loopback_without_tls() -> None:
    node = SocketNetwork("a", 1)
    for address in ("0.0.0.0:0", "[::]:0", "example.org:0"):
        with pytest.raises(UsageError, match="without TLS"):
            await node.listen(address)


def test_addresses_are_read_or_refused_with_an_example() -> None:
    assert Address.parse("[::1]:70") == Address("::1", 70)
    assert str(Address("::1", 70)) == "[::1]:70"
    for text in ("", "host", "host:", ":70", "host:99999", "host:x"):
        with pytest.raises(UsageError, match="for example"):
            Address.parse(text)


async def test_the_ports_of_a_crashed_node_do_nothing(nodes: Open) -> None:
    a = await nodes("a")
    a.crash()
    with pytest.raises(CrashedError):
        a.send("b", "add", Add(1, 2))
    with pytest.raises(CrashedError):
        await a.call("b", "add", Add(1, 2), Sum, SECOND_NS)


def test_frames_split_at_any_place_come_out_the_same() -> None:
    seed = 5
    chance = random.Random(seed)
    sent = [(frames.CALL, i, b"t" * (i % 9), chance.randbytes(chance.randrange(1, 300))) for i in range(200)]
    stream = b"".join(frames.encode(kind, i, topic.decode(), body) for kind, i, topic, body in sent)
    splitter, got = frames.Splitter(), []
    while stream:
        cut = chance.choice((1, 3, 10, 1000))
        got += splitter.feed(stream[:cut])
        stream = stream[cut:]
    decode = frames.decoder_of(bytes).decode
    assert [(kind, i, topic, decode(body)) for kind, i, topic, body in got] == sent, f"seed {seed}"
    assert not splitter.partial
