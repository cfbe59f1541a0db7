"""A killed node's session is ended by its next life, and by nobody who might be wrong about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from bursar.runtime import session_record
from bursar.runtime.session_record import FileSessionRecord
from bursar.runtime.state import StateDirectory
from bursar.runtime.world import open_world
from bursar.stores.credentials import Credentials

STORE = "zookeeper://ann:secret@a:1,b:2/chroot"
MINE = Credentials(7, b"\x00\xffpassword of 16")


def keep(folder: Path) -> None:
    state = StateDirectory(folder)
    FileSessionRecord(state, STORE).keep(MINE)
    state.close()


def read(folder: Path, store: str = STORE) -> Credentials | None:
    state = StateDirectory(folder)
    try:
        return FileSessionRecord(state, store).former()
    finally:
        state.close()


def test_the_next_life_finds_what_the_last_one_kept(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    keep(tmp_path)
    assert read(tmp_path) == MINE
    assert (tmp_path / "session").stat().st_mode & 0o077 == 0
    assert b"secret" not in (tmp_path / "session").read_bytes()


def test_a_session_of_another_store_is_left_alone(tmp_path: Path) -> None:
    keep(tmp_path)
    assert read(tmp_path, "zookeeper://ann:secret@a:1,b:2/other") is None


def test_a_copy_of_the_directory_ends_nobodys_session(tmp_path: Path) -> None:
    """The node that it was copied from may be running."""
    keep(tmp_path / "state")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    assert read(tmp_path / "copy") is None
    assert read(tmp_path / "state") == MINE


def test_after_another_boot_nothing_is_known_of_the_earlier_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone of a machine has the same files, and another boot."""
    keep(tmp_path)
    for boot in ("another", ""):
        monkeypatch.setattr(session_record, "read_boot_id", lambda boot=boot: boot)
        assert read(tmp_path) is None
    keep(tmp_path)
    assert read(tmp_path) is None, "where the system does not name its boots, none is like another"


def test_a_file_that_cannot_be_read_costs_the_wait_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "session").write_bytes(b'{"store": 1}')
    assert read(tmp_path) is None


async def test_a_new_life_does_not_wait_for_the_session_of_the_last(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    first = await open_world("a", state=tmp_path / "state", store=url)
    await first.store.create("/leader", ephemeral=True)
    kept = msgspec.json.decode((tmp_path / "state" / "session").read_bytes())
    assert kept["session"] == first.store.session
    first.node._state.close()  # type: ignore[union-attr]  # as kill -9 would: the session stays behind
    second = await open_world("a", state=tmp_path / "state", store=url)
    try:
        await second.store.create("/leader", ephemeral=True)
    finally:
        await second.close()
        await first.store.close()


async def test_a_renewed_session_is_the_one_that_is_kept(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    world = await open_world("a", state=tmp_path / "state", store=url)
    try:
        await world.store.renew()
        kept = msgspec.json.decode((tmp_path / "state" / "session").read_bytes())
        assert kept["session"] == world.store.session
    finally:
        await world.close()
