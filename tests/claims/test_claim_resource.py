"""The resource on every store: memory, SQLite and ZooKeeper alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.claims.calls import track

from bursar.claims.fences import Guard, StaleFence
from bursar.claims.layout import Layout
from bursar.claims.model import State, Task
from bursar.claims.resource import ClaimDecider, open_resource
from bursar.claims.tracker import Dispatch, InProcessTracker, PollingTracker, Progress, Report
from bursar.claims.verbs import Tasks
from bursar.errors import FormatError, Refused, UsageError
from bursar.policy import ClaimPolicy, ClaimTenant
from bursar.resource.door import Resource
from bursar.runtime.functions import Functions
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
        self.resources: list[Resource] = []

    async def open(self, tracker: Any = None, **terms: Any) -> Resource:
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


def tasks_of(resource: Resource) -> Tasks:
    return decider_of(resource).tasks


def decider_of(resource: Resource) -> ClaimDecider:
    assert isinstance(resource.decider, ClaimDecider)
    return resource.decider


async def over(resource: Resource, id: str) -> Task:
    """The task when it is over."""
    return await asyncio.wait_for(tasks_of(resource).wait_for(id, 60), 30)


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
    assert await tasks_of(two).holders("vm-7") == []


async def test_a_waiter_on_another_node_is_granted_when_the_holder_lets_go(house: House) -> None:
    one, two = await house.open(), await house.open()
    held = await one.claim(["a:E", "b:S"], "ops")
    waiting = asyncio.ensure_future(two.claim(["a:S", "c:E"], "x", wait=20).__aenter__())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    listed = [task for task in await tasks_of(one).tasks() if task["state"] == "pending"]
    assert len(listed) == 1
    lines = await tasks_of(one).why(listed[0]["id"])
    assert any(line.startswith(f"a:S waits for {held.id}") for line in lines)
    await held.release()
    grant = await asyncio.wait_for(waiting, 10)
    await grant.release()
    assert await tasks_of(one).tasks() == []


async def test_a_wait_that_ends_leaves_nothing_behind(house: House) -> None:
    one = await house.open()
    async with one.claim(["a:E"], "ops"):
        with pytest.raises(Refused, match=r"a is held by ops \(c\w+\)$"):
            await one.claim(["a:E", "b:E"], "x", wait=0.2)
        async with asyncio.timeout(10):
            while len(await tasks_of(one).tasks()) > 1:
                await asyncio.sleep(0.01)  # what was written down of it is removed after the answer
        assert await tasks_of(one).holders("b") == []


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
        await tasks_of((one, two)[number % 2]).submit("t", f"n{number % 3}:E", payload=b"%d" % number)
        for number in range(12)
    ]
    same = [await tasks_of(one).submit("t", "k:E", payload=b"keyed", key="order-42") for _ in range(3)]
    assert len(set(same)) == 1
    ends = [await over(two, id) for id in [*ids, same[0]]]
    assert {(task.state, task.outcome, task.result) for task in ends} == {(State.RELEASED, "ok", b"result")}
    assert sorted(done) == sorted([*(str(number) for number in range(12)), "keyed"])
    assert await tasks_of(one).submit("t", "k:E", payload=b"keyed", key="order-42") == same[0]
    await asyncio.sleep(0.1)
    assert done.count("keyed") == 1


async def test_work_that_raises_is_a_failed_task(house: House) -> None:
    async def work(dispatch: Dispatch) -> bytes:
        raise ValueError("no such machine")

    one = await house.open(InProcessTracker(work))
    end = await over(one, await tasks_of(one).submit("t", "a:E"))
    assert (end.outcome, end.result) == ("failed", b"ValueError: no such machine")


async def test_a_polling_tracker_is_asked_until_it_is_over(house: House) -> None:
    asked: list[str] = []

    async def begin(dispatch: Dispatch) -> None:
        asked.append("begin")

    async def ask(dispatch: Dispatch) -> Report | Progress:
        asked.append("ask")
        return Report("ok", b"x") if asked.count("ask") == 2 else Progress.RUNNING

    one = await house.open(PollingTracker(begin, ask))
    end = await over(one, await tasks_of(one).submit("t", "a:E"))
    assert (end.outcome, asked) == ("ok", ["begin", "ask", "ask"])


async def test_a_task_that_waits_can_be_cancelled_and_one_that_is_late_expires(house: House) -> None:
    async def work(dispatch: Dispatch) -> bytes:
        return b""

    one = await house.open(InProcessTracker(work))
    async with one.claim(["a:E"], "ops"):
        waiting = await tasks_of(one).submit("t", "a:E")
        late = await tasks_of(one).submit("t", "a:E", deadline=0.1)
        assert await tasks_of(one).cancel(waiting) == "cancelled"
        end = await over(one, late)
        assert end.outcome == "expired"
        (held,) = await tasks_of(one).tasks()
        with pytest.raises(Refused, match="held already"):
            await tasks_of(one).cancel(held["id"])
    with pytest.raises(Refused, match="no task"):
        await tasks_of(one).cancel("t123")


async def test_a_forced_release_makes_the_fence_old(house: House) -> None:
    one, two = await house.open(), await house.open()
    guard = Guard()
    old = await one.claim(["a:E", "b:E"], "ops")
    guard.check("a", old.fence["a"])
    assert await tasks_of(two).force_release("a") == [old.id]
    new = await two.claim(["a:E", "b:E"], "x", wait=5)
    guard.check("a", new.fence["a"])
    with pytest.raises(StaleFence):
        guard.check("a", old.fence["a"])
    await old.release()
    assert [task["id"] for task in await tasks_of(two).holders("a")] == [new.id]
    await new.release()


async def test_an_instance_that_goes_leaves_its_tasks_to_others(house: House) -> None:
    async def stuck(dispatch: Dispatch) -> bytes:
        await asyncio.Event().wait()
        return b""

    one = await house.open(InProcessTracker(stuck))
    ids = [await tasks_of(one).submit("t", f"n{number}:E") for number in range(5)]
    await asyncio.sleep(0.2)
    decider_of(one).instance.member.is_stopping = True
    await house.worlds[0].store.close()  # as a crash does: its marks go with the session

    async def work(dispatch: Dispatch) -> bytes:
        return b"done"

    two = await house.open(InProcessTracker(work), dead_holder="requeue")
    ends = [await over(two, id) for id in ids]
    assert {task.outcome for task in ends} == {"ok"}


@pytest.mark.parametrize("dead_holder", ["keep", "requeue", "fail"])
async def test_a_dead_holder_is_treated_as_the_policy_says(house: House, dead_holder: Any) -> None:
    one, two = await house.open(dead_holder=dead_holder), await house.open(dead_holder=dead_holder)
    old = await one.claim(["a:E"], "ops")
    decider_of(one).instance.member.is_stopping = True
    await house.worlds[0].store.close()
    if dead_holder == "keep":
        with pytest.raises(Refused, match="a is held by"):
            await two.claim(["a:E"], "x", wait=1.5)
        assert await tasks_of(two).force_release("a") == [old.id]
    async with two.claim(["a:E"], "x", wait=20) as new:
        assert new.fence["a"] > old.fence["a"]


async def test_weights_and_statistics_are_told(house: House) -> None:
    one = await house.open(tenants={"ops": ClaimTenant(weight=2)})
    async with one.claim(["a:E"], "ops"):
        explanation = await one.explain("ops")
        assert explanation.figures["held"] == 1
        assert (await one.statistics()).part.held == 1


async def test_what_the_store_cannot_mean_is_refused_and_nothing_is_granted(house: House) -> None:
    one = await house.open()
    layout, store = Layout("things"), house.worlds[0].store
    await store.create(layout.name("broken"), b"\xc1 not a claim")
    with pytest.raises(Refused, match=r"names/.*/broken holds nothing that this version reads"):
        await one.claim(["broken:E", "fine:E"], "x", wait=2)
    assert await tasks_of(one).holders("fine") == []
    await store.create(layout.task("odd"), b"\x93\x01\x02\x03")
    with pytest.raises(FormatError, match="odd"):
        await tasks_of(one).read("odd")


async def test_a_claim_of_very_many_names_is_granted_or_refused_as_a_whole(house: House) -> None:
    one = await house.open()
    many = [f"{number:04d}-{'x' * 150}:E" for number in range(990)]
    with pytest.raises(UsageError, match="more than 1000"):
        await one.claim([f"n{number}" for number in range(100_000)], "x")
    async with one.claim(many, "x", wait=10) as grant:
        assert len(grant.fence) == 990
    assert await tasks_of(one).holders("0000-" + "x" * 150) == []
    with pytest.raises(UsageError, match="payload"):
        await tasks_of(one).submit("t", "a:E", payload=b"x" * 10_000_000)


async def test_an_app_runs_functions_with_their_fences(house: House) -> None:
    functions = Functions()
    seen: list[Any] = []

    async def power_on(vm: str, fence: dict[str, int], key: str, zone: str = "z1") -> str:
        seen.append((vm, sorted(fence), key))
        return "on"

    hosts = {"vm-7": "host-1"}
    functions.register(power_on, "{host(vm)}:S, {vm}:E, {zone}:S", lambda relation, name: hosts[name], None)
    one = await house.open(track(functions))
    ids = [
        await functions.submit(one.verb, function, {"vm": "vm-7"}, tenant="ops", key="again")
        for function in ("power_on", power_on)
    ]
    assert ids[0] == ids[1]
    end = await over(one, ids[0])
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
            await functions.submit(one.verb, function, arguments, tenant="ops")
