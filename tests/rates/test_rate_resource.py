"""A rate whose policy changes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.policy import RatePolicy, parse
from bursar.policy import load as load_policy
from bursar.rates.resource import RateDecider, open_server
from bursar.rates.statistics import RateStatistics
from bursar.resource import Ticket
from bursar.resource.door import Resource

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
async def api(tmp_path: Path) -> AsyncIterator[Resource]:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        resource: Any = b.resource("api")
        yield resource


async def change(api: Resource, tmp_path: Path, *changes: tuple[str, str]) -> None:
    """As a daemon does at SIGHUP."""
    policy = load_policy(write_policy(tmp_path, *changes)).resources["api"]
    assert isinstance(policy, RatePolicy)
    await api.reconfigure(policy)


def decider_of(api: Resource) -> RateDecider:
    assert isinstance(api.decider, RateDecider)
    return api.decider


async def skip_periods(api: Resource, periods: int) -> None:
    book = decider_of(api).servers["one"].book
    until = book.period + periods
    async with asyncio.timeout(10):
        while book.period < until:
            await asyncio.sleep(0.01)


async def test_a_higher_limit_holds_from_the_next_period_on(api: Resource, tmp_path: Path) -> None:
    with pytest.raises(bursar.Refused, match="never gets more than 10"):
        await api.acquire("acme", 40, wait=1)
    await change(api, tmp_path, ('acme = { limit = "100/s" }', 'acme = { limit = "1000/s" }'))
    async with api.acquire("acme", 40, wait=5) as grant:
        assert grant.amount == 40


async def test_a_new_tenant_is_served_and_one_that_left_is_not(api: Resource, tmp_path: Path) -> None:
    await change(api, tmp_path, ("globex", "initech"))
    async with api.acquire("initech", 5, wait=5) as grant:
        assert grant.amount == 5
    with pytest.raises(bursar.Refused, match="globex"):
        await api.acquire("globex", 1)


async def test_where_a_tenant_may_send_changes_too(api: Resource, tmp_path: Path) -> None:
    where = ('acme = { limit = "100/s" }', 'acme = { limit = "100/s", servers = ["two"] }')
    await change(api, tmp_path, where)
    await skip_periods(api, 2)
    part = (await api.statistics()).part
    assert part.servers["one"].tenants["acme"].allowance == 0
    assert part.servers["two"].tenants["acme"].allowance == 10


async def test_what_happens_without_bursar_can_change(api: Resource, tmp_path: Path) -> None:
    await change(api, tmp_path, ('without_bursar = "refuse"', 'without_bursar = "keep"'))
    assert decider_of(api).servers["one"].without_bursar.mode == "keep"


async def test_what_cannot_change_is_refused_by_name_and_nothing_changes(
    api: Resource, tmp_path: Path
) -> None:
    with pytest.raises(bursar.UsageError, match=r"api cannot change so while it runs\. period: "):
        await change(api, tmp_path, ("100ms", "200ms"), ("one =", "three ="), ("globex", "initech"))
    with pytest.raises(bursar.Refused, match="initech"):
        await api.acquire("initech", 1)


async def test_a_burst_changes_with_the_policy(api: Resource, tmp_path: Path) -> None:
    await change(api, tmp_path, ('acme = { limit = "100/s" }', 'acme = { limit = "100/s", burst = 3 }'))
    found = (await api.statistics()).part.tenants["acme"]
    assert (found.limit, found.burst) == (10, 3)


async def test_one_request_is_never_more_than_the_limit_or_the_largest_server_can_do(
    api: Resource, tmp_path: Path
) -> None:
    await change(api, tmp_path, ('acme = { limit = "100/s" }', 'acme = { limit = "100k/s" }'))
    rate = decider_of(api)
    assert rate.most(Ticket("acme", 1)) == 1_000, "10k a second, in a tenth of one"
    assert rate.most(Ticket("globex", 1)) == 10
    assert rate.at("one").most(Ticket("globex", 1)) == 10


async def test_a_front_door_to_one_server_grants_there_alone(api: Resource, tmp_path: Path) -> None:
    where = ('globex = { limit = "100/s" }', 'globex = { limit = "100/s", servers = ["two"] }')
    await change(api, tmp_path, where)
    one = await open_server(api, "one")
    async with one.acquire("acme", wait=5):
        pass
    charged = [server.charged[0] for server in decider_of(api).servers.values()]
    assert charged[0] >= 1 and charged[1] == 0
    with pytest.raises(bursar.Refused, match="globex may not use one"):
        await one.acquire("globex")
    with pytest.raises(bursar.UsageError, match=r"does not run on this node \(here: one, two\)"):
        await open_server(api, "three")


async def test_odd_terms_are_explained_in_plain_words() -> None:
    text = """[resource.calls]
    kind = "rate"
    servers = { a = "1k/s" }
    tenant = { none = { limit = "0/s" }, big = { reservation = "2k/s" } }"""
    async with await bursar.connect(parse(text)) as b:
        with pytest.raises(bursar.Refused, match="calls gives none nothing: its limit is 0"):
            await b.resource("calls").acquire("none", wait=1)
        assert (await b.explain("calls", "none")).sentences[1] == "So nothing is granted to it."
        said = (await b.explain("calls", "big")).sentences
        assert said[:2] == (
            "big has a reservation of 2000 tokens every 1 s, and no limit.",
            "Its reservation cannot be met: its servers do 1000 every 1 s (see `bursar plan`).",
        )


async def test_explanations_and_statistics_are_of_the_same_truth(api: Resource) -> None:
    grants = [await api.acquire("acme", wait=5) for _ in range(3)]
    found = await api.explain("acme")
    part = (await api.statistics()).part
    assert isinstance(part, RateStatistics) and part.leading
    assert part.tenants["acme"].charged >= 3 == len(grants)
    assert found.figures["limit"] == part.tenants["acme"].limit == 10
    assert "a limit of 10 tokens every 0.1 s" in found.sentences[0]
    with pytest.raises(bursar.UsageError, match="acme"):
        await api.explain("acne")
