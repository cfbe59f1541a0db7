"""The door alone, around a toy kind: here, and at a daemon over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from tests.resources.places import make_policy, open_way
from tests.resources.toys import ToyDecider

import bursar
from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.resource import Offers
from bursar.resource.clients import Clients
from bursar.resource.door import Resource
from bursar.resource.several import AcquisitionOfAll, GrantOfAll
from bursar.runtime.client import Bursar
from bursar.runtime.world import LiveWorld, open_world

TENANTS = {"acme": QuotaTenant(limit=1000), "globex": QuotaTenant(limit=1000)}


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    world = await open_world("node", listen="127.0.0.1:0")
    yield world
    await world.close()


async def open_door(
    world: LiveWorld, left: int = 100, *, shadow: bool = False, **settings: object
) -> Resource:
    decider = ToyDecider("toy", left, now=world.clock.now, **settings)  # type: ignore[arg-type]
    door = Resource(world, decider, QuotaPolicy(name="toy", tenants=TENANTS, shadow=shadow))
    await door.start()
    return door


@pytest.fixture
async def far(world: LiveWorld) -> AsyncIterator[Callable[[Resource], AsyncIterator[Bursar]]]:
    opened: list[Bursar] = []

    async def reach(door: Resource) -> Resource:
        Clients(world, {"toy": door}).start()
        b = await Bursar(f"bursar://{world.listening}").connect()
        opened.append(b)
        return b.resource("toy")

    yield reach  # type: ignore[misc]
    for b in opened:
        await b.close()


def toy(door: Resource) -> ToyDecider:
    assert isinstance(door.decider, ToyDecider)
    return door.decider


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_request_within_what_there_is_is_granted_and_counted(world: LiveWorld) -> None:
    door = await open_door(world)
    async with door.acquire("acme", 3) as grant:
        assert (grant.amount, grant.period, grant.tenant) == (3, 1, "acme")
    assert toy(door).left == 97
    tally = door.tallies()["acme"]
    assert (tally.granted, tally.granted_requests) == (3, 1)


async def test_a_request_that_waits_is_granted_when_there_is_enough(world: LiveWorld) -> None:
    door = await open_door(world, 0)
    asking = asyncio.create_task(_take(door, "acme", 5, 5.0))
    await until(lambda: bool(toy(door).queue))
    toy(door).add(5)
    assert (await asking).amount == 5


async def _take(door: Resource, tenant: str, amount: int, wait: float):  # type: ignore[no-untyped-def]
    return await door.acquire(tenant, amount, wait=wait)


async def test_waiting_ends_with_a_refusal_in_time(world: LiveWorld) -> None:
    door = await open_door(world, 0)
    began = world.clock.now()
    with pytest.raises(Refused) as caught:
        await door.acquire("acme", 5, wait=0.1)
    assert 0.1e9 <= world.clock.now() - began < 0.35e9
    assert caught.value.remaining == 0
    assert not toy(door).queue


async def test_several_have_together_the_time_of_one(world: LiveWorld) -> None:
    """However slow each is: the next one has what those before it left."""
    doors = {name: await open_door(world, 0) for name in "abc"}
    asking = asyncio.create_task(_take_all(world, doors, 60.0))
    ends: set[int | None] = set()
    for name in "ab":
        await until(lambda: bool(toy(doors[name]).queue))  # noqa: B023
        ends.add(toy(doors[name]).queue[0].by)
        toy(doors[name]).add(5)
    await until(lambda: bool(toy(doors["c"]).queue))
    ends.add(toy(doors["c"]).queue[0].by)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(ends) == 1 and None not in ends
    assert [toy(door).left for door in doors.values()] == [5, 5, 0]


async def _take_all(world: LiveWorld, doors: dict[str, Resource], wait: float) -> GrantOfAll:
    return await AcquisitionOfAll(world.clock, doors, "acme", dict.fromkeys(doors, 5), wait)


async def test_what_was_had_of_several_is_back_whatever_the_last_one_says(world: LiveWorld) -> None:
    doors = {"a": await open_door(world, 100), "b": await open_door(world, 0)}
    with pytest.raises(Refused):
        await _take_all(world, doors, 0.0)
    assert toy(doors["a"]).left == 100


async def test_cancelling_at_any_moment_leaves_nothing_held(world: LiveWorld) -> None:
    for wait_steps in range(6):
        door = await open_door(world, 0)
        asking = asyncio.create_task(_take(door, "acme", 5, 5.0))
        for _ in range(wait_steps):
            await asyncio.sleep(0)
        toy(door).add(5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert toy(door).left == 5, wait_steps
        assert not toy(door).queue


async def test_a_lot_is_spent_without_asking_again(world: LiveWorld) -> None:
    door = await open_door(world, 100, lot=10)
    assert await door.acquire("acme")
    asked = toy(door).left
    grants = [door.try_acquire("acme") for _ in range(10)]
    assert all(grants) and toy(door).left == asked == 89
    assert door.tallies()["acme"].granted == 11
    assert all(grant is not None and grant.period == 1 for grant in grants)


async def test_what_is_left_of_a_lot_goes_back_when_the_door_closes(world: LiveWorld) -> None:
    door = await open_door(world, 100, lot=10)
    assert door.try_acquire("acme")
    assert door.try_acquire("acme", 4)
    await door.stop()
    assert toy(door).left == 95
    assert toy(door).seen == 4, "demand is what was spent, not the lot"


async def test_settling_for_less_gives_back(world: LiveWorld) -> None:
    door = await open_door(world, 100)
    async with door.acquire("acme", 10) as grant:
        grant.settle(4)
    assert toy(door).left == 96
    with pytest.raises(UsageError, match="above the 10"):
        async with door.acquire("acme", 10) as grant:
            grant.settle(11)


async def test_what_a_kind_does_not_offer_is_a_usage_error(world: LiveWorld) -> None:
    door = await open_door(world, 100)
    with pytest.raises(UsageError, match="kinds quota and claim"):
        door.acquire("acme", key="k")
    with pytest.raises(UsageError, match="kind claim"):
        door.claim(["vm-7:E"], "acme")
    with pytest.raises(UsageError, match="ahead of use"):
        door.try_acquire("acme")
    with pytest.raises(UsageError, match="have no ids"):
        await door.settle("x", 1)


async def test_unknown_tenants_and_impossible_amounts_are_refused(world: LiveWorld) -> None:
    door = await open_door(world, 100)
    with pytest.raises(Refused, match='did you mean "acme"'):
        await door.acquire("acne", wait=5)
    with pytest.raises(Refused, match="never gets more than 1000"):
        await door.acquire("acme", 1001, wait=5)


async def test_shadow_lets_everybody_go_and_counts_only_what_ran_out_of_time(world: LiveWorld) -> None:
    door = await open_door(world, 1, shadow=True)
    first = await door.acquire("acme")
    second = await door.acquire("acme", wait=5)
    assert (first.fallback, second.fallback) == (None, "shadow")
    toy(door).add(1)
    assert door.tallies()["acme"].would_refuse == 0, "its ghost was granted in time"
    assert await door.acquire("acme", 7, wait=0.05)
    await until(lambda: door.tallies()["acme"].would_refuse == 7)
    assert door.tallies()["acme"].would_refuse_requests == 1


async def test_a_client_takes_from_its_lot(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    here = await open_door(world, 100, lot=20)
    there = await far(here)
    assert there.try_acquire("acme") is None, "nothing is here yet"
    await until(lambda: there.try_acquire("acme") is not None)
    taken = 1
    while there.try_acquire("acme") is not None:
        taken += 1
    assert taken <= 20
    there.hand.end("acme")
    await until(lambda: here.tallies()["acme"].granted_requests >= taken)
    assert toy(here).seen == taken


async def test_what_a_client_leaves_of_a_lot_comes_back(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    here = await open_door(world, 100, lot=20)
    there = await far(here)
    async with there.acquire("acme"):
        pass
    assert toy(here).left <= 79
    there.hand.end("acme")
    await until(lambda: toy(here).left == 99)


async def test_a_client_is_told_of_mistakes_and_refusals(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    there = await far(await open_door(world, 2))
    with pytest.raises(UsageError, match="kinds quota and claim"):
        there.acquire("acme", key="k")
    with pytest.raises(Refused) as caught:
        await there.acquire("acme", 3)
    assert (caught.value.limit, caught.value.remaining) == (1000, 2)
    with pytest.raises(Refused, match="did you mean"):
        await there.acquire("acmee")
    assert (await there.explain("acme")).sentences == ("a toy",)
    assert (await there.statistics()).tenants["acme"].refused == 3


async def test_a_refusal_is_repeated_here_for_a_moment_and_no_longer(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    here = await open_door(world, 2)
    toy(here).retry_after = 5.0
    there = await far(here)
    for _ in range(3):
        with pytest.raises(Refused):
            await there.acquire("acme", 3)
    assert toy(here).asked == 1, "overload is not a round trip each"
    assert await there.acquire("acme", 2), "less was not refused"
    await asyncio.sleep(0.03)
    with pytest.raises(Refused):
        await there.acquire("acme", 3)
    assert toy(here).asked == 3


async def test_a_cancelled_client_leaves_nothing_held(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    here = await open_door(world, 0)
    there = await far(here)
    for _ in range(20):
        asking = asyncio.create_task(_take(there, "acme", 5, 5.0))
        await until(lambda: bool(toy(here).queue))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await until(lambda: not toy(here).queue)
    toy(here).add(5)
    assert toy(here).left == 5


async def test_without_the_daemon_a_client_may_have_what_it_had(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    here = await open_door(world, 1000)
    there = await far(here)
    with pytest.raises(Unknown):
        await world.sockets.close()
        await there.acquire("acme", wait=0)


async def test_offers_are_those_of_the_kind(world: LiveWorld, far: Callable) -> None:  # type: ignore[type-arg]
    there = await far(await open_door(world, 1, offers=Offers(keys=True)))
    assert there.decider.offers == Offers(keys=True)


async def test_giving_up_a_repeat_does_not_end_what_the_first_holds(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    async with open_way("daemon-async", policy) as caller:
        first = await caller.acquire("quota", 40, key="k")
        async with await bursar.connect(f"bursar://{caller.daemon.host.world.listening}") as other:  # type: ignore[union-attr]
            repeat = await other.resource("quota").acquire("acme", 40, key="k")
            assert repeat.replayed
            asked = repeat._source.data
            other._backend._far._line.give_back(asked.peer, asked.number, 40)  # type: ignore[attr-defined]
            await other._backend._far._line.flush()  # type: ignore[attr-defined]
        part = msgspec.to_builtins((await caller.statistics("quota")).part)
        assert part["tenants"]["acme"]["held"] == 40
        await caller.settle(first, 10)


async def test_what_could_not_be_learnt_at_once_is_waited_for_by_all(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a resource was just opened: there is time left to wait for it."""
    one, other = await open_door(world), await open_door(world, 0)
    monkeypatch.setattr(
        toy(other), "withdraw", lambda ticket: toy(other).queue.remove(ticket) or Unknown("not yet")
    )
    asked = asyncio.ensure_future(
        AcquisitionOfAll(
            world.clock, {"one": one, "other": other}, "acme", {"one": 1, "other": 1}, 5.0
        )._take()
    )
    async with asyncio.timeout(5):
        while not toy(other).queue or toy(other).asked < 2:
            await asyncio.sleep(0.01)
    toy(other).add(10)
    assert (await asked).grants.keys() == {"one", "other"}
