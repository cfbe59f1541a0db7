"""`share` as programs use it, on a real clock."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from bursar.errors import Refused, UsageError
from bursar.policy import SharePolicy, ShareTenant
from bursar.runtime.world import open_world
from bursar.shares.resource import open_resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS


def make_policy(capacity=2000, shadow=False, **weights):
    tenants = {name: ShareTenant(weight=weight) for name, weight in (weights or {"a": 1, "b": 3}).items()}
    return SharePolicy(
        name="disk",
        tenants=tenants,
        capacity=Rate.of(capacity) if capacity else None,
        interval_ns=50 * MILLISECOND_NS,
        shadow=shadow,
    )


@pytest.fixture
async def open_share(tmp_path):
    opened = []

    async def open_(policy):
        world = await open_world("node", state=tmp_path / "state")
        resource = open_resource(world, "disk", policy)
        await resource.start()
        opened.append((world, resource))
        return resource

    yield open_
    for world, resource in opened:
        await resource.stop()
        await world.close()


async def spend(resource, tenant, seconds, together=32):
    """How many tokens a tenant gets that always has `together` requests outstanding."""
    until = time.monotonic() + seconds
    count = 0

    async def one():
        nonlocal count
        while time.monotonic() < until:
            await resource.acquire(tenant, wait=5)
            count += 1

    await asyncio.gather(*(one() for _ in range(together)))
    return count


async def test_two_backlogged_tenants_get_bandwidth_by_weight(open_share):
    resource = await open_share(make_policy(a=1, b=3))
    a, b = await asyncio.gather(spend(resource, "a", 1.5), spend(resource, "b", 1.5))
    assert b / a == pytest.approx(3, rel=0.25)
    assert a + b == pytest.approx(3000, rel=0.15)


async def test_a_lone_tenant_gets_the_whole_target(open_share):
    resource = await open_share(make_policy(a=1, b=99))
    assert await spend(resource, "a", 1) == pytest.approx(2000, rel=0.15)


async def test_a_request_that_cannot_go_in_time_is_refused_with_a_reason(open_share):
    resource = await open_share(make_policy(capacity=10, a=1))
    await resource.acquire("a", 20)
    with pytest.raises(Refused, match="disk") as caught:
        await resource.acquire("a", wait=0.05)
    assert caught.value.retry_after > 0
    with pytest.raises(Refused):
        await resource.acquire("a")
    assert resource.try_acquire("a") is None
    assert resource.statistics()["tenants"]["a"]["refused"] == 3


async def test_a_cancelled_waiter_leaves_the_queue(open_share):
    resource = await open_share(make_policy(capacity=10, a=1))
    await resource.acquire("a", 5)
    waiting = asyncio.ensure_future(resource.acquire("a", wait=60).__aenter__())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(resource._gate.filter) == 0


async def test_shadow_decides_and_refuses_nobody(open_share):
    resource = await open_share(make_policy(capacity=10, shadow=True, a=1))
    for _ in range(50):
        await resource.acquire("a")


async def test_explain_says_why_a_tenant_gets_what_it_gets(open_share):
    resource = await open_share(make_policy(a=1, b=3))
    await asyncio.gather(spend(resource, "a", 0.4), spend(resource, "b", 0.4, together=1))
    text = " ".join(resource.explain("a").sentences)
    assert "a" in text and "tokens" in text
    assert set(resource.statistics()["tenants"]) == {"a", "b"}


async def test_a_changed_policy_is_taken_while_requests_flow(open_share):
    resource = await open_share(make_policy(capacity=1000, a=1, b=3))
    spending = asyncio.gather(spend(resource, "a", 0.5), spend(resource, "b", 0.5))
    await asyncio.sleep(0.2)
    await resource.reconfigure(make_policy(capacity=3000, a=3, b=3))
    await spending
    assert resource.statistics()["capacity"] == 3000
    assert resource.statistics()["tenants"]["a"]["weight"] == 3
    await resource.reconfigure(make_policy(capacity=3000, b=3))
    with pytest.raises(UsageError, match="a"):
        resource.try_acquire("a")
    other = msgspec.structs.replace(make_policy(b=3), interval_ns=7)
    with pytest.raises(UsageError, match="restart"):
        await resource.reconfigure(other)


async def test_a_lender_is_told_within_how_many_intervals_it_is_paid_back(open_share):
    resource = await open_share(make_policy(capacity=2000, a=1, b=1))
    for _ in range(20):
        resource.book.close({"a": 1, "b": 500})
    assert resource.book.record("a") > 0
    answer = resource.explain("a")
    assert f"within {answer.figures['payback_intervals']} intervals" in " ".join(answer.sentences)
    for _ in range(answer.figures["payback_intervals"]):
        resource.book.close({"a": 10**6, "b": 10**6})
    assert resource.book.records() == {"a": 0, "b": 0}


async def test_an_unknown_tenant_is_refused_by_name(open_share):
    resource = await open_share(make_policy(a=1))
    with pytest.raises(UsageError, match="stranger"):
        resource.try_acquire("stranger")
    with pytest.raises(UsageError, match="stranger"):
        await resource.acquire("stranger", wait=1)


async def test_an_estimated_capacity_is_refused_where_it_cannot_be_estimated(tmp_path):
    world = await open_world("node", state=tmp_path / "state")
    try:
        with pytest.raises(UsageError, match="auto"):
            open_resource(world, "disk", make_policy(capacity=None))
    finally:
        await world.close()
