from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bursar.claims.resource import open_resource
from bursar.cli import make_app
from bursar.errors import Refused, UsageError
from bursar.policy import ClaimPolicy
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
    assert "1 tasks" in invoke("tasks", "list", "--policy", policy, "--tenant", "acme").stdout
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
