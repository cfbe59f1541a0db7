"""A rate whose policy changes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.policy import RatePolicy
from bursar.policy import load as load_policy
from bursar.rates.resource import RateResource

POLICY = """
[daemon]
state = "{state}"
[resource.api]
kind = "rate"
period = "100ms"
interval = "20ms"
without_bursar = "refuse"
servers = {{ one = "10k/s", two = "10k/s" }}
[resource.api.tenant]
acme = {{ limit = "100/s" }}
globex = {{ limit = "100/s" }}
"""


def write_policy(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = POLICY.format(state=tmp_path / "state")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[RateResource]:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        resource: Any = b.resource("api")
        yield resource


async def change(api: RateResource, tmp_path: Path, *changes: tuple[str, str]) -> None:
    """As a daemon does at SIGHUP."""
    policy = load_policy(write_policy(tmp_path, *changes)).resources["api"]
    assert isinstance(policy, RatePolicy)
    await api.reconfigure(policy)


async def skip_periods(api: RateResource, periods: int) -> None:
    until = api.server("one").book.period + periods
    async with asyncio.timeout(10):
        while api.server("one").book.period < until:
            await asyncio.sleep(0.01)


async def test_a_higher_limit_holds_from_the_next_period_on(api: RateResource, tmp_path: Path) -> None:
    with pytest.raises(bursar.Refused, match="its limit is 10 a period"):
        await api.acquire("acme", 40, wait=1)
    await change(api, tmp_path, ('acme = { limit = "100/s" }', 'acme = { limit = "1000/s" }'))
    async with api.acquire("acme", 40, wait=5) as grant:
        assert grant.amount == 40


async def test_a_new_tenant_is_served_and_one_that_left_is_not(api: RateResource, tmp_path: Path) -> None:
    await change(api, tmp_path, ("globex", "initech"))
    async with api.acquire("initech", 5, wait=5) as grant:
        assert grant.amount == 5
    with pytest.raises(bursar.UsageError, match="globex"):
        await api.acquire("globex", 1)


async def test_where_a_tenant_may_send_changes_too(api: RateResource, tmp_path: Path) -> None:
    where = ('acme = { limit = "100/s" }', 'acme = { limit = "100/s", servers = ["two"] }')
    await change(api, tmp_path, where)
    await skip_periods(api, 2)
    servers = api.statistics()["servers"]
    assert servers["one"]["tenants"]["acme"]["allowance"] == 0
    assert servers["two"]["tenants"]["acme"]["allowance"] == 10


async def test_what_happens_without_bursar_can_change(api: RateResource, tmp_path: Path) -> None:
    await change(api, tmp_path, ('without_bursar = "refuse"', 'without_bursar = "keep"'))
    assert api.server("one").without_bursar.mode == "keep"


async def test_what_cannot_change_is_refused_by_name_and_nothing_changes(
    api: RateResource, tmp_path: Path
) -> None:
    with pytest.raises(bursar.UsageError, match="servers, interval changed, which needs a restart"):
        await change(api, tmp_path, ("20ms", "50ms"), ("one =", "three ="), ("globex", "initech"))
    with pytest.raises(bursar.UsageError, match="initech"):
        await api.acquire("initech", 1)
