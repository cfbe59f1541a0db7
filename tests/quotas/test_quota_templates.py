"""Tenants of a quota that no line of the policy names."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from quota_town import Quota, Town
from test_quota_changes import end_windows, go_to, month

from bursar.errors import Refused
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts
from bursar.resource.door import Resource

TERMS: dict[str, Any] = {
    "tenants": {"acme": QuotaTenant(limit=100)},
    "templates": {"*": QuotaTenant(limit=20), "acme/*": QuotaTenant(limit=30)},
}


async def use(llm: Resource, tenant: str, units: int) -> None:
    await (await llm.acquire(tenant, units, wait=5.0)).release()


async def test_a_tenant_of_a_template_has_an_account_from_its_first_use_on_for_every_node(town: Town) -> None:
    one, two = await town.open("a", **TERMS), await town.open("b", **TERMS)
    await use(one, "zoe", 15)
    with pytest.raises(Refused, match="6 asked for, 5 of 20 left"):
        await two.acquire("zoe", 6, wait=5.0)
    await use(two, "zoe", 5)
    with pytest.raises(Refused, match="never gets more than 20"):
        await two.acquire("zoe", 21)
    rows = (await one.statistics()).part.tenants
    assert rows["zoe"].limit == 20 and set(rows) == {"acme", "zoe"}
    assert "zoe" in " ".join((await one.explain("zoe")).sentences)


async def test_what_is_used_below_somebody_counts_for_it_too(town: Town) -> None:
    llm = await town.open("a", **TERMS)
    for name in ("acme/a", "acme/b", "acme/c"):
        await use(llm, name, 30)
    with pytest.raises(Refused, match="acme: 11 asked for, 10 of 100 left"):
        await llm.acquire("acme/d", 11, wait=5.0)
    await use(llm, "zoe/below", 15)
    with pytest.raises(Refused, match="zoe: 6 asked for, 5 of 20 left"):
        await llm.acquire("zoe", 6, wait=5.0)


async def test_another_limit_of_a_template_is_carried_out_for_all_who_came_under_it(town: Town) -> None:
    llm = await town.open("a", **TERMS)
    await use(llm, "zoe", 10)
    await use(llm, "yann", 20)
    policy = QuotaPolicy(name="llm", **{**TERMS, "templates": {"*": QuotaTenant(limit=50)}})
    await llm.reconfigure(policy)
    assert [accounts.total(llm.courier.mints[name]) for name in ("zoe", "yann")] == [50, 50]
    await use(llm, "yann", 30)
    listed = msgspec.structs.replace(policy, tenants={**policy.tenants, "yann": QuotaTenant(limit=60)})
    await llm.reconfigure(listed)
    await use(llm, "yann", 10)
    assert "yann" not in llm.decider.strangers, "it is listed now"


async def test_tenants_of_a_template_are_forgotten_when_their_window_is_over_and_not_before(
    town: Town,
) -> None:
    llm = await town.open("a", window="month", **TERMS)
    go_to(llm, "2026-09-15")
    await use(llm, "zoe", 20)
    go_to(llm, "2026-10-15")
    await asyncio.sleep(0)
    await use(llm, "yann", 20)
    await until_forgotten(llm, "zoe")
    assert set((await llm.statistics()).tenants) == {"acme", "yann", "*"}
    with pytest.raises(Refused):
        await llm.acquire("yann", 1, wait=5.0)
    go_to(llm, "2026-11-15")
    await use(llm, "yann", 20)
    await end_windows(llm)
    assert set(llm.courier.book.ledger.accounts) == {month("yann", 10), month("yann", 11)}


async def until_forgotten(llm: Quota, tenant: str) -> None:
    async with asyncio.timeout(5):
        while tenant in llm.decider.strangers:
            await asyncio.sleep(0.02)


async def test_without_windows_nobody_is_forgotten_also_over_a_restart(town: Town) -> None:
    llm = await town.open("a", **TERMS)
    await use(llm, "zoe", 20)
    await town.close("a")
    llm = await town.open("a", **TERMS)
    with pytest.raises(Refused, match="1 asked for, 0 of 20 left"):
        await llm.acquire("zoe", 1, wait=5.0)


async def test_max_tenants_counts_those_of_every_node(town: Town) -> None:
    one = await town.open("a", max_tenants=3, **TERMS)
    two = await town.open("b", max_tenants=3, **TERMS)
    await use(one, "zoe", 1)
    await use(one, "yann", 1)
    async with asyncio.timeout(5):
        while len(two.decider.strangers) < 2:
            await asyncio.sleep(0.01)
    with pytest.raises(Refused, match='as many tenants as it may have, 3: "max"') as refused:
        await two.acquire("max", 1)
    assert refused.value.reason == "tenant"
    await use(two, "zoe", 1)
