from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import SessionExpiredError, StoreError, StoreUnknownError
from bursar.runtime.clock import BootClock
from bursar.stores import database as database_module
from bursar.stores import open_store
from bursar.stores.credentials import Credentials
from bursar.stores.sqlite import SqliteStore
from bursar.world import SECOND_NS, Store

from .contract import TIMEOUT_NS, StoreContract, soon, until_gone
from .kept import SetClock


class SqliteVenue:
    patience_s = 5.0

    def __init__(self, path: Path) -> None:
        self.clock = BootClock()
        self.path = path
        self.stores: list[SqliteStore] = []

    async def open(self, timeout_ns: int = TIMEOUT_NS) -> SqliteStore:
        self.stores.append(await SqliteStore.open(str(self.path), self.clock, timeout_ns=timeout_ns))
        return self.stores[-1]

    async def expire(self, store: Store) -> None:
        self.change("UPDATE sessions SET expires_ns = 0 WHERE id = ?", store.session)

    def change(self, statement: str, *arguments: int | str) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(statement, arguments)
        connection.close()


@pytest.fixture
async def venue(tmp_path: Path) -> AsyncIterator[SqliteVenue]:
    venue = SqliteVenue(tmp_path / "store.db")
    yield venue
    for store in venue.stores:
        await store.close()


class TestSqliteStore(StoreContract):
    pass


async def test_what_was_stored_is_there_after_reopening(venue: SqliteVenue) -> None:
    one = await venue.open()
    await one.create("/a", b"kept")
    await one.create("/q-", sequential=True)
    revision, session = await one.sync(), one.session
    await one.close()
    two = await venue.open()
    assert (await two.get("/a"))[0] == b"kept"
    assert await two.create("/q-", sequential=True) == "/q-0000000001"
    assert await two.sync() == revision + 1
    assert two.session > session


async def test_commits_are_synced_and_logged_ahead(venue: SqliteVenue) -> None:
    store = await venue.open()
    pragma = {
        name: await store._write(lambda db, name=name: db._execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("synchronous", "journal_mode")
    }
    assert pragma == {"synchronous": 2, "journal_mode": "wal"}


async def test_a_session_is_trusted_from_the_sending_however_late_the_answer_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()

    def answer_late(method: str) -> None:
        work = getattr(database_module.Database, method)

        def work_long(*arguments: Any) -> Any:
            clock.ns += SECOND_NS
            return work(*arguments)

        monkeypatch.setattr(database_module.Database, method, work_long)

    answer_late("open_session")
    store = await SqliteStore.open(str(tmp_path / "store.db"), clock, timeout_ns=SECOND_NS // 2)
    trusted_ns = SECOND_NS // 2 * 2 // 3
    assert store.trusted_until() == trusted_ns, "it was sent at 0"
    answer_late("beat")
    async with asyncio.timeout(10):
        while store.trusted_until() == trusted_ns:
            await asyncio.sleep(0.001)
    assert store.trusted_until() == SECOND_NS + trusted_ns, "it was sent at 1"
    await store.close()


async def test_a_reboot_ends_every_session(venue: SqliteVenue) -> None:
    one, two = await venue.open(), await venue.open()
    await one.create("/e", ephemeral=True)
    venue.change("UPDATE sessions SET boot = 'an earlier boot' WHERE id = ?", one.session)
    await until_gone(venue, two, "/e")
    with pytest.raises(SessionExpiredError):
        await one.get("/")


async def test_a_watcher_that_fell_behind_is_told(
    venue: SqliteVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CHANGES_KEPT", 1)
    monkeypatch.setattr(database_module, "CHANGES_PRUNED_EVERY", 1)
    one, two = await venue.open(), await venue.open()
    watch = await one.watch("/a")
    one._poll_timer.cancel()  # as if the event loop had been busy all the while
    one._poll_timer = None
    await two.create("/a")
    for number in range(5):
        await two.create(f"/{number}")
    one._poll()
    await soon(venue, watch.changed())


async def test_changes_that_wait_together_share_a_commit(venue: SqliteVenue) -> None:
    store = await venue.open()
    commits = []
    database_commit = database_module.Database.commit

    def count(database: database_module.Database) -> None:
        commits.append(1)
        database_commit(database)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module.Database, "commit", count)
        answers = await asyncio.gather(
            *(store.create(f"/{number % 60}") for number in range(100)), return_exceptions=True
        )
    assert sum(isinstance(answer, str) for answer in answers) == 60
    assert len(commits) < 30
    revisions = [(await store.get(f"/{number}"))[1].created for number in range(60)]
    assert len(set(revisions)) == 60


async def test_a_cancelled_caller_leaves_the_store_in_order(venue: SqliteVenue) -> None:
    store = await venue.open()
    calls = [asyncio.ensure_future(store.create(f"/{number}")) for number in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await store.create("/last")
    assert set(await store.children("/")) >= {str(number) for number in range(1, 20, 2)}


async def test_a_locked_file_is_like_a_store_that_does_not_answer_and_nothing_happened(
    venue: SqliteVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await venue.open()
    monkeypatch.setattr(database_module, "LOCK_PATIENCE_NS", SECOND_NS // 5)
    holder = sqlite3.connect(venue.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnknownError, match="write lock"):
        await store.create("/a")
    assert await store.exists("/a") is None
    holder.execute("ROLLBACK")
    holder.close()
    await store.create("/a")


async def test_a_thread_that_fails_fails_its_callers(
    venue: SqliteVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await venue.open()
    venue.stores.remove(store)
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def broken(database: database_module.Database) -> None:
        raise ZeroDivisionError("planted")

    with pytest.raises(StoreError, match="planted"):
        await store._write(broken)
    store._writer._thread.join()
    assert reported[0].exc_type is ZeroDivisionError
    with pytest.raises(StoreError, match="open it again"):
        await store.create("/a")
    with pytest.raises(StoreError, match="open it again"):
        await store.close()


# Files that cannot be used


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


async def refuse(path: Path, says: str) -> None:
    before = content_of(path)
    with pytest.raises(StoreError, match=says) as caught:
        await open_store(f"sqlite://{path}", clock=BootClock())
    assert str(path) in str(caught.value)
    assert content_of(path) == before


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all\n" * 100)
    await refuse(path, "file of its own")


async def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE addresses (name TEXT)")
    connection.close()
    await refuse(path, "another program")


async def test_another_schema_version_is_refused(venue: SqliteVenue) -> None:
    await (await venue.open()).close()
    venue.change("PRAGMA user_version = 99")
    await refuse(venue.path, "schema 99")


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    await refuse(tmp_path / "missing" / "store.db", "no folder")


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    await refuse(tmp_path, "writable")


async def test_a_damaged_file_is_a_clear_error(venue: SqliteVenue) -> None:
    store = await venue.open()
    await asyncio.gather(*(store.create(f"/n{number}", b"x" * 100) for number in range(300)))
    await store.close()
    content = bytearray(venue.path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    venue.path.write_bytes(content)
    with pytest.raises(StoreError, match="restore it from a copy"):
        await (await venue.open()).children("/")


@pytest.fixture
def readonly_folder() -> Iterator[Path]:
    """A folder that this process may read but not write: as root, by becoming nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        else:
            folder.chmod(0o555)
        yield folder
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


async def test_a_readonly_folder_is_a_clear_error(readonly_folder: Path) -> None:
    await refuse(readonly_folder / "store.db", "writable")


class Kept:
    """A record in memory."""

    def __init__(self, former: Credentials | None = None) -> None:
        self.kept = former

    def former(self) -> Credentials | None:
        return self.kept

    def keep(self, credentials: Credentials) -> None:
        self.kept = credentials


async def test_a_session_left_behind_is_ended_by_whoever_has_its_password(venue: SqliteVenue) -> None:
    record, path, clock = Kept(), str(venue.path), venue.clock
    killed = await SqliteStore.open(path, clock, timeout_ns=TIMEOUT_NS, record=record)
    venue.stores.append(killed)
    await killed.create("/leader", ephemeral=True)
    assert record.kept is not None and record.kept.session == killed.session
    guessed = Kept(Credentials(killed.session, bytes(16)))
    venue.stores.append(await SqliteStore.open(path, clock, timeout_ns=TIMEOUT_NS, record=guessed))
    assert await venue.stores[-1].exists("/leader") is not None, "the number alone is not enough"
    venue.stores.append(await SqliteStore.open(path, clock, timeout_ns=TIMEOUT_NS, record=record))
    assert await venue.stores[-1].exists("/leader") is None
    assert record.kept.session == venue.stores[-1].session
    with pytest.raises(SessionExpiredError):
        await killed.exists("/leader")


async def test_two_who_find_the_session_over_at_once_get_the_same_new_one(tmp_path: Path) -> None:
    store = await open_store(f"sqlite://{tmp_path}/store.db", clock=BootClock(), name="a")
    before = store.session
    first, second = await asyncio.gather(store.renew(), store.renew())
    assert first == second == store.session != before
    await store.close()


async def test_a_new_file_and_those_beside_it_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = await open_store(f"sqlite://{tmp_path}/store.db", clock=BootClock(), name="a")
        await store.ensure("/x")
        modes = {name: os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)}
        await store.close()
    finally:
        os.umask(before)
    assert {"store.db", "store.db-wal", "store.db-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}


async def test_a_file_that_exists_keeps_the_rights_that_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(0o600)
    path.chmod(0o660)
    store = await open_store(f"sqlite://{path}", clock=BootClock(), name="a")
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o660
