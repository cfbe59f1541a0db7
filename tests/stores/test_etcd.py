from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import (
    NodeMissingError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    TooLargeError,
)
from bursar.runtime.clock import BootClock
from bursar.stores import etcd_wire as wire
from bursar.stores import open_store
from bursar.stores.credentials import Credentials
from bursar.stores.etcd import EtcdStore
from bursar.stores.etcd_link import Link
from bursar.world import SECOND_NS, Create, Delete, Set, Store, Watch
from bursar_lab.etcd_server import EtcdServers

from .contract import StoreContract, soon, until_gone
from .kept import CERTIFICATES, Kept, SetClock

pytestmark = pytest.mark.needs("etcd")

numbers = itertools.count()
PATIENT_NS = 20 * SECOND_NS
run = partial(subprocess.run, capture_output=True)


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServers]:
    with EtcdServers(1) as servers:
        yield servers


class EtcdVenue:
    patience_s = 10.0

    def __init__(self, servers: EtcdServers) -> None:
        self.clock = BootClock()
        self.servers = servers
        self.prefix = f"/venue-{next(numbers)}"
        self.stores: list[EtcdStore] = []

    async def open(self, timeout_ns: int = PATIENT_NS) -> EtcdStore:
        store = await open_store(self.servers.url(self.prefix), clock=self.clock, timeout_ns=timeout_ns)
        assert isinstance(store, EtcdStore)
        self.stores.append(store)
        return store

    async def expire(self, store: Store) -> None:
        assert isinstance(store, EtcdStore)
        await store._link.ask("Lease/LeaseRevoke", wire.LeaseRevokeRequest(ID=store.session), 5.0)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture
async def venue(server: EtcdServers) -> AsyncIterator[EtcdVenue]:
    venue = EtcdVenue(server)
    yield venue
    await venue.close()


class TestEtcdStore(StoreContract):
    """The contract on one member."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdServers]:
    with EtcdServers(3) as servers:
        yield servers


@pytest.fixture
async def three(cluster: EtcdServers) -> AsyncIterator[EtcdVenue]:
    venue = EtcdVenue(cluster)
    yield venue
    await venue.close()


class TestCluster:
    """Three members, of which the leader is killed in the middle."""

    async def test_no_answered_change_is_lost_and_no_unknown_one_is_half_done(self, three: EtcdVenue) -> None:
        stores = [await three.open(10 * SECOND_NS) for _ in range(3)]
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
        leader = await asyncio.to_thread(three.servers.leader)
        three.servers.kill(leader)
        async with asyncio.timeout(40):
            while len(answered) < before + 100:
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*lanes)
        await stores[0].sync()
        left, right = await stores[0].children("/left"), await stores[0].children("/right")
        assert left == right
        assert set(answered) <= set(left) <= {*answered, *unknown}
        three.servers.start(leader)
        await asyncio.to_thread(three.servers.wait_until_serving)

    async def test_sessions_ephemeral_nodes_and_watches_outlive_the_leader(self, three: EtcdVenue) -> None:
        one, two = await three.open(15 * SECOND_NS), await three.open(15 * SECOND_NS)
        await one.create("/e", ephemeral=True)
        watch = await two.watch("/e")
        session = one.session
        leader = await asyncio.to_thread(three.servers.leader)
        three.servers.kill(leader)
        async with asyncio.timeout(40):
            while True:
                try:
                    await one.set("/e", b"again")
                    break
                except StoreUnknownError:
                    continue
        await soon(three, watch.changed())
        data, stat = await two.get("/e")
        assert (data, stat.owner, one.session) == (b"again", session, session)
        three.servers.start(leader)
        await asyncio.to_thread(three.servers.wait_until_serving)

    async def test_without_a_majority_nothing_is_answered_and_nothing_is_trusted_for_long(
        self, three: EtcdVenue
    ) -> None:
        store = await three.open(4 * SECOND_NS)
        leader = await asyncio.to_thread(three.servers.leader)
        other = (leader + 1) % 3
        three.servers.pause(leader)
        three.servers.pause(other)
        with pytest.raises(StoreUnknownError):
            await soon(three, store.create("/a"))
        await asyncio.sleep(3.0)
        assert store.trusted_until() <= three.clock.now()
        three.servers.resume(leader)
        three.servers.resume(other)
        await asyncio.to_thread(three.servers.wait_until_serving)


# What etcd alone does


async def test_a_watch_survives_a_broken_stream_and_a_compaction(venue: EtcdVenue) -> None:
    one, two = await venue.open(), await venue.open()
    await two.create("/a")
    watch = await one.watch("/a")
    for number in range(5):
        one._watches.renew()
        await two.set("/a", b"%d" % number)
        await asyncio.sleep(0)
    revision = await two.sync()
    run(["etcdctl", "compact", str(revision)], env=await etcdctl(venue), check=True)
    async with asyncio.timeout(10):
        while (await one.get("/a"))[0] != b"4":
            await watch.changed()
    await soon(venue, settled(watch))
    await two.set("/a", b"last")
    await soon(venue, watch.changed())


async def settled(watch: Watch) -> None:
    """No more fires of what was before."""
    with suppress(TimeoutError):
        while True:
            await asyncio.wait_for(watch.changed(), 0.5)


async def etcdctl(venue: EtcdVenue) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": venue.servers.hosts.split(",")[0],
    }


async def test_blind_sets_of_many_stores_do_not_disturb_each_other(venue: EtcdVenue) -> None:
    stores = [await venue.open() for _ in range(3)]
    await stores[0].create("/n")
    await stores[0].transact([Set("/n", b""), Set("/n", b"")])  # from now on its version is not etcd's
    commits = [0]
    for store in stores:
        count_commits(store, commits)
    stats = await asyncio.gather(*(store.set("/n", b"x") for _ in range(20) for store in stores))
    assert sorted(stat.version for stat in stats) == list(range(3, 63))
    assert commits[0] <= 60 + len(stores), "one trip each, but for the first"


def count_commits(store: EtcdStore, commits: list[int]) -> None:
    commit = store._commit

    async def counted(*given: Any) -> Any:
        commits[0] += 1
        return await commit(*given)

    store._commit = counted  # type: ignore[method-assign]


async def test_a_node_that_is_deleted_and_created_at_once_begins_anew(venue: EtcdVenue) -> None:
    one, two = await venue.open(), await venue.open()
    await one.create("/a")
    first = await one.set("/a", b"1")
    await one.transact([Delete("/a"), Create("/a", b"2")])
    (_, stat), (_, seen) = await one.get("/a"), await two.get("/a")
    assert stat == seen and stat.version == 0 and stat.created == stat.modified > first.modified
    again = await two.set("/a", b"3")
    assert (again.version, again.created) == (1, stat.created)
    await one.transact([Delete("/a"), Create("/a", b"4", ephemeral=True)])
    assert (await two.get("/a"))[1].owner == one.session
    assert await two.children("/") == ["a"]


async def test_a_parent_is_not_deleted_under_a_child_that_comes_meanwhile(venue: EtcdVenue) -> None:
    one, two = await venue.open(), await venue.open()
    for number in range(20):
        await one.ensure(f"/{number}/a")
        answers = await asyncio.gather(
            one.transact([Delete(f"/{number}/a"), Delete(f"/{number}")]),
            two.create(f"/{number}/b"),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, StoreError) for answer in answers) == 1, answers
        assert (await one.exists(f"/{number}") is None) == isinstance(answers[1], NodeMissingError)


async def test_more_operations_than_etcd_was_started_with_are_refused_with_the_number() -> None:
    with EtcdServers(1, options=["--max-txn-ops", "300"]) as servers:
        store = await open_store(servers.url(), clock=BootClock())
        assert store.operations_max == (300 - 8) // 2
        await store.transact([Create(f"/{number}") for number in range(store.operations_max)])
        with pytest.raises(TooLargeError, match="147 operations, this store takes 146"):
            await store.transact([Create(f"/{number}") for number in range(147)])
        await store.close()
    refused = pytest.raises(StoreError, match="takes 100 operations")
    with EtcdServers(1, options=["--max-txn-ops", "100"]) as servers, refused:
        await open_store(servers.url(), clock=BootClock())


async def test_a_user_logs_in_and_one_with_a_wrong_password_is_refused() -> None:
    with EtcdServers(1, options=["--auth-token-ttl", "1"]) as servers:
        host = servers.hosts
        environment = {"PATH": os.environ["PATH"], "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": host}
        for command in ("user add root:secret", "user grant-role root root", "auth enable"):
            done = run(["etcdctl", *command.split()], env=environment)
            assert done.returncode == 0 or b"grant-role" in command.encode(), done.stderr
        store = await open_store(f"etcd://root:secret@{host}/x", clock=BootClock())
        await store.create("/a")
        await asyncio.sleep(2.5)
        assert await store.exists("/a") is not None, "the token was renewed"
        with pytest.raises(StoreError, match="authentication failed") as caught:
            await open_store(f"etcd://root:wr0ng@{host}/x", clock=BootClock())
        assert "wr0ng" not in str(caught.value)
        await store.close()


@pytest.mark.needs("openssl")
async def test_tls_takes_the_right_authority_and_no_other(tmp_path: Path) -> None:
    run(["bash", "-eu", "-c", CERTIFICATES], cwd=tmp_path, check=True)
    mine = f"cert={tmp_path}/client.crt&key={tmp_path}/client.key"
    with EtcdServers(1, tls=tmp_path) as servers:
        url = f"{servers.url('/x')}?ca={tmp_path}/"
        store = await open_store(f"{url}ca.crt&{mine}", clock=BootClock())
        await store.create("/a")
        await store.close()
        for wrong in (f"{url}other.crt&{mine}", f"{url}ca.crt"):
            with pytest.raises(StoreError, match="no etcd answers"):
                await open_store(wrong, clock=BootClock())


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.stores.etcd.OPEN_MAX_S", 6.0)


async def test_a_session_left_behind_is_ended_by_whoever_has_its_password(venue: EtcdVenue) -> None:
    url, record = venue.servers.url(venue.prefix), Kept()
    killed = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    await killed.create("/leader", ephemeral=True)
    assert record.kept is not None
    guessed = Kept(Credentials(killed.session, bytes(16)))
    other = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=guessed)
    assert await other.exists("/leader") is not None, "the number alone is not enough"
    heir = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    assert await heir.exists("/leader") is None
    cluster, _, revision = record.kept.seen.partition(" ")
    later = Kept(record.kept._replace(seen=f"{cluster} {int(revision) + 1000}"))
    with pytest.raises(StoreError, match="restored from a backup"):
        await open_store(url, clock=venue.clock, record=later)
    for store in (killed, other, heir):
        await store.close()


async def test_an_address_without_a_member_says_so() -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1.*running"):
        await open_store("etcd://127.0.0.1:1/x", clock=BootClock())


async def test_a_session_is_trusted_from_the_sending_however_late_the_answer_comes(
    venue: EtcdVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    venue.clock = clock = SetClock()
    beat, ask, sent = Link.beat, Link.ask, dict[str, int]()

    async def ask_and_wait(self: Link, method: str, *arguments: Any) -> Any:
        sent[method] = clock.ns
        answer = await ask(self, method, *arguments)
        clock.ns += SECOND_NS
        return answer

    async def beat_and_wait(self: Link, *arguments: Any) -> Any:
        sent["beat"] = clock.ns
        answer = await beat(self, *arguments)
        clock.ns += SECOND_NS
        return answer

    monkeypatch.setattr(Link, "ask", ask_and_wait)
    store = await venue.open(2 * SECOND_NS)
    trusted_ns = store.timeout_ns * 2 // 3
    assert store.trusted_until() == sent["Lease/LeaseGrant"] + trusted_ns
    monkeypatch.setattr(Link, "beat", beat_and_wait)
    async with asyncio.timeout(10):
        while (first := sent.get("beat")) is None or store.trusted_until() < first:
            await asyncio.sleep(0.001)
    assert store.trusted_until() == first + trusted_ns


async def test_a_stopped_client_learns_that_its_session_is_over(venue: EtcdVenue) -> None:
    """The event loop stands still past the timeout, as under SIGSTOP."""
    one, two = await venue.open(2 * SECOND_NS), await venue.open(20 * SECOND_NS)
    await one.create("/e", ephemeral=True)
    time.sleep(5)  # noqa: ASYNC251  nothing of this process may run meanwhile
    assert one.trusted_until() < venue.clock.now()
    await until_gone(venue, two, "/e")
    with pytest.raises(SessionExpiredError):
        await one.set("/", b"late")
