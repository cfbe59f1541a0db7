"""`bursar quota` at a daemon that runs, and at its store."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bursar
from bursar.cli import make_app
from bursar.cli.visiting import name_visitor
from bursar.errors import UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.resource import open_resource
from bursar.runtime.world import open_world

from .engine import store_url
from .processes import Process

TENANTS = {"acme": QuotaTenant(limit=100)}


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(make_app(), list(arguments))


def write_policy(folder: Path) -> Path:
    policy = folder / "policy.toml"
    policy.write_text(
        f'store = "{store_url(folder)}"\n[daemon]\nname = "a"\nlisten = "127.0.0.1:0"\nhttp = "off"\n'
        f'state = "{folder}/a"\n[resource.llm]\nkind = "quota"\n'
        "[resource.llm.tenant]\nacme = { limit = 100 }\n"
    )
    return policy


async def lose_a_node(folder: Path) -> None:
    """Node b takes a part of the quota, and is gone."""
    world = await open_world("b", state=folder / "b", store=store_url(folder))
    resource = open_resource(world, "llm", QuotaPolicy(name="llm", tenants=TENANTS))
    await resource.start()
    await (await resource.acquire("acme", 1, wait=5)).release()
    await resource.stop()
    await world.close()


def test_a_budget_is_shown_topped_up_cut_and_a_lost_node_written_off(tmp_path: Path) -> None:
    policy = str(write_policy(tmp_path))
    asyncio.run(lose_a_node(tmp_path))
    command = [sys.executable, "-m", "bursar", "serve", policy, "--log", "json"]
    with Process(command) as daemon:
        at = f"bursar://{daemon.wait_for('daemon.ready')['address']}"
        with bursar.sync.connect(at) as b:
            with pytest.raises(bursar.Unknown):
                b.resource("llm").acquire("acme", 5).take()  # all of it was opened at b
            assert "a, b" in str(invoke("quota", "fence", "c", "--policy", policy, "--yes").exception)
            assert "is up" in str(invoke("quota", "fence", "a", "--policy", policy, "--yes").exception)
            assert invoke("quota", "fence", "b", "--policy", policy, "--yes").stdout == "b: written off\n"
            assert "before" in invoke("quota", "fence", "b", "--policy", policy, "--yes").stdout
            with pytest.raises(bursar.Refused):
                b.resource("llm").acquire("acme", 5, wait=5).take()
            topped = invoke("quota", "topup", "acme", "40", "--policy", policy, "--json")
            assert json.loads(topped.stdout) == {"account": "acme", "limit": 140, "asleep": {}, "unheard": []}
            cut = invoke("quota", "topup", "acme", "-10", "--policy", policy)
            assert cut.stdout == "acme: the limit is 130 now\n"
            lines = invoke("audit", "--policy", policy, "--json").stdout
            said = [json.loads(line) for line in lines.splitlines() if "policy" not in line]
            assert [(line["what"], line["name"], line["detail"]) for line in said] == [
                ("fence", "llm", "b written off"),
                ("top-up", "llm", "acme: +40"),
                ("top-up", "llm", "acme: -10"),
            ]
            assert {line["by"] for line in said} == {name_visitor()}
            over = invoke("quota", "topup", "acme", str(2**63 - 1), "--policy", policy)
            assert "would pass 2^63 - 1" in str(over.exception)
            b.resource("llm").acquire("acme", 30, wait=5).take().release()
            with pytest.raises(bursar.Refused):
                b.resource("llm").acquire("acme", 1, wait=5).take()
        shown = json.loads(invoke("quota", "show", "--at", at, "--json").stdout)
        assert shown["whole"]["acme"]["limit"] == 130
        assert shown["whole"]["acme"]["ledgers"]["a"]["spent"] == 30
        whole = shown["whole"]["acme"]
        assert whole["missing"] == 0  # b does not answer, and was written off with what it had
        assert whole["written_off"] == 130 - whole["spent"] - whole["unspent"] > 0
        assert "130" in invoke("quota", "show", "--at", at).stdout


def test_mistakes_with_a_quota_are_told(tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    asyncio.run(lose_a_node(tmp_path))
    for arguments, says in (
        (("fence", "b", "--policy", str(policy)), "--yes"),
        (("topup", "acme", "0", "--policy", str(policy)), "other than 0"),
        (("topup", "acme", str(2**64), "--policy", str(policy)), "within 2^63"),
        (("topup", "nobody", "5", "--policy", str(policy)), "quota show"),
        (("topup", "acme", "5", "--policy", str(policy)), "no node of this quota is up"),
        (("topup", "acme", "5", "--policy", str(policy), "--resource", "other"), "there is llm"),
        (("topup", "acme", "5", "--store", "memory://"), "SIGHUP"),
        (("show", "--at", "nowhere"), "bursar://"),
    ):
        result = invoke("quota", *arguments)
        assert isinstance(result.exception, UsageError) and says in str(result.exception), arguments
    assert invoke("quota", "--help").exit_code == 0
