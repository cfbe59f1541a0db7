"""Fences, and who checks them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bursar.claims.fences import (
    SHADOW_FENCE,
    Guard,
    StaleFence,
    check_header,
    make_fence,
    read_header,
    write_header,
)
from bursar.claims.guards import FileGuard, SqlGuard
from bursar.errors import FormatError, UsageError


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


def test_a_rebuilt_store_has_later_fences() -> None:
    assert make_fence(epoch=2, phase=1) > make_fence(epoch=1, phase=2**40)


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
