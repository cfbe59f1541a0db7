"""`share` as programs use it, through the front door, in virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bursar.errors import Refused, UsageError
from bursar.policy import SharePolicy, ShareTenant
from bursar.shares.book import IDLE_NS
from bursar.shares.resource import LARGEST_NS, open_resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS
from virtual_time import run_in_virtual_time


def make_policy(capacity=2000, shadow=False, **weights):
    tenants = {name: ShareTenant(weight=weight) for name, weight in (weights or {"a": 1, "b": 3}).items()}
    return SharePolicy(
        name="disk",
        tenants=tenants,
        capacity=Rate.of(capacity) if capacity else None,
        interval_ns=50 * MILLISECOND_NS,
        shadow=shadow,
    )


def with_share(policy):
    """The decorated coroutine runs in virtual time, with a share that is open."""

    def decorate(body):
        async def run(world):
            resource = open_resource(world, "disk", policy)
            await resource.start()
            await body(world, resource)
            await resource.stop()

        def test():
            run_in_virtual_time(run)

        test.__name__ = body.__name__
        return test

    return decorate


async def spend(world, resource, tenant, seconds, together=32):
    """How many tokens a tenant gets that always has `together` requests outstanding."""
    until = world.clock.now() + int(seconds * SECOND_NS)
    count = 0

    async def one():
        nonlocal count
        while world.clock.now() < until:
            await resource.acquire(tenant, wait=5)
            count += 1

    await asyncio.gather(*(one() for _ in range(together)))
    return count


@with_share(make_policy(a=1, b=3))
async def test_two_backlogged_tenants_get_bandwidth_by_weight(world, resource):
    a, b = await asyncio.gather(spend(world, resource, "a", 1.5), spend(world, resource, "b", 1.5))
    assert b / a == pytest.approx(3, rel=0.25)
    assert a + b == pytest.approx(3000, rel=0.05)


@with_share(make_policy(a=1, b=99))
async def test_a_lone_tenant_gets_the_whole_target(world, resource):
    assert await spend(world, resource, "a", 1) == pytest.approx(2000, rel=0.05)


@with_share(make_policy(capacity=10, a=1))
async def test_a_request_that_cannot_go_in_time_is_refused_with_a_reason(world, resource):
    await resource.acquire("a", 20)
    with pytest.raises(Refused, match="disk is busy for another"):
        await resource.acquire("a", wait=0.05)
    with pytest.raises(Refused):
        await resource.acquire("a")
    assert resource.try_acquire("a") is None
    tally = (await resource.statistics()).tenants["a"]
    assert (tally.refused, tally.refused_requests) == (3, 3)


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("amount", [1, 700])
def test_the_same_call_after_retry_after_is_granted_and_not_much_before(waiting, amount):
    @with_share(make_policy(capacity=1000, a=1, b=1))
    async def check(world, resource):
        await resource.acquire("b", 300)
        others = [asyncio.ensure_future(resource.acquire("b", 40, wait=60)._take()) for _ in range(waiting)]
        await asyncio.sleep(0)
        for wait in (0, 0.05):
            with pytest.raises(Refused) as caught:
                await resource.acquire("a", amount, wait=wait)
            assert caught.value.remaining == 0
        retry_ns = round(caught.value.retry_after * SECOND_NS)
        await world.clock.sleep(retry_ns - MILLISECOND_NS)
        assert resource.try_acquire("a", amount) is None, "it could have been told to come sooner"
        await world.clock.sleep(MILLISECOND_NS)
        assert (await resource.acquire("a", amount)).amount == amount
        assert all(other.done() for other in others)

    check()


@with_share(make_policy(capacity=10, a=1))
async def test_a_cancelled_waiter_leaves_the_queue(world, resource):
    await resource.acquire("a", 5)
    waiting = asyncio.ensure_future(resource.acquire("a", wait=60).__aenter__())
    await world.clock.sleep(10 * MILLISECOND_NS)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(resource.decider._gate.filter) == 0


@with_share(make_policy(capacity=10, shadow=True, a=1))
async def test_shadow_decides_and_counts_and_refuses_nobody(world, resource):
    for _ in range(50):
        await resource.acquire("a")
    tally = (await resource.statistics()).tenants["a"]
    assert tally.granted == 50 and tally.refused == 0
    assert tally.would_refuse == 49


@with_share(make_policy(capacity=1000, a=1, b=1))
async def test_a_request_that_would_keep_the_target_for_a_minute_is_refused_at_once(world, resource):
    """It would be served whole, and whatever its weight nobody else in the meantime."""
    most = 1000 * LARGEST_NS // SECOND_NS
    with pytest.raises(Refused, match="never gets more than 60000") as caught:
        await resource.acquire("a", most + 1, wait=3600)
    assert caught.value.limit == most
    assert (await resource.acquire("a", most)).amount == most
    with pytest.raises(Refused) as caught:
        await resource.acquire("b")
    assert caught.value.retry_after <= 60


@with_share(make_policy(a=1, b=3))
async def test_explain_says_why_a_tenant_gets_what_it_gets(world, resource):
    await asyncio.gather(spend(world, resource, "a", 0.4), spend(world, resource, "b", 0.4, together=1))
    text = " ".join((await resource.explain("a")).sentences)
    assert "a" in text and "tokens" in text
    statistics = await resource.statistics()
    assert set(statistics.part.tenants) == set(statistics.tenants) == {"a", "b"}
    assert statistics.part.intervals == 8 and statistics.part.handed_out == 8 * 100
    with pytest.raises(UsageError, match="did you mean"):
        await resource.explain("bb")


@with_share(make_policy(capacity=1000, a=1, b=3))
async def test_a_changed_policy_is_taken_while_requests_flow(world, resource):
    spending = asyncio.gather(spend(world, resource, "a", 0.5), spend(world, resource, "b", 0.5))
    await world.clock.sleep(200 * MILLISECOND_NS)
    await resource.reconfigure(make_policy(capacity=3000, a=3, b=3))
    await spending
    part = (await resource.statistics()).part
    assert part.capacity == 3000 and part.tenants["a"].weight == 3
    await resource.reconfigure(make_policy(capacity=3000, b=3))
    with pytest.raises(Refused, match='no tenant "a"'):
        await resource.acquire("a")
    other = msgspec.structs.replace(make_policy(b=3), costs="bytes")
    with pytest.raises(UsageError, match="who owes whom is counted in tokens"):
        await resource.reconfigure(other)


@with_share(make_policy(capacity=1000, a=1, b=1))
async def test_another_interval_and_half_life_hold_from_the_next_interval_on(world, resource):
    spending = asyncio.gather(spend(world, resource, "a", 1.0), spend(world, resource, "b", 1.0))
    await world.clock.sleep(200 * MILLISECOND_NS)
    book, before = resource.decider.book, resource.decider.book.number
    shorter = msgspec.structs.replace(
        make_policy(capacity=1000, a=1, b=1), interval_ns=20 * MILLISECOND_NS, half_life_ns=SECOND_NS
    )
    await resource.reconfigure(shorter)
    assert book.handout.tokens == 50, "what was handed out stays as it is"
    await spending
    assert book.handout.tokens == 20 and book.number - before >= 35
    part = (await resource.statistics()).part
    assert part.interval_s == 0.02


def with_template(policy, **settings):
    return msgspec.structs.replace(policy, templates={"*": ShareTenant(weight=1)}, **settings)


@with_share(with_template(make_policy(capacity=2000, a=1), max_tenants=3))
async def test_tenants_of_a_template_come_in_up_to_max_tenants_and_are_forgotten(world, resource):
    await asyncio.gather(*(spend(world, resource, name, 0.2) for name in ("a", "zoe")))
    assert (await resource.statistics()).part.tenants["zoe"].weight == 1
    await resource.acquire("yann", wait=1)
    with pytest.raises(Refused, match='as many tenants as it may have, 3: "max"') as refused:
        await resource.acquire("max", wait=1)
    assert refused.value.reason == "tenant"
    await world.clock.sleep(IDLE_NS + 10 * SECOND_NS)
    await resource.acquire("max", wait=1)
    tallies = (await resource.statistics()).tenants
    assert set(tallies) == {"a", "max", "*"}, "who is idle is forgotten, and stays in the sum"
    assert tallies["*"].granted_requests > 1


@with_share(with_template(make_policy(capacity=2000, a=1)))
async def test_a_name_with_a_star_in_it_is_nobodys(world, resource):
    """In a rule it would stand for others."""
    for name in ("a*", "a*b", "*"):
        with pytest.raises(Refused, match="has no tenant"):
            await resource.acquire(name)


@with_share(make_policy(capacity=2000, **{"a*": 1, "ab": 1, "c*d": 1}))
async def test_a_tenant_that_is_listed_with_a_star_is_held_to_its_own_part_alone(world, resource):
    got = await asyncio.gather(*(spend(world, resource, name, 1.0) for name in ("a*", "ab", "c*d")))
    assert all(abs(each - 667) < 80 for each in got), got


@with_share(make_policy(capacity=2000, a=1, b=1))
async def test_a_lender_is_told_within_how_many_intervals_it_is_paid_back(world, resource):
    book = resource.decider.book
    for _ in range(20):
        book.close({"a": 1, "b": 500})
    assert book.record("a") > 0
    answer = await resource.explain("a")
    assert f"within {answer.figures['payback_intervals']} intervals" in " ".join(answer.sentences)
    for _ in range(answer.figures["payback_intervals"]):
        book.close({"a": 10**6, "b": 10**6})
    assert book.records() == {"a": 0, "b": 0}


def test_it_is_ready_once_it_was_started():
    async def body(world):
        resource = open_resource(world, "disk", make_policy())
        assert not resource.decider.is_ready()
        await resource.start()
        assert resource.decider.is_ready()

    run_in_virtual_time(body)


def test_an_estimated_capacity_is_refused_where_it_cannot_be_estimated():
    async def body(world):
        with pytest.raises(UsageError, match="auto"):
            open_resource(world, "disk", make_policy(capacity=None))

    run_in_virtual_time(body)
