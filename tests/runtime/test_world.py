"""A live node: its lives, its tasks, its end; and the lease's couriers running on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bursar.errors import CrashedError, JournalError, NetworkError, UsageError
from bursar.runtime.clock import BootClock
from bursar.runtime.world import open_world
from bursar.world import MILLISECOND_NS
from bursar_lab.leases.book import HolderBook, OwnerBook
from bursar_lab.leases.courier import HolderNode, OwnerNode

SECRET = bytes(32)


async def test_each_life_has_a_larger_incarnation(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        world = await open_world("a", state=tmp_path)
        lives.append(world.incarnation)
        await world.close()
    assert lives == [1, 2, 3]


async def test_two_nodes_never_share_a_state_directory(tmp_path: Path) -> None:
    world = await open_world("a", state=tmp_path)
    with pytest.raises(UsageError, match="another node is running"):
        await open_world("b", state=tmp_path)
    await world.close()
    await (await open_world("b", state=tmp_path)).close()


async def test_an_unreadable_incarnation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text("many\n")
    for _ in range(2):  # the second time shows that the first left no lock behind
        with pytest.raises(JournalError, match="does not hold a number"):
            await open_world("a", state=tmp_path)


async def test_an_address_in_use_is_a_clear_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    first = await open_world("a", listen="127.0.0.1:0")
    with pytest.raises(NetworkError, match=r"cannot listen on .* in use"):
        await open_world("b", state=tmp_path, listen=str(first.listening))
    await (await open_world("b", state=tmp_path)).close()
    await first.close()


async def test_a_failing_task_takes_its_node_down_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await open_world("a", state=tmp_path, listen="127.0.0.1:0")
    journal = world.journal("j")
    stopped = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def fail() -> None:
        raise ZeroDivisionError("a part is broken")

    world.spawn(wait(), "wait")
    world.spawn(fail(), "fail")
    assert isinstance(await asyncio.wait_for(world.failure, 5), ZeroDivisionError)
    await asyncio.wait_for(stopped.wait(), 5)
    with pytest.raises(CrashedError):
        journal.append(b"x")
    with pytest.raises(CrashedError):
        world.spawn(wait(), "again")
    assert any("node.down" in record.message and record.exc_info for record in caplog.records)
    await world.close()


async def test_tasks_begin_in_the_order_in_which_they_were_spawned() -> None:
    world = await open_world("a")
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    for number in range(100):
        world.spawn(note(number), f"note{number}")
    await asyncio.sleep(0.01)
    assert order == list(range(100))
    await world.close()


async def test_a_node_without_state_keeps_no_journal() -> None:
    world = await open_world("a")
    with pytest.raises(UsageError, match="no state directory"):
        world.journal("j")
    await world.close()


async def test_sleep_lasts_at_least_its_time_by_the_clock_that_counts_suspension() -> None:
    clock = BootClock()
    for duration_ns in (0, -5, 1, 1_000, 3 * MILLISECOND_NS):
        began = clock.now()
        await clock.sleep(duration_ns)
        assert clock.now() - began >= duration_ns
    assert abs(clock.wall() - time.time_ns()) < 1_000 * MILLISECOND_NS


async def test_the_couriers_of_the_lease_run_on_the_real_world(tmp_path: Path) -> None:
    duration_ns = 60 * MILLISECOND_NS
    owner_world = await open_world("owner", state=tmp_path / "owner", listen="127.0.0.1:0", secret=SECRET)
    holder_world = await open_world(
        "holder", state=tmp_path / "holder", peers={"owner": str(owner_world.listening)}, secret=SECRET
    )
    owner = OwnerNode(owner_world, OwnerBook(100, 10, "holder", duration_ns, 1000))
    holder = HolderNode(holder_world, HolderBook(holder_world.incarnation, "owner", duration_ns))
    owner.start()
    holder.start()
    spent = 0
    async with asyncio.timeout(20):
        while spent < 100:
            spent += holder.spend()
            await asyncio.sleep(0.001)
    assert owner.book.unspent == 0
    assert holder.book.number >= 10
    assert not holder.spend()
    for world in (owner_world, holder_world):
        assert not world.failure.done()
        await world.close()
