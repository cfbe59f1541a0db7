from __future__ import annotations

import asyncio
import itertools
import random
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from bursar.errors import (
    BursarError,
    FormatError,
    NodeExistsError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    TooLargeError,
    UsageError,
)
from bursar.runtime.clock import BootClock
from bursar.stores import open_store, zookeeper_wire
from bursar.stores.credentials import Credentials
from bursar.stores.zookeeper import ZookeeperStore, read_ensemble
from bursar.stores.zookeeper_link import Link
from bursar.world import SECOND_NS, Create, Set, Store
from bursar_lab.zookeeper_server import ZookeeperServers

from .contract import StoreContract, soon, until_gone
from .kept import Kept, SetClock

pytestmark = pytest.mark.needs("zookeeper")

numbers = itertools.count()
PATIENT_NS = 20 * SECOND_NS
"""A busy machine stands still for seconds; sessions that are to end are given less, or ended."""


@pytest.fixture(scope="module")
def server() -> Iterator[ZookeeperServers]:
    with ZookeeperServers(1) as servers:
        yield servers


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZookeeperServers]:
    with ZookeeperServers(3) as servers:
        yield servers


class ZookeeperVenue:
    patience_s = 10.0

    def __init__(self, servers: ZookeeperServers) -> None:
        self.clock = BootClock()
        self.servers = servers
        self.chroot = f"/venue-{next(numbers)}"
        self.stores: list[ZookeeperStore] = []

    async def open(self, timeout_ns: int = PATIENT_NS) -> ZookeeperStore:
        store = await open_store(self.servers.url(self.chroot), clock=self.clock, timeout_ns=timeout_ns)
        assert isinstance(store, ZookeeperStore)
        self.stores.append(store)
        return store

    async def expire(self, store: Store) -> None:
        """Close the session from another connection, which takes its id and password: the owner's
        connection is cut, and when it comes back the session is over."""
        assert isinstance(store, ZookeeperStore)
        link = store._link
        await Link(link._ensemble, self.clock, link.timeout_ns).end(link.credentials)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture
async def venue(server: ZookeeperServers) -> AsyncIterator[ZookeeperVenue]:
    venue = ZookeeperVenue(server)
    yield venue
    await venue.close()


class TestZookeeperStore(StoreContract):
    """The contract on one server."""


@pytest.fixture
async def three(ensemble: ZookeeperServers) -> AsyncIterator[ZookeeperVenue]:
    venue = ZookeeperVenue(ensemble)
    yield venue
    await venue.close()


class TestEnsemble:
    """Three servers, of which the leader is killed in the middle."""

    async def test_no_answered_change_is_lost_and_no_unknown_one_is_half_done(
        self, three: ZookeeperVenue
    ) -> None:
        stores = [await three.open(6 * SECOND_NS) for _ in range(3)]
        for path in ("/left", "/right"):
            await stores[0].create(path)
        answered: list[str] = []
        unknown: list[str] = []
        stop = asyncio.Event()

        async def write(lane: int) -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                name = f"{lane}-{number}"
                try:
                    await stores[lane].transact([Create(f"/left/{name}"), Create(f"/right/{name}")])
                    answered.append(name)
                except StoreUnknownError:
                    unknown.append(name)

        lanes = [asyncio.ensure_future(write(lane)) for lane in range(3)]
        await asyncio.sleep(0.5)
        before = len(answered)
        leader = three.servers.leader()
        three.servers.kill(leader)
        async with asyncio.timeout(20):
            while len(answered) < before + 100:
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*lanes)
        await stores[0].sync()
        left, right = await stores[0].children("/left"), await stores[0].children("/right")
        assert left == right
        assert set(answered) <= set(left) <= {*answered, *unknown}
        three.servers.start(leader)
        three.servers.wait_until_serving()

    async def test_sessions_ephemeral_nodes_and_watches_outlive_the_leader(
        self, three: ZookeeperVenue
    ) -> None:
        one, two = await three.open(8 * SECOND_NS), await three.open(8 * SECOND_NS)
        await one.create("/e", ephemeral=True)
        await two.sync()
        watch = await two.watch("/e")
        session = one.session
        leader = three.servers.leader()
        three.servers.kill(leader)
        async with asyncio.timeout(15):
            while True:
                try:
                    await one.set("/e", b"again")
                    break
                except StoreUnknownError:
                    continue
        await soon(three, watch.changed())
        await two.sync()
        data, stat = await two.get("/e")
        assert (data, stat.owner, one.session) == (b"again", session, session)
        three.servers.start(leader)
        three.servers.wait_until_serving()

    async def test_without_a_majority_nothing_is_answered_and_nothing_is_trusted_for_long(
        self, three: ZookeeperVenue
    ) -> None:
        store = await three.open(2 * SECOND_NS)
        leader = three.servers.leader()
        other = (leader + 1) % 3
        three.servers.kill(leader)
        three.servers.kill(other)
        with pytest.raises(StoreUnknownError):
            await soon(three, store.create("/a"))
        await asyncio.sleep(1.5)
        assert store.trusted_until() <= three.clock.now()
        three.servers.start(leader)
        three.servers.start(other)
        three.servers.wait_until_serving()


async def test_a_paused_server_is_left_for_another(three: ZookeeperVenue) -> None:
    store = await three.open(3 * SECOND_NS)
    assert store._link._wire is not None
    port = store._link._wire._transport.get_extra_info("peername")[1]  # type: ignore[union-attr]
    number = three.servers.ports.index(port)
    session = store.session
    three.servers.pause(number)
    try:
        async with asyncio.timeout(12):
            while True:
                try:
                    await store.create("/a")
                    break
                except StoreUnknownError:
                    continue
                except NodeExistsError:
                    break
        assert store.session == session
    finally:
        three.servers.resume(number)


async def test_a_session_is_trusted_from_the_sending_however_late_the_answer_comes(
    venue: ZookeeperVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    venue.clock = clock = SetClock()
    begin, read_connected, begun = Link._begin, zookeeper_wire.read_connected, list[int]()

    def read_late(body: bytes) -> zookeeper_wire.Connected:
        clock.ns += SECOND_NS
        return read_connected(body)

    def begin_and_look(self: Link, *arguments: Any) -> None:
        begin(self, *arguments)
        begun.append(self.trusted_until_ns)

    monkeypatch.setattr(zookeeper_wire, "read_connected", read_late)
    monkeypatch.setattr(Link, "_begin", begin_and_look)
    store = await venue.open()
    link = store._link
    trusted_ns = link.timeout_ns * 2 // 3
    assert begun == [trusted_ns], "it was sent at 0"
    sent_ns = clock.ns
    asking = asyncio.ensure_future(store.exists("/"))
    await asyncio.sleep(0)
    clock.ns += SECOND_NS
    await asking
    assert store.trusted_until() == sent_ns + trusted_ns
    clock.ns += link.timeout_ns // 4
    assert link._wire is not None
    link._ping(link._wire, link.timeout_ns // 4)
    sent_ns = clock.ns
    clock.ns += SECOND_NS
    async with asyncio.timeout(10):
        while link._wire.pinged_ns:
            await asyncio.sleep(0.001)
    assert store.trusted_until() == sent_ns + trusted_ns


async def test_a_stopped_client_learns_that_its_session_is_over(venue: ZookeeperVenue) -> None:
    """The event loop stands still past the timeout, as under SIGSTOP."""
    one, two = await venue.open(SECOND_NS), await venue.open(10 * SECOND_NS)
    await one.create("/e", ephemeral=True)
    time.sleep(3.5)  # noqa: ASYNC251  nothing of this process may run meanwhile
    assert one.trusted_until() < venue.clock.now()
    await until_gone(venue, two, "/e")
    with pytest.raises(SessionExpiredError):
        await one.set("/", b"late")


async def test_many_changes_in_flight_keep_their_order(venue: ZookeeperVenue) -> None:
    store = await venue.open()
    await store.create("/n")
    stats = await asyncio.gather(*(store.set("/n", b"%d" % number) for number in range(500)))
    assert [stat.version for stat in stats] == list(range(1, 501))
    assert (await store.get("/n"))[0] == b"499"


async def test_nodes_of_a_user_are_closed_to_others(server: ZookeeperServers) -> None:
    clock, chroot = BootClock(), f"/auth-{next(numbers)}"
    url = server.url(chroot)
    mine = await open_store(url.replace("//", "//ann:se%3acret@"), clock=clock)
    await mine.create("/secret", b"x")
    assert (await mine.get("/secret"))[0] == b"x"
    other = await open_store(server.url(), clock=clock)
    with pytest.raises(StoreError, match="not allowed"):
        await other.get(f"{chroot}/secret")
    await mine.close()
    await other.close()


@pytest.mark.parametrize("buffer", ["", "?buffer=20000"])
async def test_what_the_servers_would_not_take_is_not_sent(server: ZookeeperServers, buffer: str) -> None:
    """They break the connection of whoever sends more than jute.maxbuffer, so whether it happened would never
    be known. The access list of a user is most of it."""
    url = server.url(f"/a-long-way-down-{len(buffer)}").replace("://", "://me:secret@") + buffer
    store = await open_store(url, clock=BootClock(), timeout_ns=PATIENT_NS)
    session = store.session
    many = [Create(f"/n{number:04d}") for number in range(250 if buffer else 12_000)]
    with pytest.raises(TooLargeError, match=r"jute\.maxbuffer"):
        await store.transact(many)
    assert await store.children("/") == [] and store.session == session
    await store.transact(many[:100])
    await store.close()


async def test_an_address_without_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.stores.zookeeper_link.OPEN_MAX_S", 0.3)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1.*running"):
        await open_store("zookeeper://127.0.0.1:1/x", clock=BootClock())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zookeeper:///x", "host:port"),
        ("zookeeper://a:b/x", "host:port"),
        ("zookeeper://a:99999/x", "host:port"),
        ("zookeeper://a/x//y", "segment"),
        ("zookeeper://secret@a/x", "user:password"),
        ("zookeeper://a/x?tls=1", "unknown option 'tls'"),
        ("zookeeper://a/x?buffer=1M", "number of bytes"),
        ("zookeeper://a/x?cert=c", "go with ca"),
        ("zookeeper://a/x?ca=/missing", "TLS"),
        ("zookeeper://a/x?auth=/missing", "cannot be read"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_ensemble(urlsplit(url))
    assert "secret" not in str(caught.value)


def test_addresses_are_read() -> None:
    ensemble, chroot = read_ensemble(urlsplit("zookeeper://a,b:2182,[::1]:2183/x/y/"))
    assert ensemble.hosts == (("a", 2181), ("b", 2182), ("::1", 2183))
    assert chroot == "/x/y"


@pytest.mark.parametrize("seed", range(300))
def test_broken_answers_are_format_errors(seed: int) -> None:
    chance = random.Random(seed)
    body = chance.randbytes(chance.randrange(0, 120))
    for read in (
        zookeeper_wire.read_reply,
        zookeeper_wire.read_connected,
        zookeeper_wire.read_event,
        lambda body: zookeeper_wire.read_data(body, 0),
        lambda body: zookeeper_wire.read_names(body, 0),
        lambda body: zookeeper_wire.read_results(body, 0, 3),
    ):
        try:
            read(body)
        except FormatError:
            continue


async def test_a_server_that_talks_nonsense_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.stores.zookeeper_link.OPEN_MAX_S", 0.5)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(BursarError, match="no ZooKeeper server"):
        await open_store(f"zookeeper://127.0.0.1:{port}", clock=BootClock())
    server.close()


async def test_a_greeting_that_comes_too_late_says_nothing_of_what_was_seen() -> None:
    """Else no server would take the session in any more."""
    seen: list[int] = []
    again = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, revision, timeout_ms, session = struct.unpack_from(">iqiq", await reader.readexactly(49), 4)
        seen.append(revision)
        greeting = struct.pack(">iiiqi16s", 36, 0, timeout_ms, session or 0x100003D000A0001, 16, bytes(16))
        if len(seen) == 2:
            await asyncio.sleep(timeout_ms / 3_000)  # a moment longer than the client waits
        writer.write(greeting)
        if len(seen) == 1:
            writer.close()
        elif len(seen) == 2:
            await reader.read()
            writer.close()
        else:
            again.set()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ensemble, _ = read_ensemble(urlsplit(f"zookeeper://127.0.0.1:{port}"))
    link = Link(ensemble, BootClock(), SECOND_NS)
    await link.open()
    async with asyncio.timeout(5):
        await again.wait()
    assert seen[:3] == [0, 0, 0]
    link._finish()
    server.close()


async def test_an_unknown_outcome_is_settled_by_reading_back(venue: ZookeeperVenue) -> None:
    """The reply is lost after the effect: the version tells."""
    store = await venue.open()
    await store.create("/a", b"0")
    link = store._link
    assert link._wire is not None
    sending = asyncio.ensure_future(store.transact([Set("/a", b"mine", 0)]))
    await asyncio.sleep(0)
    link._wire._flush()
    await asyncio.sleep(0)
    connection = link._wire
    other = await venue.open()
    async with asyncio.timeout(5):
        while True:
            await other.sync()
            if (await other.get("/a"))[1].version == 1:
                break
    connection.drop()
    try:
        await sending
    except StoreUnknownError:
        await store.sync()
        data, stat = await store.get("/a")
        assert (data, stat.version) == (b"mine", 1)


async def test_a_session_left_behind_is_ended_by_whoever_has_its_password(venue: ZookeeperVenue) -> None:
    url, record = venue.servers.url(venue.chroot), Kept()
    killed = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    await killed.create("/leader", ephemeral=True)
    assert record.kept is not None and record.kept.session == killed.session
    guessed = Kept(Credentials(killed.session, bytes(16)))
    other = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=guessed)
    assert await other.exists("/leader") is not None, "the number alone is not enough"
    heir = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    assert await heir.exists("/leader") is None
    assert record.kept.session == heir.session
    for store in (killed, other, heir):
        await store.close()


async def test_a_former_session_that_is_over_holds_nobody_up(venue: ZookeeperVenue) -> None:
    url = venue.servers.url(venue.chroot)
    record = Kept(Credentials(0x1234_5678_9ABC, b"0123456789abcdef"))
    store = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    assert record.kept is not None and record.kept.session == store.session
    await store.close()
