"""A pool through `bursar.connect`: acquired, refused, explained, and without a monitor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.policy import PoolPolicy
from bursar.policy import load as load_policy
from bursar.pools.resource import PoolResource
from bursar.world import SECOND_NS

POLICY = """
[daemon]
state = "{state}"
[resource.records]
kind = "pool"
capacity = "10k/s"
client_capacity = "9k/s"
period = "200ms"
[resource.records.tenant]
acme = {{ reservation = "5k/s" }}
globex = {{ reservation = "2k/s", limit = "3k/s" }}
"""


def write_policy(tmp_path: Path, text: str = POLICY) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text.format(state=tmp_path / "state"))
    return path


async def test_a_tenant_gets_its_reservation_and_not_more_than_its_limit(tmp_path: Path) -> None:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        records = b.resource("records")
        async with records.acquire("acme", 900, wait=2) as grant:
            assert grant.amount == 900
        assert records.try_acquire("globex", 10) is not None
        with pytest.raises(bursar.Refused, match="its limit is 600"):
            await records.acquire("globex", 601)
        with pytest.raises(bursar.UsageError, match="did you mean"):
            records.try_acquire("acmee")
        said = await b.explain("records", "acme")
        assert "reservation of 5k/s" in said.sentences[0]
        statistics = await b.statistics("records")
        assert statistics["leading"] and statistics["issued"] <= statistics["capacity"] == 2000


async def test_reservations_that_do_not_fit_are_refused_when_opening(tmp_path: Path) -> None:
    text = POLICY.replace("5k/s", "8.5k/s")
    with pytest.raises(bursar.Refused, match="aggregate capacity"):
        await bursar.connect(write_policy(tmp_path, text))


async def test_shadow_mode_refuses_nobody_and_counts(tmp_path: Path) -> None:
    text = POLICY.replace('kind = "pool"', 'kind = "pool"\nshadow = true')
    async with await bursar.connect(write_policy(tmp_path, text)) as b:
        records = b.resource("records")
        grant = records.try_acquire("acme", 100_000)
        assert grant is not None and grant.fallback == "shadow"
        assert (await b.statistics("records"))["tenants"]["acme"]["would_refuse"] == 100_000


async def test_without_a_monitor_a_tenant_keeps_its_reservation(tmp_path: Path) -> None:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        records = b.resource("records")
        assert isinstance(records, PoolResource)
        records._monitor.stop()
        book = records.engine("acme").book
        book.began -= 10 * book.period_ns
        grant = records.try_acquire("acme", 900)
        assert grant is not None and grant.fallback == "keep"
        assert "goes on by itself" in records.explain("acme").sentences[-1]


async def change(b: bursar.Connection, tmp_path: Path, *changes: tuple[str, str]) -> None:
    """As a daemon does at SIGHUP."""
    text = POLICY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    records = b.resource("records")
    assert isinstance(records, PoolResource)
    policy = load_policy(write_policy(tmp_path, text)).resources["records"]
    assert isinstance(policy, PoolPolicy)
    await records.reconfigure(policy)


async def test_reservations_that_fit_once_others_have_shrunk_are_taken_while_it_runs(tmp_path: Path) -> None:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        await change(b, tmp_path, ("5k/s", "1k/s"), ("2k/s", "8k/s"), ("3k/s", "8k/s"))
        said = " ".join((await b.explain("records", "globex")).sentences)
        assert "reservation of 8k/s" in said
        async with b.resource("records").acquire("globex", 1500, wait=2) as grant:
            assert grant.amount == 1500, "its limit was 600 a period before"


async def test_a_change_that_does_not_fit_or_needs_a_restart_changes_nothing(tmp_path: Path) -> None:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        with pytest.raises(bursar.Refused, match="aggregate capacity"):
            await change(
                b,
                tmp_path,
                ("5k/s", "8.5k/s"),
                ("[resource.records.tenant]", "[resource.records.tenant]\nnew = {{}}"),
            )
        with pytest.raises(bursar.UsageError, match="period, batch, adaptive_batch changed"):
            await change(b, tmp_path, ('"200ms"', '"300ms"\nbatch = 10'), ("2k/s", "1k/s"))
        for tenant, reservation in (("acme", "5k/s"), ("globex", "2k/s")):
            said = (await b.explain("records", tenant)).sentences[0]
            assert f"reservation of {reservation}" in said
        records: Any = b.resource("records")
        assert {name: each.reservation for name, each in records._book.clients.items()} == {
            "acme": 1000,
            "globex": 400,
        }


async def test_a_request_that_a_new_limit_will_never_allow_is_refused_at_once(tmp_path: Path) -> None:
    async with await bursar.connect(write_policy(tmp_path)) as b:
        records = b.resource("records")
        for _ in range(3):
            await records.acquire("globex", 600, wait=5)  # and with it all of a period
        waiting = asyncio.ensure_future(records._take("globex", 600, 60 * SECOND_NS, None))
        await asyncio.sleep(0)
        await change(b, tmp_path, ('"3k/s"', '"2k/s"'))
        with pytest.raises(bursar.Refused, match="its limit is 400"):
            async with asyncio.timeout(10):
                await waiting
