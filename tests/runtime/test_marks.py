"""A node and its store keep the same mark: whichever comes back as it was earlier is found out."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bursar.errors import UsageError
from bursar.fleet import layout
from bursar.runtime.marks import MARK_FILE, Mark
from bursar.runtime.world import LiveWorld, open_world


@asynccontextmanager
async def living(folder: Path, state: str = "a") -> AsyncIterator[LiveWorld]:
    """A life of the node "a"."""
    world = await open_world("a", state=str(folder / state), store=f"sqlite://{folder}/store.db")
    try:
        await layout.prepare(world.store)
        yield world
    finally:
        await world.close()


async def live(folder: Path, state: str = "a") -> None:
    async with living(folder, state) as world:
        mark = Mark(world, "the-store")
        await mark.check()
        await mark.renew()
        await mark.renew()


def lose_store(folder: Path) -> None:
    for file in folder.glob("store.db*"):
        file.unlink()


async def test_a_node_goes_on_with_the_store_that_it_left(tmp_path: Path) -> None:
    await live(tmp_path)
    await live(tmp_path)


async def test_an_older_store_is_refused_with_the_remedy(tmp_path: Path) -> None:
    await live(tmp_path)
    shutil.copy(tmp_path / "store.db", tmp_path / "backup.db")
    await live(tmp_path)
    lose_store(tmp_path)
    shutil.move(tmp_path / "backup.db", tmp_path / "store.db")
    with pytest.raises(UsageError, match=r"restored from a backup.*store adopt --store the-store"):
        await live(tmp_path)


async def test_a_store_from_before_the_node_came_is_refused(tmp_path: Path) -> None:
    await live(tmp_path)
    lose_store(tmp_path)
    with pytest.raises(UsageError, match=r"has not heard of it"):
        await live(tmp_path)


async def test_an_older_state_is_refused_and_one_that_is_empty_is_not(tmp_path: Path) -> None:
    await live(tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    await live(tmp_path)
    with pytest.raises(UsageError, match=r"is a copy from.*what it handed out since is not in it"):
        await live(tmp_path, "copy")
    await live(tmp_path, "empty")


@pytest.mark.parametrize("written", [True, False])
async def test_a_crash_between_state_and_store_is_no_restored_copy(tmp_path: Path, written: bool) -> None:
    await live(tmp_path)
    async with living(tmp_path) as world:
        path = layout.mark_path("a")
        before = layout.read((await world.store.get(path))[0], int)
        world.node.keep(MARK_FILE, msgspec.json.encode((before, before + 1)))
        if written:
            await world.store.set(path, layout.write(before + 1))
    await live(tmp_path)


async def test_a_store_that_is_restored_under_a_node_is_found_out_while_it_runs(tmp_path: Path) -> None:
    async with living(tmp_path) as world:
        mark = Mark(world, "the-store")
        await mark.renew()
        await world.store.set(layout.mark_path("a"), layout.write(1))
        with pytest.raises(UsageError, match=r"restored from a backup"):
            await mark.renew()
