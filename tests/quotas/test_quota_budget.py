"""A budget as its users see it, embedded in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import bursar

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 10_000 }
"acme/search" = { limit = 4_000 }
"""


@pytest.fixture
async def budget(tmp_path: Path) -> AsyncIterator[bursar.Resource]:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY + f'[daemon]\nstate = "{tmp_path / "state"}"\n')
    async with await bursar.connect(str(policy)) as b:
        yield b.resource("llm")


async def test_what_was_reserved_and_not_used_comes_back(budget: bursar.Resource) -> None:
    for _ in range(2):
        async with budget.acquire("acme", 8_000, wait=5) as grant:
            grant.settle(1_000)
    async with budget.acquire("acme", 8_000, wait=5):
        pass
    with pytest.raises(bursar.Refused) as refused:
        await budget.acquire("acme", 1, wait=5)
    assert refused.value.remaining == 0
    assert refused.value.limit == 10_000


async def test_work_that_failed_is_not_charged(budget: bursar.Resource) -> None:
    with pytest.raises(RuntimeError):
        async with budget.acquire("acme", 10_000, wait=5):
            raise RuntimeError("the model did not answer")
    async with budget.acquire("acme", 10_000, wait=5):
        pass


async def test_a_repeated_key_is_charged_once(budget: bursar.Resource) -> None:
    for _ in range(5):
        async with budget.acquire("acme", 4_000, wait=5, key="request-17"):
            pass
    async with budget.acquire("acme", 6_000, wait=5):
        pass


async def test_a_nested_tenant_is_charged_on_every_level(budget: bursar.Resource) -> None:
    async with budget.acquire("acme/search", 4_000, wait=5):
        pass
    async with budget.acquire("acme", 6_000, wait=5):
        pass
    with pytest.raises((bursar.Refused, bursar.Unknown)):
        await budget.acquire("acme", 1, wait=1)


async def test_settling_more_than_was_reserved_charges_the_reservation_and_says_so(
    budget: bursar.Resource,
) -> None:
    grant = await budget.acquire("acme", 100, wait=5)
    with pytest.raises(bursar.UsageError, match="above the 100"):
        grant.settle(101)
    await grant.release()
