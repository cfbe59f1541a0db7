"""The resource on every store: memory, SQLite and ZooKeeper alike."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.claims.app import Functions
from bursar.claims.fences import Guard, StaleFence, check_header, make_fence, read_header, write_header
from bursar.claims.guards import FileGuard, SqlGuard
from bursar.claims.layout import Layout
from bursar.claims.model import State
from bursar.claims.resource import ClaimResource, open_resource
from bursar.claims.tracker import Dispatch, InProcessTracker, PollingTracker, Progress, Report
from bursar.errors import FormatError, Refused, UsageError
from bursar.policy import ClaimPolicy, ClaimTenant
from bursar.runtime.world import LiveWorld, open_world
from bursar.world import SECOND_NS
from bursar_lab.zookeeper_server import ZookeeperServers

numbers = itertools.count()


@pytest.fixture(scope="module")
def servers() -> Iterator[ZookeeperServers]:
    with ZookeeperServers(1) as found:
        yield found


class House:
    """Nodes on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.worlds: list[LiveWorld] = []
        self.resources: list[ClaimResource] = []

    async def open(self, tracker: Any = None, **terms: Any) -> ClaimResource:
        # A busy machine stands still for seconds; sessions that are to end are closed.
        world = await open_world(f"n{len(self.worlds)}", store=self.url, session_timeout_ns=20 * SECOND_NS)
        self.worlds.append(world)
        resource = open_resource(world, "things", ClaimPolicy(name="things", **terms), tracker=tracker)
        await resource.start()
        self.resources.append(resource)
        return resource

    async def close(self) -> None:
        for resource in self.resources:
            await resource.stop()
        for world in self.worlds:
            await world.close()


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.needs("zookeeper"))])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    if request.param == "memory":
        url = f"memory://claims-{next(numbers)}"
    elif request.param == "sqlite":
        url = f"sqlite://{tmp_path / 'store.db'}"
    else:
        url = request.getfixturevalue("servers").url(f"/resource-{next(numbers)}")
    house = House(url)
    yield house
    await house.close()


async def test_all_or_nothing_and_released_at_the_end(house: House) -> None:
    one, two = await house.open(), await house.open()
    async with one.claim(["vm-7:E", "host-1:S"], "ops") as grant:
        assert set(grant.fence) == {"vm-7", "host-1"}
        with pytest.raises(Refused, match="vm-7 is held by"):
            await two.claim(["vm-8:E", "vm-7:E"], "x")
        async with two.claim(["vm-8:E", "host-1:S"], "x") as other:
            assert other.fence["host-1"] == grant.fence["host-1"]
        with pytest.raises(Refused, match="shared by"):
            await two.claim(["host-1:E"], "x")
    async with two.claim(["vm-7:E", "host-1:E"], "x") as later:
        assert all(later.fence[name] > grant.fence[name] for name in grant.fence)
    assert await two.holders("vm-7") == []


async def test_a_waiter_on_another_node_is_granted_when_the_holder_lets_go(house: House) -> None:
    one, two = await house.open(), await house.open()
    held = await one.claim(["a:E", "b:S"], "ops")
    waiting = asyncio.ensure_future(two.claim(["a:S", "c:E"], "x", wait=20).__aenter__())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    listed = [task for task in await one.tasks() if task.state is State.PENDING]
    assert len(listed) == 1
    lines = await one.why(listed[0].id)
    assert any(line.startswith(f"a:S waits for {held.data}") for line in lines)
    await held.release()
    grant = await asyncio.wait_for(waiting, 10)
    await grant.release()
    assert await one.tasks() == []


async def test_a_wait_that_ends_leaves_nothing_behind(house: House) -> None:
    one = await house.open()
    async with one.claim(["a:E"], "ops"):
        with pytest.raises(Refused, match=r"a is held by ops \(c\w+\)$"):
            await one.claim(["a:E", "b:E"], "x", wait=0.2)
        assert len(await one.tasks()) == 1
        assert await one.holders("b") == []


async def test_sharers_come_and_go_in_one_phase(house: House) -> None:
    one, two = await house.open(), await house.open()
    grants = [await resource.claim(["a:S"], "x", wait=5) for resource in (one, two, one)]
    assert len({grant.fence["a"] for grant in grants}) == 1
    for grant in grants:
        await grant.release()
    async with two.claim(["a:E"], "x", wait=5) as grant:
        assert grant.fence["a"] > grants[0].fence["a"]


async def test_tasks_run_once_each_and_a_key_is_one_task(house: House) -> None:
    done: list[str] = []

    async def work(dispatch: Dispatch) -> bytes:
        done.append(dispatch.payload.decode())
        await asyncio.sleep(0.01)
        return b"result"

    one = await house.open(InProcessTracker(work))
    two = await house.open(InProcessTracker(work))
    ids = [
        await (one, two)[number % 2].submit("t", f"n{number % 3}:E", payload=b"%d" % number)
        for number in range(12)
    ]
    same = [await one.submit("t", "k:E", payload=b"keyed", key="order-42") for _ in range(3)]
    assert len(set(same)) == 1
    ends = [await asyncio.wait_for(two.wait_for(id), 20) for id in [*ids, same[0]]]
    assert {(task.state, task.outcome, task.result) for task in ends} == {(State.RELEASED, "ok", b"result")}
    assert sorted(done) == sorted([*(str(number) for number in range(12)), "keyed"])
    assert await one.submit("t", "k:E", payload=b"keyed", key="order-42") == same[0]
    await asyncio.sleep(0.1)
    assert done.count("keyed") == 1


async def test_work_that_raises_is_a_failed_task(house: House) -> None:
    async def work(dispatch: Dispatch) -> bytes:
        raise ValueError("no such machine")

    one = await house.open(InProcessTracker(work))
    end = await asyncio.wait_for(one.wait_for(await one.submit("t", "a:E")), 10)
    assert (end.outcome, end.result) == ("failed", b"ValueError: no such machine")


async def test_a_polling_tracker_is_asked_until_it_is_over(house: House) -> None:
    asked: list[str] = []

    async def begin(dispatch: Dispatch) -> None:
        asked.append("begin")

    async def ask(dispatch: Dispatch) -> Report | Progress:
        asked.append("ask")
        return Report("ok", b"x") if asked.count("ask") == 2 else Progress.RUNNING

    one = await house.open(PollingTracker(begin, ask))
    end = await asyncio.wait_for(one.wait_for(await one.submit("t", "a:E")), 10)
    assert (end.outcome, asked) == ("ok", ["begin", "ask", "ask"])


async def test_a_task_that_waits_can_be_cancelled_and_one_that_is_late_expires(house: House) -> None:
    async def work(dispatch: Dispatch) -> bytes:
        return b""

    one = await house.open(InProcessTracker(work))
    async with one.claim(["a:E"], "ops"):
        waiting = await one.submit("t", "a:E")
        late = await one.submit("t", "a:E", deadline=0.1)
        assert await one.cancel(waiting) == "cancelled"
        end = await asyncio.wait_for(one.wait_for(late), 10)
        assert end.outcome == "expired"
        (held,) = await one.tasks()
        with pytest.raises(Refused, match="runs already"):
            await one.cancel(held.id)
    with pytest.raises(Refused, match="no task"):
        await one.cancel("t123")


async def test_a_forced_release_makes_the_fence_old(house: House) -> None:
    one, two = await house.open(), await house.open()
    guard = Guard()
    old = await one.claim(["a:E", "b:E"], "ops")
    guard.check("a", old.fence["a"])
    assert await two.force_release("a") == [old.data]
    new = await two.claim(["a:E", "b:E"], "x", wait=5)
    guard.check("a", new.fence["a"])
    with pytest.raises(StaleFence):
        guard.check("a", old.fence["a"])
    await old.release()
    assert [task.id for task in await two.holders("a")] == [new.data]
    await new.release()


async def test_an_instance_that_goes_leaves_its_tasks_to_others(house: House) -> None:
    async def stuck(dispatch: Dispatch) -> bytes:
        await asyncio.Event().wait()
        return b""

    one = await house.open(InProcessTracker(stuck))
    ids = [await one.submit("t", f"n{number}:E") for number in range(5)]
    await asyncio.sleep(0.2)
    one.instance._stopping = True
    await house.worlds[0].store.close()  # as a crash does: its marks go with the session

    async def work(dispatch: Dispatch) -> bytes:
        return b"done"

    two = await house.open(InProcessTracker(work), dead_holder="requeue")
    ends = [await asyncio.wait_for(two.wait_for(id), 20) for id in ids]
    assert {task.outcome for task in ends} == {"ok"}


@pytest.mark.parametrize("dead_holder", ["keep", "requeue", "fail"])
async def test_a_dead_holder_is_treated_as_the_policy_says(house: House, dead_holder: Any) -> None:
    one, two = await house.open(dead_holder=dead_holder), await house.open(dead_holder=dead_holder)
    old = await one.claim(["a:E"], "ops")
    one.instance._stopping = True
    await house.worlds[0].store.close()
    if dead_holder == "keep":
        with pytest.raises(Refused, match="a is held by"):
            await two.claim(["a:E"], "x", wait=1.5)
        assert await two.force_release("a") == [old.data]
    async with two.claim(["a:E"], "x", wait=20) as new:
        assert new.fence["a"] > old.fence["a"]


async def test_weights_and_statistics_are_told(house: House) -> None:
    one = await house.open(tenants={"ops": ClaimTenant(weight=2)})
    async with one.claim(["a:E"], "ops"):
        explanation = one.explain("ops")
        assert explanation.figures["held"] == 1
        assert one.statistics()["held"] == 1


async def test_what_the_store_cannot_mean_is_refused_and_nothing_is_granted(house: House) -> None:
    one = await house.open()
    layout, store = Layout("things"), house.worlds[0].store
    await store.create(layout.name("broken"), b"\xc1 not a claim")
    with pytest.raises(Refused, match=r"names/.*/broken holds nothing that this version reads"):
        await one.claim(["broken:E", "fine:E"], "x", wait=2)
    assert await one.holders("fine") == []
    await store.create(layout.task("odd"), b"\x93\x01\x02\x03")
    with pytest.raises(FormatError, match="odd"):
        await one.read("odd")


async def test_a_claim_of_very_many_names_is_granted_or_refused_as_a_whole(house: House) -> None:
    one = await house.open()
    many = [f"{number:04d}-{'x' * 150}:E" for number in range(990)]
    with pytest.raises(UsageError, match="more than 1000"):
        one.claim([f"n{number}" for number in range(100_000)], "x")
    async with one.claim(many, "x", wait=10) as grant:
        assert len(grant.fence) == 990
    assert await one.holders("0000-" + "x" * 150) == []
    with pytest.raises(UsageError, match="payload"):
        await one.submit("t", "a:E", payload=b"x" * 10_000_000)


async def test_an_app_runs_functions_with_their_fences(house: House) -> None:
    functions = Functions()
    seen: list[Any] = []

    async def power_on(vm: str, fence: dict[str, int], key: str, zone: str = "z1") -> str:
        seen.append((vm, sorted(fence), key))
        return "on"

    hosts = {"vm-7": "host-1"}
    functions.register(power_on, "{host(vm)}:S, {vm}:E, {zone}:S", lambda relation, name: hosts[name], None)
    one = await house.open(InProcessTracker(functions.work))
    ids = [
        await functions.submit(one, function, {"vm": "vm-7"}, tenant="ops", key="again")
        for function in ("power_on", power_on)
    ]
    assert ids[0] == ids[1]
    end = await asyncio.wait_for(one.wait_for(ids[0]), 10)
    assert end.result == b'"on"'
    assert seen == [("vm-7", ["host-1", "vm-7", "z1"], ids[0])]
    for function, arguments, says in (
        ("power_off", {}, "there are power_on"),
        ("power_on", {}, "missing a required argument: 'vm'"),
        ("power_on", {"vm": "vm-7", "wm": 1}, "unexpected keyword argument 'wm'"),
        ("power_on", {"vm": "vm-7", "zone": "z1:S, other"}, "no comma or colon"),
        ("power_on", {"vm": object()}, "cannot be stored"),
    ):
        with pytest.raises(UsageError, match=says):
            await functions.submit(one, function, arguments, tenant="ops")


# Guards


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
