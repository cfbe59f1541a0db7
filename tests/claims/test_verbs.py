"""Tasks, and names taken by force: the same here and through a daemon."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.claims.calls import call

from bursar.claims.resource import open_resource
from bursar.claims.statistics import ClaimStatistics
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.errors import Refused, UsageError
from bursar.policy import ClaimPolicy
from bursar.resource.clients import Clients
from bursar.resource.door import Resource
from bursar.runtime.client import Bursar
from bursar.runtime.functions import Functions
from bursar.runtime.world import open_world

numbers = itertools.count()


class Place:
    """A resource whose tasks are done when `go` is set, and whoever asks for it, here or from far."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.functions = Functions()
        self.resource: Resource
        self.bursar: Bursar | None = None

    async def work(self, dispatch: Dispatch) -> bytes:
        await self.go.wait()
        return await call(self.functions, dispatch) if self.functions.names else b"\xffdone"


@pytest.fixture(params=["here", "far"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    place = Place()
    async with AsyncExitStack() as stack:
        listen = "127.0.0.1:0" if request.param == "far" else None
        world = await open_world("n", store=f"memory://verbs-{next(numbers)}", listen=listen)
        stack.push_async_callback(world.close)
        policy = ClaimPolicy(name="things", dead_holder="fail")
        near = open_resource(world, "things", policy, tracker=InProcessTracker(place.work))
        await near.start()
        stack.push_async_callback(near.stop)
        place.resource = near
        if request.param == "far":
            Clients(world, {"things": near}, grace_ns=500_000_000).start()
            place.bursar = await Bursar(f"bursar://{world.listening}").connect()
            stack.push_async_callback(place.bursar.close)
            place.resource = place.bursar.resource("things")
        yield place


async def over(resource: Resource, id: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            task: dict[str, Any] = await resource.verb("wait_for", id=id)
            if task["state"] == "released":
                return task


async def test_a_task_is_submitted_read_and_waited_for(place: Place) -> None:
    verb = place.resource.verb
    id = await verb("submit", tenant="ops", names="vm-7:E, host-1:S", payload=b"\x00", priority=3)
    task = await verb("wait_for", id=id, timeout=0.05)
    assert task["state"] in ("pending", "running")
    assert (task["tenant"], task["needs"], task["priority"]) == ("ops", ["host-1:S", "vm-7:E"], 3)
    listed = await verb("tasks")
    assert [each["id"] for each in listed] == [id]
    place.go.set()
    task = await over(place.resource, id)
    assert (task["outcome"], task["result"], task["claim"]) == ("ok", b"\xffdone", False)
    assert await verb("read", id=id) == task
    assert await verb("read", id="t1") is None
    assert await verb("tasks") == []
    msgspec.msgpack.encode([task, listed])  # plain values


async def test_a_key_is_one_task_also_after_it_is_over(place: Place) -> None:
    place.go.set()
    ids = [await place.resource.verb("submit", tenant="t", names="a:E", key="order-1") for _ in range(2)]
    await over(place.resource, ids[0])
    ids.append(await place.resource.verb("submit", tenant="t", names="a:E", key="order-1"))
    assert len(set(ids)) == 1


async def test_what_waits_is_explained_and_cancelled(place: Place) -> None:
    verb = place.resource.verb
    async with place.resource.claim(["a:E"], "ops") as held:
        id = await verb("submit", tenant="t", names=["a:E"])
        (first, *_) = await verb("why", id=id)
        assert first == f"a:E waits for {held.id}, which holds it exclusively"
        assert [task["id"] for task in await verb("holders", of="a")] == [held.id]
        assert await verb("cancel", id=id) == "cancelled"
        assert (await over(place.resource, id))["outcome"] == "cancelled"
        with pytest.raises(Refused, match="held already"):
            await verb("cancel", id=held.id)
    async with asyncio.timeout(10):
        while await verb("holders", of="a"):
            await asyncio.sleep(0.01)  # a client's release is told soon
    with pytest.raises(Refused, match="no task t1"):
        await verb("why", id="t1")


async def test_a_name_is_taken_by_force(place: Place) -> None:
    old = await place.resource.claim(["a:E"], "ops")
    assert not await old.lost(wait=0.01)
    losing = asyncio.ensure_future(old.lost(wait=20))
    assert await place.resource.verb("force_release", of="a") == [old.id]
    assert await losing
    async with place.resource.claim(["a:E"], "x") as new:
        assert new.fence["a"] > old.fence["a"]
        await old.release()
        assert not await old.lost()
        assert [task["id"] for task in await place.resource.verb("holders", of="a")] == [new.id]


@pytest.mark.parametrize(
    ("verb", "arguments", "says"),
    [
        ("submit", {"tenant": "t", "names": "a:X"}, "end it with"),
        ("submit", {"tenant": "", "names": "a"}, "tenant must be"),
        ("submit", {"tenant": "t", "names": "a", "payload": "text"}, "payload is at most"),
        ("submit", {"tenant": "t", "names": "a", "deadline": -1}, "deadline is a number"),
        ("submit", {"tenant": "t", "names": "a", "priority": "high"}, "priority must be a whole number"),
        ("submit", {"tenant": "t", "names": [5]}, "a requirement is text"),
        ("submit", {"tenant": "t", "names": 5}, "names"),
        ("submit", {"tenant": "t"}, "missing a required argument: 'names'"),
        ("read", {"id": "../names"}, "no task's id"),
        ("read", {"id": 5}, "id must be"),
        ("read", {"key": "x"}, "id"),
        ("wait_for", {"id": "t1", "timeout": "long"}, "timeout is a number"),
        ("holders", {"of": "a,b"}, "other than a comma"),
        ("dance", {}, "it has submit"),
    ],
)
async def test_wrong_arguments_are_told(place: Place, verb: str, arguments: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await place.resource.verb(verb, **arguments)


async def test_functions_are_submitted_here_or_from_far(place: Place) -> None:
    seen: list[Any] = []

    async def power_on(vm: str, fence: dict[str, int], key: str) -> str:
        seen.append((vm, sorted(fence), key))
        return "on"

    functions = place.functions if place.bursar is None else place.bursar.functions
    functions.register(power_on, "{vm}:E", None, None)
    place.functions = functions
    place.go.set()
    if place.bursar is None:
        arguments = {"vm": "vm-7"}
        id = await functions.submit(place.resource.verb, power_on, arguments, tenant="ops", key="k")
    else:
        task = await place.bursar.submit(power_on, tenant="ops", vm="vm-7", key="k")
        assert await task.result(wait=20) == "on"
        id = task.id
    assert (await over(place.resource, id))["result"] == b'"on"'
    assert seen == [("vm-7", ["vm-7"], id)]


async def read_statistics(resource: Resource) -> ClaimStatistics:
    counted = await resource.statistics()
    assert counted.ready
    return msgspec.convert(msgspec.to_builtins(counted.part), ClaimStatistics)


async def test_statistics_and_explanation_are_told(place: Place) -> None:
    resource = place.resource
    async with resource.claim(["a:E"], "ops") as held:
        waiting = asyncio.ensure_future(resource.claim(["a:S"], "x", wait=10)._take())
        async with asyncio.timeout(10):
            while not (await resource.explain("x")).figures["waiting"]:
                await asyncio.sleep(0.01)
        part = await read_statistics(resource)
        assert (part.waiting, part.held, part.instances, part.granted) == (1, 1, 1, 1)
        assert part.holders[held.id].names == "a:E"
        (queued,) = part.queue.values()
        assert queued.why == f"a is held by ops ({held.id})"
        assert (await resource.explain("ops")).figures == {"held": 1, "waiting": 0}
    await (await waiting).release()
    async with asyncio.timeout(10):
        while (await read_statistics(resource)).released < 2:
            await asyncio.sleep(0.01)
    part = await read_statistics(resource)
    assert (part.waiting, part.held, part.granted) == (0, 0, 2)


async def test_every_field_of_the_statistics_says_what_it_is() -> None:
    fields = msgspec.inspect.type_info(ClaimStatistics).fields  # type: ignore[attr-defined]
    kinds = {field.name: field.type.extra["metric"] for field in fields}  # type: ignore[attr-defined]
    assert kinds["waiting"] == "gauge" and kinds["granted"] == "counter" and kinds["queue"] == "none"
