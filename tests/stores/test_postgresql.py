from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bursar.demo.ports import find_free_port
from bursar.errors import NodeExistsError, StoreError, StoreUnknownError, UsageError
from bursar.runtime.clock import BootClock
from bursar.stores import open_store
from bursar.stores.credentials import Credentials
from bursar.stores.postgresql import PostgresqlStore
from bursar.stores.postgresql_link import Connection
from bursar.stores.postgresql_schema import STEPS, prepare
from bursar.world import SECOND_NS, Create, Store
from bursar_lab.postgresql_server import PASSWORD, USER, PostgresqlServers

from .contract import StoreContract, soon, until_gone
from .kept import Kept, SetClock

pytestmark = pytest.mark.needs("postgresql")

numbers = itertools.count()
PATIENT_NS = 20 * SECOND_NS


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServers]:
    with PostgresqlServers(1) as servers:
        yield servers


class PostgresqlVenue:
    patience_s = 10.0

    def __init__(self, servers: PostgresqlServers) -> None:
        self.clock = BootClock()
        self.servers = servers
        self.schema = f"venue_{next(numbers)}"
        self.stores: list[PostgresqlStore] = []

    async def open(self, timeout_ns: int = PATIENT_NS) -> PostgresqlStore:
        store = await open_store(self.servers.url(self.schema), clock=self.clock, timeout_ns=timeout_ns)
        assert isinstance(store, PostgresqlStore)
        self.stores.append(store)
        return store

    async def expire(self, store: Store) -> None:
        assert isinstance(store, PostgresqlStore)
        raw = await self.connect()
        await raw.execute(f"SELECT {self.schema}.end_session($1, NULL, NULL)", store.session)
        await raw.close()

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.servers.url(self.schema).partition("?")[0])

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture
async def venue(server: PostgresqlServers) -> AsyncIterator[PostgresqlVenue]:
    venue = PostgresqlVenue(server)
    yield venue
    await venue.close()


class TestPostgresqlStore(StoreContract):
    """The contract on one server."""


# What PostgreSQL alone does


async def test_the_schema_is_made_once_though_many_open_it_at_once(venue: PostgresqlVenue) -> None:
    stores = await asyncio.gather(*(venue.open() for _ in range(6)))
    assert len({store.session for store in stores}) == 6
    await stores[0].create("/a")
    await stores[5].sync()
    assert await stores[5].exists("/a") is not None


async def test_a_schema_is_upgraded_in_place_and_a_newer_one_is_refused(venue: PostgresqlVenue) -> None:
    store = await venue.open()
    await store.create("/a", b"kept")
    raw = await venue.connect()
    steps = (*STEPS, "ALTER TABLE {s}.sessions ADD COLUMN colour text")
    await asyncio.gather(*(upgrade(venue, steps) for _ in range(3)))
    assert await raw.fetchval(f"SELECT schema FROM {venue.schema}.head") == 2
    assert await raw.fetch(f"SELECT colour FROM {venue.schema}.sessions")
    await raw.close()
    assert (await store.get("/a"))[0] == b"kept"
    with pytest.raises(StoreError, match="form 2, this bursar knows 1"):
        await venue.open()


async def upgrade(venue: PostgresqlVenue, steps: tuple[str, ...]) -> None:
    raw = await venue.connect()
    await prepare(raw, venue.schema, steps)
    await raw.close()


async def test_a_schema_of_another_program_is_left_alone(venue: PostgresqlVenue) -> None:
    raw = await venue.connect()
    await raw.execute(f"CREATE SCHEMA {venue.schema}")
    await raw.execute(f"CREATE TABLE {venue.schema}.invoices (number int)")
    with pytest.raises(StoreError, match="1 tables of another program"):
        await venue.open()
    await raw.close()


async def test_a_session_is_trusted_from_the_sending_however_late_the_answer_comes(
    venue: PostgresqlVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    venue.clock = clock = SetClock()
    within, beat = Connection.within, PostgresqlStore._beat
    sent: list[int] = []

    async def answer_late(self: Connection, limit_ns: int, work: Any) -> Any:
        sent.append(clock.ns)
        answer = await within(self, limit_ns, work)
        clock.ns += SECOND_NS
        return answer

    async def beat_and_look(self: PostgresqlStore, connection: Connection) -> None:
        began_ns = clock.ns
        await beat(self, connection)
        beats.append((began_ns, self.trusted_until()))

    monkeypatch.setattr(Connection, "within", answer_late)
    trusted_ns, beats = PATIENT_NS * 2 // 3, list[tuple[int, int]]()
    store = await venue.open()
    assert store.trusted_until() in {began_ns + trusted_ns for began_ns in sent}
    monkeypatch.setattr(PostgresqlStore, "_beat", beat_and_look)
    clock.ns += PATIENT_NS // 4
    while not beats:
        await store.exists("/")
    assert beats[0] == (beats[0][0], beats[0][0] + trusted_ns)


async def test_a_stopped_client_learns_that_its_session_is_over(venue: PostgresqlVenue) -> None:
    """Beats stop, as under SIGSTOP: whoever sees the count stand still for the timeout ends the session."""
    one, two = await venue.open(2 * SECOND_NS), await venue.open()
    await one.create("/e", ephemeral=True)
    for task in one._tasks:
        task.cancel()
    began_ns, trusted_ns = venue.clock.now(), one.trusted_until()
    await until_gone(venue, two, "/e")
    assert venue.clock.now() > trusted_ns, "it was still trusted"
    assert venue.clock.now() - began_ns > SECOND_NS
    one._tasks.clear()


async def test_a_session_is_ended_only_at_the_count_that_was_seen(venue: PostgresqlVenue) -> None:
    store = await venue.open()
    raw = await venue.connect()
    end = f"SELECT {venue.schema}.end_session($1, NULL, $2)"
    beats = await raw.fetchval(f"SELECT beats FROM {venue.schema}.sessions")
    assert await raw.fetchval(end, store.session, beats + 1000) is False
    assert await store.exists("/") is not None
    await raw.close()


async def test_a_lost_notice_is_made_up_for(venue: PostgresqlVenue) -> None:
    one, two = await venue.open(), await venue.open()
    assert one._reader._connection is not None
    one._reader._connection.raw._listeners.clear()  # whatever is told is lost from here on
    watch = await one.watch("/a")
    await two.create("/a")
    await soon(venue, watch.changed())


async def test_more_changes_than_are_kept_fire_every_watch(venue: PostgresqlVenue) -> None:
    one, two = await venue.open(), await venue.open()
    watch, other = await one.watch("/a"), await one.watch("/never")
    await two.create("/a")
    await soon(venue, watch.changed())
    assert one._reader._connection is not None
    one._revision -= 1  # as if the notice and the row of the change were gone
    raw = await venue.connect()
    await raw.execute(f"DELETE FROM {venue.schema}.changes")
    await raw.close()
    await soon(venue, other.changed())


async def test_a_change_that_fails_undoes_itself_alone(venue: PostgresqlVenue) -> None:
    """They share a commit."""
    store = await venue.open()
    answers = await asyncio.gather(
        *(store.transact([Create(f"/{n}"), Create("/same" if n % 2 else f"/other-{n}")]) for n in range(40)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, NodeExistsError) for answer in answers) == 19
    assert len(await store.children("/")) == 20 + 20 + 2
    stats = await asyncio.gather(*(store.set("/same", b"%d" % number) for number in range(300)))
    assert [stat.version for stat in stats] == list(range(1, 301))
    revisions = [stat.modified for stat in stats]
    assert revisions == sorted(set(revisions))


async def test_the_password_of_a_session_ends_it_and_its_number_does_not(venue: PostgresqlVenue) -> None:
    url, record = venue.servers.url(venue.schema), Kept()
    killed = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    await killed.create("/leader", ephemeral=True)
    assert record.kept is not None and record.kept.seen.endswith(" 1")
    guessed = Kept(Credentials(killed.session, bytes(16)))
    other = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=guessed)
    assert await other.exists("/leader") is not None
    heir = await open_store(url, clock=venue.clock, timeout_ns=PATIENT_NS, record=record)
    assert await heir.exists("/leader") is None
    for store in (killed, other, heir):
        await store.close()


# Failover


@pytest.fixture
def pair() -> Iterator[PostgresqlServers]:
    with PostgresqlServers(2) as servers:
        yield servers


async def test_a_promoted_standby_has_what_was_answered_and_the_old_primary_is_refused(
    pair: PostgresqlServers,
) -> None:
    venue = PostgresqlVenue(pair)
    store, record = await venue.open(10 * SECOND_NS), Kept()
    remembering = await open_store(pair.url(venue.schema), clock=venue.clock, record=record)
    await store.create("/left")
    await store.create("/right")
    await store.create("/e", ephemeral=True)
    watch = await remembering.watch("/e")
    answered: list[str] = []
    unknown: list[str] = []
    stop = asyncio.Event()

    async def write(lane: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            name = f"{lane}-{number}"
            try:
                await store.transact([Create(f"/left/{name}"), Create(f"/right/{name}")])
                answered.append(name)
            except StoreUnknownError:
                unknown.append(name)

    lanes = [asyncio.ensure_future(write(lane)) for lane in range(8)]
    await asyncio.sleep(0.5)
    pair.kill(0)
    await asyncio.to_thread(pair.promote, 1)
    before = len(answered)
    async with asyncio.timeout(30):
        while len(answered) < before + 100:
            await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*lanes)
    await remembering.sync()
    left, right = await remembering.children("/left"), await remembering.children("/right")
    assert left == right
    assert set(answered) <= set(left) <= {*answered, *unknown}
    assert (await remembering.get("/e"))[1].owner == store.session, "the session outlived the failover"
    await store.set("/e", b"again")
    await soon(venue, watch.changed())
    await asyncio.to_thread(pair.start, 0)  # the old primary comes back, and takes writes
    assert pair.sql(0, "SELECT pg_is_in_recovery()") == "f"
    await remembering.close()
    await venue.close()
    alone = pair.url(venue.schema).replace(pair.hosts, f"127.0.0.1:{pair.ports[0]}")
    with pytest.raises(StoreError, match="on timeline 1, and 2 was seen"):
        await open_store(alone, clock=venue.clock, record=record)
    both = await open_store(
        pair.url(venue.schema), clock=venue.clock
    )  # who knows nothing takes the higher one
    await both.sync()
    assert await both.children("/left") == left
    await both.close()


async def test_standbys_that_nobody_waits_for_are_refused(pair: PostgresqlServers) -> None:
    pair.sql(0, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
    await asyncio.sleep(0.5)
    with pytest.raises(StoreError, match="1 standby and no synchronous_standby_names"):
        await open_store(pair.url(), clock=BootClock())
    store = await open_store(pair.url(options="&lossy=yes"), clock=BootClock())
    await store.create("/a")
    await store.close()


async def test_a_cancelled_wait_for_the_standby_is_an_unknown_outcome(pair: PostgresqlServers) -> None:
    store = await open_store(pair.url(), clock=BootClock(), timeout_ns=PATIENT_NS)
    pair.kill(1)
    waiting = asyncio.ensure_future(store.create("/a"))
    cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    async with asyncio.timeout(9):
        while not waiting.done():
            await asyncio.to_thread(pair.sql, 0, cancel)
            await asyncio.sleep(0.1)
    with pytest.raises(StoreUnknownError):
        waiting.result()
    pair.sql(0, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
    await store.close()


async def test_a_server_that_would_lose_commits_with_the_power_is_refused() -> None:
    refused = pytest.raises(StoreError, match=r"fsync off.*lossy=yes")
    with PostgresqlServers(1, settings={"fsync": "off"}) as servers, refused:
        await open_store(servers.url(), clock=BootClock())


@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_pooler_is_taken_if_it_delivers_notices(
    server: PostgresqlServers, tmp_path: Path, mode: str
) -> None:
    port = find_free_port()
    (tmp_path / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.ports[0]}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = plain\nauth_file = {tmp_path}/users\npool_mode = {mode}\n"
        f"unix_socket_dir =\nuser = postgres\n"
    )
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    pooler = subprocess.Popen(  # noqa: ASYNC220  it starts at once
        ["pgbouncer", str(tmp_path / "pgbouncer.ini")], stderr=subprocess.DEVNULL
    )
    url = server.url(f"pooled_{mode}").replace(server.hosts, f"127.0.0.1:{port}")
    try:
        await until_open(port)
        if mode == "transaction":
            with pytest.raises(StoreError, match="pooler"):
                await open_store(url, clock=BootClock())
        else:
            store = await open_store(url, clock=BootClock())
            watch = await store.watch("/a")
            await store.create("/a")
            async with asyncio.timeout(5):
                await watch.changed()
            await store.close()
    finally:
        pooler.terminate()
        pooler.wait()


async def until_open(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql:///db", "host:port"),
        ("postgresql://a", "one database"),
        ("postgresql://a/b/c", "one database"),
        ("postgresql://a/db?schema=x;y", "letters"),
        ("postgresql://a/db?lossy=maybe", "yes or no"),
        ("postgresql://a/db?sslmode=off", "unknown option 'sslmode'"),
        ("postgresql://u:secret@a/db?cert=c", "go with ca"),
    ],
)
async def test_an_address_that_makes_no_sense_is_refused(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        await open_store(url, clock=BootClock())
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_said_at_once_and_not_repeated(server: PostgresqlServers) -> None:
    with pytest.raises(StoreError, match="refuses the user") as caught:
        await open_store(server.url().replace(PASSWORD, "wr0ng"), clock=BootClock())
    assert "wr0ng" not in str(caught.value)
