from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bursar.claims.resource import open_resource
from bursar.cli import make_app
from bursar.errors import Refused, UnreachableError, UsageError
from bursar.policy import ClaimPolicy, parse
from bursar.runtime.daemon import Daemon
from bursar.runtime.world import open_world


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(make_app(), list(arguments))


def write_policy(folder: Path) -> Path:
    policy = folder / "policy.toml"
    policy.write_text(f'store = "sqlite://{folder}/store.db"\n[resource.things]\nkind = "claim"\n')
    return policy


async def leave_a_queue(folder: Path) -> tuple[str, str]:
    """One claim that is held, one task that waits for it; then the process is gone."""
    world = await open_world("n", store=f"sqlite://{folder}/store.db")
    resource = open_resource(world, "things", ClaimPolicy(name="things"))
    await resource.start()
    grant = await resource.claim(["vm-7:E"], "ops")
    waiting: str = await resource.verb("submit", tenant="acme", names="vm-7:E, vm-8:S")
    await world.close()
    return grant.id, waiting


def test_the_queue_is_listed_explained_and_changed(tmp_path: Path) -> None:
    policy = str(write_policy(tmp_path))
    held, waiting = asyncio.run(leave_a_queue(tmp_path))
    listed = json.loads(invoke("tasks", "list", "--policy", policy, "--json").stdout)
    assert [(task["id"], task["state"]) for task in listed] == [(held, "running"), (waiting, "pending")]
    assert "2 tasks" in invoke("tasks", "list", "--policy", policy).stdout
    assert "vm-7:E, vm-8:S" in invoke("tasks", "show", waiting, "--policy", policy).stdout
    seen = invoke("tasks", "--policy", policy).stdout
    assert f"{held}  a claim  ops  vm-7:E" in seen and "what it held is kept until" in seen
    assert f"vm-7:E waits for {held}" in seen and "1 running, 1 waiting, 0 given up" in seen
    assert "1 task\n" in invoke("tasks", "list", "--policy", policy, "--tenant", "acme").stdout
    why = invoke("tasks", "why", waiting, "--policy", policy).stdout
    assert f"vm-7:E waits for {held}, which holds it exclusively" in why
    assert f"{held}  vm-7:E  ops" in invoke("claims", "holders", "vm-7", "--policy", policy).stdout
    assert "removed" in invoke("claims", "release", "vm-7", "--yes", "--policy", policy).stdout
    (line,) = invoke("audit", "--policy", policy, "--json", "--what", "release").stdout.splitlines()
    said = json.loads(line)
    assert (said["name"], said["detail"]) == ("things", f"vm-7 from {held} of ops")
    assert said["by"].startswith("cli ")
    assert "nobody holds vm-7" in invoke("claims", "holders", "vm-7", "--policy", policy).stdout
    assert "cancelled" in invoke("tasks", "cancel", waiting, "--policy", policy).stdout
    assert "0 tasks" in invoke("tasks", "list", "--policy", policy).stdout
    assert f"{waiting}  cancelled" in invoke("tasks", "history", "--policy", policy).stdout
    told = json.loads(invoke("tasks", "--policy", policy, "--json").stdout)
    assert [task["id"] for task in told["over"]] == [waiting]
    assert isinstance(invoke("tasks", "discard", waiting, "--policy", policy).exception, Refused)
    assert "outcome: cancelled" in invoke("tasks", "show", waiting, "--policy", policy).stdout


def test_mistakes_are_told(tmp_path: Path) -> None:
    policy = str(write_policy(tmp_path))
    assert invoke("tasks", "show", "t1", "--policy", policy).exit_code == 1
    for arguments, says in (
        (("claims", "release", "vm-7", "--policy", policy), "--yes"),
        (("tasks", "list", "--policy", policy, "--resource", "other"), "things"),
        (("work", "nowhere", "--policy", policy), "module:app"),
        (("work", "nowhere:app", "--policy", policy), "cannot be loaded"),
        (("work", "json:dumps", "--policy", policy), "is no Bursar"),
    ):
        result = invoke(*arguments)
        assert isinstance(result.exception, UsageError) and says in str(result.exception), arguments


@pytest.mark.parametrize("group", ["tasks", "claims"])
def test_help_lists_the_commands(group: str) -> None:
    assert invoke(group, "--help").exit_code == 0


DAEMON = """
store = "{store}"
[daemon]
name = "n"
listen = "127.0.0.1:0"
http = "off"
state = "{folder}/state"
[resource.things]
kind = "claim"
[resource.llm]
kind = "quota"
tenant = {{ acme = {{ limit = 100 }} }}
"""


@pytest.fixture(params=["memory://", "sqlite"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon where vm-7 is held, and the options that lead a command there."""
    memory = request.param == "memory://"
    store = request.param if memory else f"sqlite://{tmp_path}/store.db"
    text = DAEMON.format(store=store, folder=tmp_path)
    if memory:
        text = text.partition("[resource.llm]")[0]
    daemon = await Daemon.open(parse(text, "p.toml"))
    await daemon.host.resources["things"].claim(["vm-7:E"], "ops")
    yield daemon, f"--at=bursar://{daemon.host.world.listening}" if memory else f"--store={store}"
    await daemon.close()


async def test_claims_and_tasks_are_found_without_a_policy_file(
    served: tuple[Daemon, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a daemon whose store is its own memory, or in the store of a fleet."""
    daemon, where = served
    monkeypatch.chdir(tmp_path)

    async def ask(*arguments: str) -> str:
        result = await asyncio.to_thread(invoke, *arguments, where)
        assert result.exit_code == 0, result
        return str(result.stdout)

    waiting = await daemon.host.resources["things"].verb("submit", tenant="acme", names="vm-7:E")
    assert "vm-7:E  ops  held by n" in await ask("claims", "holders", "vm-7")
    assert "1 running, 1 waiting, 0 given up" in await ask("tasks")
    assert f"{waiting}  pending" in await ask("tasks", "list", "--state", "pending")
    assert "removed" in await ask("claims", "release", "vm-7", "--yes")
    assert "nobody holds vm-7" in await ask("claims", "holders", "vm-7")
    assert "cancelled" in await ask("tasks", "cancel", waiting)


def test_a_policy_without_a_store_leads_to_its_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are in the daemon's memory: an answer from anywhere else would be wrong."""
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text('[daemon]\nlisten = "127.0.0.1:1"\n[resource.things]\nkind = "claim"\n')
    for arguments in (("claims", "holders", "vm-7"), ("tasks",)):
        result = invoke(*arguments)
        assert isinstance(result.exception, UnreachableError), arguments
        assert "127.0.0.1:1" in str(result.exception)


async def test_a_budget_of_a_policy_without_a_store_is_topped_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its accounts are in the daemon's state folder, in reach of this machine."""
    monkeypatch.chdir(tmp_path)
    text = DAEMON.format(store="memory://", folder=tmp_path)
    await asyncio.to_thread((tmp_path / "policy.toml").write_text, text)
    daemon = await Daemon.open(parse(text, "policy.toml"))
    try:
        async with asyncio.timeout(10):
            await daemon.host.resources["llm"].acquire("acme", 100, wait=5)
            result = await asyncio.to_thread(invoke, "quota", "topup", "acme", "20")
            assert "the limit is 120 now" in result.stdout, result
            await daemon.host.resources["llm"].acquire("acme", 20, wait=5)
    finally:
        await daemon.close()


def test_filters_that_nothing_can_match_are_told(tmp_path: Path) -> None:
    policy = str(write_policy(tmp_path))
    asyncio.run(leave_a_queue(tmp_path))
    assert invoke("tasks", "list", "--policy", policy, "--state", "foo").exit_code == 2
    result = invoke("tasks", "history", "--policy", policy, "--outcome", "foo")
    assert isinstance(result.exception, UsageError) and '"failed"' in str(result.exception)
