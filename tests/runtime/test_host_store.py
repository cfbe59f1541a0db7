"""A policy that names no store: a quota is remembered all the same, and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from bursar.errors import Refused, UsageError
from bursar.policy import Policy, parse
from bursar.runtime.client import connect
from bursar.runtime.host import Host, choose_store

QUOTA = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 100 }
"""


def make_policy(folder: Path, store: str = "memory://") -> Policy:
    return parse(f'store = "{store}"\n[daemon]\nstate = "{folder}/a state"\n{QUOTA}')


async def use(policy: Policy, amount: int) -> None:
    async with await connect(policy) as b, b.resource("llm").acquire("acme", amount, wait=5):
        pass


async def test_a_quota_is_used_up_after_a_restart_too(tmp_path: Path) -> None:
    await use(make_policy(tmp_path), 70)
    with pytest.raises(Refused, match="31 asked for, 30 of 100 left"):
        await use(make_policy(tmp_path), 31)
    await use(make_policy(tmp_path), 30)


async def test_a_ledger_whose_store_is_gone_is_not_taken_up(tmp_path: Path) -> None:
    await use(make_policy(tmp_path), 70)
    with pytest.raises(UsageError, match="bursar store adopt"):
        await use(make_policy(tmp_path, store=f"sqlite://{tmp_path}/another.db"), 1)


RATE = """
[resource.api]
kind = "rate"
period = "{period}"
servers = {{ here = "1k/s" }}
[resource.api.tenant]
acme = {{ limit = "10/s" }}
"""


def test_a_long_period_is_not_forgotten_by_its_store_and_a_short_one_may_be(tmp_path: Path) -> None:
    head = f'[daemon]\nstate = "{tmp_path}/state"\n'
    assert choose_store(parse(head + RATE.format(period="1s"))) == "memory://"
    assert choose_store(parse(head + RATE.format(period="1min"))) == f"sqlite://{tmp_path}/state/store.db"


async def test_a_minutes_tokens_are_used_up_after_a_restart_too(tmp_path: Path) -> None:
    policy = parse(f'[daemon]\nstate = "{tmp_path}/state"\n' + RATE.format(period="1min"))
    async with await connect(policy) as b, b.resource("api").acquire("acme", 590, wait=30):
        pass
    async with await connect(policy) as b:
        with pytest.raises(Refused):
            await b.resource("api").acquire("acme", 20, wait=0)


async def test_the_first_quota_of_a_running_node_waits_for_a_restart(tmp_path: Path) -> None:
    text = f'[daemon]\nstate = "{tmp_path}/state"\n[resource.vm]\nkind = "claim"\n'
    assert choose_store(parse(text)) == "memory://"
    host = await Host.open(parse(text))
    try:
        done = await host.apply(parse(text + QUOTA))
        assert "restart to add it" in done["llm"]
        assert list(host.resources) == ["vm"]
    finally:
        await host.close()
