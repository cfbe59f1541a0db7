"""Fences, and who checks them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from bursar.claims.fences import (
    SHADOW_FENCE,
    Guard,
    StaleFence,
    check_header,
    make_epoch,
    make_fence,
    read_header,
    write_header,
)
from bursar.claims.resource import open_resource
from bursar.errors import FormatError, UsageError
from bursar.fleet.identity import adopt, identify
from bursar.integrations.guards import FileGuard, SqlGuard
from bursar.policy import ClaimPolicy
from bursar.runtime.world import open_world
from bursar_lab.postgresql_server import DATABASE, PASSWORD, USER, PostgresqlServers


def test_a_sql_guard_refuses_in_the_transaction_that_writes() -> None:
    """Exactly once over a database: the guard, the work and the record of the key commit together."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    guard = SqlGuard()
    guard.create(connection)
    connection.execute("CREATE TABLE done (key TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE total (amount INTEGER)")
    connection.execute("INSERT INTO total VALUES (0)")

    def do(key: str, fence: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            guard.check(connection, "account", fence)
            connection.execute("INSERT INTO done VALUES (?)", (key,))
            connection.execute("UPDATE total SET amount = amount + 1")
            connection.execute("COMMIT")
        except (StaleFence, sqlite3.IntegrityError):
            connection.execute("ROLLBACK")
            raise

    do("k1", 5)
    with pytest.raises(sqlite3.IntegrityError):
        do("k1", 6)
    do("k2", 7)
    with pytest.raises(StaleFence):
        do("k3", 6)
    assert connection.execute("SELECT amount FROM total").fetchone() == (2,)


@pytest.mark.parametrize("style", ["qmark", "numeric", "named"])
def test_a_sql_guard_speaks_as_the_driver_does(style: str) -> None:
    connection = sqlite3.connect(":memory:")
    guard = SqlGuard(style)
    guard.create(connection)
    guard.check(connection, "account", 5)
    with pytest.raises(StaleFence):
        guard.check(connection, "account", 4)
    with pytest.raises(UsageError, match="paramstyle"):
        SqlGuard("?")


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("style", ["format", "pyformat"])
def test_a_sql_guard_on_postgresql_has_the_older_wait_and_refuses_it(
    style: str, postgresql: PostgresqlServers
) -> None:
    """The newer owner has checked and not committed: the older one waits for it, and is refused."""
    with ExitStack() as opened:
        newer, older = (opened.enter_context(connect(postgresql)) for _ in range(2))
        guard = SqlGuard(style)
        guard.create(newer)
        newer.commit()
        guard.check(newer, style, 7)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(guard.check, older, style, 6)
            until_somebody_waits(postgresql)
            assert not late.done()
            newer.commit()
            assert isinstance(late.exception(30), StaleFence)
        older.rollback()
        guard.check(older, style, 7)  # a sharer of the same phase
        older.rollback()


@pytest.mark.needs("postgresql")
def test_a_write_that_was_rolled_back_leaves_no_fence(postgresql: PostgresqlServers) -> None:
    with connect(postgresql) as connection:
        guard = SqlGuard("format")
        guard.create(connection)
        guard.check(connection, "rolled back", 9)
        connection.rollback()
        guard.create(connection)
        guard.check(connection, "rolled back", 8)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServers]:
    with PostgresqlServers(1) as servers:
        yield servers


def connect(servers: PostgresqlServers) -> psycopg.Connection[tuple[object, ...]]:
    where = f"host={servers.addresses[0]} port={servers.ports[0]} dbname={DATABASE}"
    return psycopg.connect(f"{where} user={USER} password={PASSWORD}")


def until_somebody_waits(servers: PostgresqlServers) -> None:
    """For a lock: told by the server itself."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    for _ in range(300):
        if servers.sql(0, waiting) != "0":
            return
        time.sleep(0.1)
    raise AssertionError("nobody waits for a lock")


def test_a_file_guard_that_dies_in_the_middle_keeps_the_fence(tmp_path: Path) -> None:
    """Whatever is written of the new fence when the process dies, the old one still counts."""
    guard, target = FileGuard(tmp_path / "x.fence"), tmp_path / "x"
    guard.replace(target, b"old", 5)
    child = f"""
import os
from bursar.integrations import guards
os.replace = lambda *paths: os._exit(3)
guards.FileGuard({str(tmp_path / "x.fence")!r}).replace({str(target)!r}, b"half", 6)
"""
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 3
    assert target.read_bytes() == b"old"
    with pytest.raises(StaleFence):
        guard.replace(target, b"older", 4)
    guard.replace(target, b"new", 6)
    assert target.read_bytes() == b"new"


def test_a_file_guard_refuses_before_anything_is_written(tmp_path: Path) -> None:
    guard, target = FileGuard(tmp_path / "x.fence"), tmp_path / "x"
    with guard.writing(5):
        target.write_text("new")
    with pytest.raises(StaleFence), guard.writing(4):
        target.write_text("old")
    assert target.read_text() == "new"
    (tmp_path / "y.fence").write_text("hello")
    with pytest.raises(FormatError), FileGuard(tmp_path / "y.fence").writing(1):
        pass


def test_a_header_carries_fences() -> None:
    fences = {"vm-7": make_fence(3, 9), "dc/host-1": 4}
    assert read_header(write_header(fences)) == fences
    guard = Guard()
    check_header(guard, write_header(fences), "vm-7")
    with pytest.raises(StaleFence):
        check_header(guard, '"vm-7"=1', "vm-7")
    for bad in (None, "", "vm-7=1", '"vm-7"=x', '"vm-7"=' + "9" * 40, '"other"=1'):
        with pytest.raises(UsageError):
            check_header(guard, bad, "vm-7")


def test_a_store_that_is_set_up_a_millisecond_later_has_later_fences() -> None:
    """A million grants of one name in that millisecond are more than any store does."""
    now_ns = 1_795_000_000 * 10**9
    first, next = make_epoch(now_ns), make_epoch(now_ns + 1_000_000)
    assert make_fence(next, phase=1) > make_fence(first, phase=1_000_000)
    assert make_epoch(now_ns, above=next) > next  # a clock that was set back
    hours = now_ns // (3600 * 10**9)
    assert make_fence(first, phase=1) > (hours << 43) + 2**42  # as epochs were before


async def test_a_store_that_was_rebuilt_at_once_has_later_fences_and_so_has_one_that_was_adopted() -> None:
    async def claim(url: str) -> int:
        world = await open_world("n", store=url)
        resource = open_resource(world, "things", ClaimPolicy(name="things"))
        await resource.start()
        async with resource.claim(["a:E"], "x") as grant:
            fence = grant.fence["a"]
        await resource.stop()
        await world.close()
        return fence

    fences = [await claim(f"memory://rebuilt-{number}") for number in range(3)]
    world = await open_world("keeper", store="memory://rebuilt-adopted")
    known = await identify(world.store, "first")
    before = await claim("memory://rebuilt-adopted")
    again = await claim("memory://rebuilt-adopted")
    await adopt(world.store, known, by="test", at_ns=1)
    after = await claim("memory://rebuilt-adopted")
    await world.close()
    assert [*fences, before] == sorted({*fences, before})
    assert again == before + 1 and after - again > 2**19


def test_no_guard_takes_a_fence_of_shadow_mode_even_as_the_first_it_sees(tmp_path: Path) -> None:
    with pytest.raises(StaleFence, match="shadow"):
        Guard().check("vm-7", SHADOW_FENCE)
    with pytest.raises(StaleFence):
        check_header(Guard(), write_header({"vm-7": SHADOW_FENCE}), "vm-7")
    connection = sqlite3.connect(":memory:")
    SqlGuard().create(connection)
    with pytest.raises(StaleFence):
        SqlGuard().check(connection, "vm-7", SHADOW_FENCE)
    with pytest.raises(StaleFence), FileGuard(tmp_path / "x.fence").writing(SHADOW_FENCE):
        (tmp_path / "x").touch()
    assert list(tmp_path.iterdir()) == []


def test_no_owner_has_the_fence_of_shadow_mode() -> None:
    assert make_fence(epoch=0, phase=1) > SHADOW_FENCE
    with pytest.raises(AssertionError):
        make_fence(epoch=0, phase=0)
