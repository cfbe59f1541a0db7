"""A pool whose terms change while it runs, with tenants that no line of the policy names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_pool_resource import PERIOD_NS, TENANTS, make_policy, with_pool

from bursar.errors import Refused
from bursar.policy import PoolTenant
from bursar.pools.resource import PoolDecider, open_resource
from bursar.resource.door import Resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World
from virtual_time import run_in_virtual_time

TEMPLATES: Any = {"*": PoolTenant(limit=Rate.of(1000))}
"""200 tokens a period."""


async def take_all(records: Resource, tenant: str, wait: float = 0.0) -> dict[int, int]:
    """What it gets without waiting, ten at a time, by period."""
    got: dict[int, int] = {}
    while True:
        try:
            grant = await records.acquire(tenant, 10, wait=wait)
        except Refused:
            return got
        got[grant.period] = got.get(grant.period, 0) + 10


@with_pool(templates=TEMPLATES)
async def test_a_tenant_of_a_template_takes_from_the_pool_up_to_its_limit(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await world.clock.sleep(PERIOD_NS + 100 * MILLISECOND_NS)
    got: dict[int, int] = {}
    for _ in range(60):
        for period, tokens in (await take_all(records, "zoe")).items():
            got[period] = got.get(period, 0) + tokens
        await world.clock.sleep(10 * MILLISECOND_NS)
    assert len(got) >= 3 and max(got.values()) == 200 and sum(got.values()) >= 500
    assert "a limit of 1k/s" in (await records.explain("zoe")).sentences[0]
    assert decider._book.outcome is not None and decider._book.outcome.used >= 150, "the monitor sees it"
    assert not [name for name in decider._book.clients if name == "zoe"], "it has no words of its own"


@with_pool(templates=TEMPLATES, max_tenants=4)
async def test_tenants_of_a_template_come_in_up_to_max_tenants_and_are_forgotten(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await world.clock.sleep(PERIOD_NS)
    for tenant in ("zoe", "yann"):
        await records.acquire(tenant, wait=1)
    with pytest.raises(Refused, match='as many tenants as it may have, 4: "max"'):
        await records.acquire("max")
    await world.clock.sleep(2 * SECOND_NS)
    assert "zoe" not in decider._engines and "acme" not in decider._engines
    await records.acquire("max", wait=1)
    assert set((await records.statistics()).tenants) == {*TENANTS, "max", "*"}


@with_pool(templates=TEMPLATES)
async def test_an_engine_that_code_outside_uses_is_not_forgotten(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    engine = decider.engine("zoe")
    await world.clock.sleep(3 * SECOND_NS)
    assert decider.engine("zoe") is engine


@with_pool(templates=TEMPLATES)
async def test_a_lot_of_a_tenant_that_comes_late_ends_with_the_period(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    acme = decider.engine("acme").book
    await world.clock.sleep(acme.began + PERIOD_NS + PERIOD_NS // 2 - world.clock.now())
    grant = await records.acquire("zoe", 1)
    assert grant.period == acme.period
    lot = records.hand.lots["zoe"]
    assert lot.until <= acme.began + PERIOD_NS


@with_pool()
async def test_capacity_batch_and_pacing_change_while_it_runs(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await records.reconfigure(
        make_policy(
            capacity=Rate.of(20_000), client_capacity=None, batch=7, adaptive_batch=False, pacing=True
        )
    )
    await world.clock.sleep(2 * PERIOD_NS)
    assert decider._book.accounts.capacity == 4000
    book = decider.engine("acme").book
    assert book.paced and book._batch == 7 and decider._book.accounts.client_capacity is None
    await records.reconfigure(make_policy(capacity=Rate.of(6_000)))
    await world.clock.sleep(2 * PERIOD_NS)
    assert decider._book.accounts.capacity == 1200
    assert sum(client.reservation for client in decider._book.clients.values()) == 1200, "what fits of 1400"
    await records.reconfigure(make_policy(capacity=Rate.of(20_000)))
    await world.clock.sleep(2 * PERIOD_NS)
    await records.reconfigure(make_policy(capacity=None))
    await world.clock.sleep(2 * PERIOD_NS)
    assert decider._book.accounts.capacity >= 4000, "an estimate begins with what was known"


@with_pool(tenants={**TENANTS, "idle": PoolTenant()})
async def test_who_reserves_nothing_has_no_engine_until_it_asks_and_gets_one_when_it_reserves(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    assert "idle" not in decider._engines
    reserving = {**TENANTS, "idle": PoolTenant(reservation=Rate.of(1000))}
    await records.reconfigure(make_policy(tenants=reserving))
    await world.clock.sleep(2 * PERIOD_NS)
    assert decider._book.clients["idle"].dispatched == 200
    assert "reservation of 1k/s" in (await records.explain("idle")).sentences[0]
    assert "idle" not in decider._engines, "who asks why claims nothing"
    await records.reconfigure(make_policy(tenants={**TENANTS, "idle": PoolTenant()}))
    await world.clock.sleep(3 * SECOND_NS)
    assert "idle" not in decider._book.clients and "idle" not in decider._engines


def test_a_program_that_stops_leaves_the_lead_to_another_with_the_next_period() -> None:
    async def body(world: World) -> None:
        one, two = (open_resource(world, "records", make_policy()) for _ in range(2))
        await one.start()
        await two.start()
        await world.clock.sleep(PERIOD_NS)
        leader: Any = one.decider
        standby: Any = two.decider
        assert leader._book.leading and not standby._book.leading
        period = leader._book.period
        await one.stop()
        opened_at = leader._book.opened_at(period)
        while not standby._book.leading:
            await world.clock.sleep(MILLISECOND_NS)
        assert standby._book.period == period + 1
        assert PERIOD_NS <= world.clock.now() - opened_at <= PERIOD_NS + 15 * MILLISECOND_NS
        await asyncio.sleep(0)

    run_in_virtual_time(body)
