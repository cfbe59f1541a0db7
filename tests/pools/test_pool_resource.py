"""A pool at the front door, in virtual time: granted, refused, waited for, explained, and without a
monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bursar.errors import NoAnswerError, Refused, Unknown, UsageError
from bursar.policy import PoolPolicy, PoolTenant
from bursar.policy.values import KEEP, REFUSE, WithoutBursar
from bursar.pools.resource import PoolDecider, open_resource
from bursar.resource.door import Resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World
from virtual_time import run_in_virtual_time

PERIOD_NS = 200 * MILLISECOND_NS
TENANTS = {
    "acme": PoolTenant(reservation=Rate.of(5000)),
    "globex": PoolTenant(reservation=Rate.of(2000), limit=Rate.of(3000)),
}


def make_policy(**changes: Any) -> PoolPolicy:
    policy = PoolPolicy(
        name="records",
        tenants=TENANTS,
        capacity=Rate.of(10_000),
        client_capacity=Rate.of(9_000),
        period_ns=PERIOD_NS,
        pacing=False,  # all that is reserved is there as soon as a period opens: easily counted
    )
    return msgspec.structs.replace(policy, **changes)


def with_pool(**changes: Any) -> Callable[[Any], Callable[[], None]]:
    """The decorated coroutine runs in virtual time, with a pool that is open."""

    def decorate(body: Callable[[World, Resource, Any], Awaitable[None]]) -> Callable[[], None]:
        async def run(world: World) -> None:
            resource = open_resource(world, "records", make_policy(**changes))
            await resource.start()
            await body(world, resource, resource.decider)
            await resource.stop()

        def test() -> None:
            run_in_virtual_time(run)

        test.__name__ = body.__name__
        return test

    return decorate


async def next_period(world: World, decider: PoolDecider) -> None:
    """The engines of those who reserve have seen it begin."""
    engines = [
        decider.engine(name) for name, each in decider._policy.tenants.items() if each.reservation.count
    ]
    before = decider._book.seen
    while decider._book.seen == before or any(each.book.period == before for each in engines):
        await world.clock.sleep(MILLISECOND_NS)


def reserve(reservations: dict[str, int], limits: dict[str, int] | None = None) -> dict[str, PoolTenant]:
    return {
        name: PoolTenant(
            reservation=Rate.of(rate),
            limit=Rate.of(limits[name]) if limits and name in limits else None,
        )
        for name, rate in reservations.items()
    }


@with_pool()
async def test_a_tenant_gets_its_reservation_and_not_more_than_its_limit(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    async with records.acquire("acme", 900, wait=2) as grant:
        assert grant.amount == 900 and grant.period == decider.engine("acme").book.period
    assert records.try_acquire("globex", 10) is not None
    with pytest.raises(Refused, match="never gets more than 600") as caught:
        await records.acquire("globex", 601)
    assert caught.value.limit == 600
    with pytest.raises(Refused, match="never gets more than 2000"):
        await records.acquire("acme", 2001)
    with pytest.raises(Refused, match="did you mean"):
        await records.acquire("acmee")
    said = await records.explain("acme")
    assert "reservation of 5k/s" in said.sentences[0] and "in periods of 0.2 s" in said.sentences[0]
    part = (await records.statistics()).part
    assert part.leading and part.issued <= part.capacity == 2000
    assert part.tenants["acme"].spent == 900


@with_pool()
async def test_no_period_grants_a_tenant_more_than_its_limit(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    told: dict[int, int] = {}

    async def call() -> None:
        while world.clock.now() < until:
            grant = await records.acquire("globex", 7, wait=1)
            told[grant.period] = told.get(grant.period, 0) + 7

    until = world.clock.now() + SECOND_NS
    await asyncio.gather(*(call() for _ in range(20)))
    assert max(told.values()) <= 600
    assert sorted(told.values())[2] >= 0.97 * 600, "the whole ones are used up"


@with_pool(tenants=reserve({"acme": 8500, "globex": 2000}))
async def test_reservations_that_do_not_fit_are_kept_as_far_as_they_fit_and_named(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    """A node whose terms promise too much has to run all the same, and others' resources with it."""
    assert reserved_by(decider) == {"acme": 1700, "globex": 300}
    said = (await records.explain("globex")).sentences
    assert any("short of 100 a period" in sentence for sentence in said)
    (problem,) = (await records.statistics()).part.problems
    assert "reservation of globex does not fit" in problem and "bursar plan" in problem
    await records.reconfigure(make_policy(tenants=reserve({"acme": 8500, "globex": 1500})))
    assert reserved_by(decider) == {"acme": 1700, "globex": 300}
    assert (await records.statistics()).part.problems == ()


def reserved_by(decider: PoolDecider) -> dict[str, int]:
    return {name: each.reservation for name, each in decider._book.clients.items() if each.reservation}


@with_pool(shadow=True)
async def test_shadow_mode_refuses_nobody_and_counts(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    for _ in range(4):
        assert records.try_acquire("acme", 800) is not None
    tally = (await records.statistics()).tenants["acme"]
    assert tally.granted == 3200 and tally.would_refuse == 2400 and tally.refused == 0


# Refusals


@with_pool()
async def test_a_refusal_says_what_is_left_and_when_to_come_again(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 380)
    with pytest.raises(Refused, match=r"380 tokens were charged .* its limit is 600; 70 could go now") as no:
        await records.acquire("globex", 300)
    assert (no.value.limit, no.value.remaining) == (600, 70)
    assert (await records.acquire("globex", 70)).amount == 70
    with pytest.raises(Refused) as no:
        await records.acquire("globex", 101)
    assert no.value.remaining == 0 and no.value.retry_after is not None
    await world.clock.sleep(round((no.value.retry_after - 0.02) * SECOND_NS))
    assert records.try_acquire("globex", 101) is None
    await world.clock.sleep(20 * MILLISECOND_NS)
    assert (await records.acquire("globex", 101)).amount == 101


@pytest.mark.parametrize("pacing", [False, True])
@pytest.mark.parametrize("amount", [1, 30, 700, 900])
def test_the_same_call_after_retry_after_is_granted(pacing: bool, amount: int) -> None:
    """Where a time is told. A paced reservation comes little by little, and one that nobody uses
    fades: then no time can be promised for much of it at once."""

    @with_pool(pacing=pacing, tenants=reserve({"acme": 5000}), capacity=Rate.of(5000))
    async def check(world: World, records: Resource, decider: PoolDecider) -> None:
        promised = amount <= (50 if pacing else 750)
        for offset_ms in range(0, 200, 7):
            await next_period(world, decider)
            await world.clock.sleep(offset_ms * MILLISECOND_NS)
            with pytest.raises(Refused) as no:
                while True:
                    await records.acquire("acme", amount)
            assert (no.value.retry_after is not None) == promised
            if no.value.retry_after is not None:
                await world.clock.sleep(round(no.value.retry_after * SECOND_NS))
                assert (await records.acquire("acme", amount)).amount == amount

    check()


@with_pool()
async def test_between_two_periods_nobody_is_refused(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    """Another process leads, and opens the next period a moment late."""
    await next_period(world, decider)
    book = decider.engine("acme").book
    check = decider._monitor.check
    decider._monitor.check = lambda: None  # type: ignore[method-assign]
    await world.clock.sleep(book.began + PERIOD_NS - world.clock.now())
    assert book.is_over(world.clock.now())
    assert records.try_acquire("acme") is None
    waiting = asyncio.ensure_future(records.acquire("acme")._take())
    await world.clock.sleep(15 * MILLISECOND_NS)
    assert not waiting.done()
    check()
    assert (await waiting).period == book.period


@with_pool()
async def test_a_program_that_keeps_the_loop_from_running_opens_its_periods_all_the_same(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    book = decider.engine("acme").book
    period = book.period
    decider._monitor._stopped = True
    await world.clock.sleep(book.began + PERIOD_NS - world.clock.now())
    grant = records.try_acquire("acme")
    assert grant is not None and grant.period == period + 1


# Waiting


@with_pool()
async def test_a_tenants_requests_are_served_in_order_and_by_one_task(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 600, wait=1)
    order: list[int] = []

    async def call(number: int, amount: int) -> None:
        await records.acquire("globex", amount, wait=5)
        order.append(number)

    calls = [asyncio.ensure_future(call(n, amount)) for n, amount in enumerate([500, 1, 600, 2, 3])]
    await asyncio.sleep(0)
    assert len(decider._engines.open("globex").line) == 5 and decider.engine("globex").book.pending == 1106
    serving = [task.get_name() for task in asyncio.all_tasks() if "globex.waiting" in task.get_name()]
    assert len(serving) == 1
    await asyncio.gather(*calls)
    assert order == [0, 1, 2, 3, 4]
    assert decider.engine("globex").book.pending == 0
    await world.clock.sleep(20 * MILLISECOND_NS)
    assert not [task for task in asyncio.all_tasks() if "globex.waiting" in task.get_name()]


@with_pool()
async def test_who_gives_up_waiting_leaves_the_line_and_holds_nobody_up(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 590, wait=1)
    large = asyncio.ensure_future(records.acquire("globex", 600, wait=5)._take())
    await asyncio.sleep(0)
    small = asyncio.ensure_future(records.acquire("globex", 5, wait=5)._take())
    await world.clock.sleep(30 * MILLISECOND_NS)
    assert not small.done(), "first come, first served"
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await asyncio.sleep(0)
    assert small.done()
    assert len(decider._engines.open("globex").line) == 0 and decider.engine("globex").book.pending == 0


@with_pool()
async def test_a_request_that_a_new_limit_will_never_allow_is_refused_at_once(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 600, wait=5)
    waiting = asyncio.ensure_future(records.acquire("globex", 600, wait=60)._take())
    await asyncio.sleep(0)
    limited = {**TENANTS, "globex": PoolTenant(reservation=Rate.of(2000), limit=Rate.of(2000))}
    await records.reconfigure(make_policy(tenants=limited))
    with pytest.raises(Refused, match="its limit is 400"):
        await waiting


@with_pool()
async def test_a_tenant_that_leaves_the_policy_waits_no_longer(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 600, wait=5)
    waiting = asyncio.ensure_future(records.acquire("globex", 600, wait=60)._take())
    await asyncio.sleep(0)
    await records.reconfigure(make_policy(tenants={"acme": TENANTS["acme"]}))
    with pytest.raises(Refused, match='no tenant "globex" any more'):
        await waiting


@with_pool()
async def test_words_that_cannot_be_reached_for_a_while_end_no_wait(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 600, wait=1)
    waiting = asyncio.ensure_future(records.acquire("globex", 300, wait=5)._take())
    await asyncio.sleep(0)

    def fail(name: str) -> int:
        raise NoAnswerError("gone")

    read, world.words.read = world.words.read, fail  # type: ignore[method-assign]
    await world.clock.sleep(2 * PERIOD_NS)
    assert not waiting.done()
    world.words.read = read  # type: ignore[method-assign]
    assert (await waiting).amount == 300


# Without a monitor


async def lose_the_monitor(world: World, decider: PoolDecider) -> None:
    decider._monitor.check = lambda: None  # type: ignore[method-assign]
    while not decider._is_alone(decider.engine("acme")):
        await world.clock.sleep(10 * MILLISECOND_NS)


async def take_alone(records: Resource, tenant: str) -> int:
    """How many go in this period, one at a time."""
    taken = 0
    while (grant := records.try_acquire(tenant)) is not None:
        assert grant.period == 0 and grant.fallback in ("keep", "safe")
        taken += 1
    return taken


@with_pool()
async def test_keep_is_what_was_charged_in_the_last_period_and_not_the_reservation(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("acme", 999)
    await next_period(world, decider)
    await records.acquire("acme", 40)
    async with records.acquire("acme", 300) as grant:
        grant.settle(250)
    assert decider.is_ready()
    await lose_the_monitor(world, decider)
    assert not decider.is_ready()
    for _ in range(3):
        await world.clock.sleep(PERIOD_NS - world.clock.now() % PERIOD_NS)
        assert await take_alone(records, "acme") == 290
        assert await take_alone(records, "globex") == 0
    with pytest.raises(Unknown, match="no monitor has opened a period") as caught:
        await records.acquire("acme", wait=0.01)
    assert caught.value.fallback == "keep"
    tally = (await records.statistics()).tenants["acme"]
    assert tally.fallback == 3 * 290
    assert "goes on by itself" in (await records.explain("acme")).sentences[-1]


@pytest.mark.parametrize(
    ("without", "most"),
    [
        pytest.param(REFUSE, 0, id="refuse"),
        pytest.param(WithoutBursar(mode="safe", rate=Rate.of(1000)), 100, id="safe"),
        pytest.param(KEEP, 0, id="keep, of nothing"),
    ],
)
def test_without_a_monitor_the_policy_says_what_may_go(without: WithoutBursar, most: int) -> None:
    @with_pool(without_bursar=without)
    async def check(world: World, records: Resource, decider: PoolDecider) -> None:
        await lose_the_monitor(world, decider)
        assert await take_alone(records, "acme") == most
        with pytest.raises(Unknown):
            await records.acquire("acme", 100)

    check()


# A policy that changes


@with_pool()
async def test_reservations_that_fit_once_others_have_shrunk_are_taken_while_it_runs(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    limits = {"globex": 8000}
    await records.reconfigure(make_policy(tenants=reserve({"acme": 1000, "globex": 8000}, limits)))
    assert "reservation of 8k/s" in (await records.explain("globex")).sentences[0]
    grant = await records.acquire("globex", 1500, wait=2)
    assert grant.amount == 1500, "its limit was 600 a period before"


@with_pool()
async def test_a_change_that_needs_a_restart_changes_nothing(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    with pytest.raises(UsageError, match="period: every client counts the period by its own clock"):
        await records.reconfigure(
            make_policy(period_ns=300 * MILLISECOND_NS, batch=10, tenants=reserve({"acme": 1000}))
        )
    for tenant, reservation in (("acme", "5k/s"), ("globex", "2k/s")):
        said = (await records.explain(tenant)).sentences[0]
        assert f"reservation of {reservation}" in said
    assert reserved_by(decider) == {"acme": 1000, "globex": 400}
