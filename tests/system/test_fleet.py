"""A fleet of real daemons on one store: one policy, nodes that join, leave and die, files that differ."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import Refused

from .engine import store_url
from .processes import Process

PATIENCE_S = 20.0
POLICY = """
[resource.api]
kind = "rate"
servers = { "*" = "500/s" }
[resource.api.tenant]
acme = { limit = "200/s" }
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 1000 }
"""


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = store_url(folder)
        self.ports: dict[str, int] = {}
        self.nodes: dict[str, Process] = {}
        self._stack = ExitStack()

    def start(self, name: str, *arguments: str) -> Process:
        port = self.ports.setdefault(name, find_free_port())
        own = ["--store", self.store, "--name", name, "--listen", f"127.0.0.1:{port}", "--http", "off"]
        command = [sys.executable, "-m", "bursar", "serve", *arguments, *own, "--log", "json"]
        command += ["--state", str(self.folder / name), "--session-timeout", "2s"]
        node = self._stack.enter_context(Process(command))
        self.nodes[name] = node
        return node

    def be_up(self, *names: str) -> None:
        for name in names:
            self.start(name)
        for name in names:
            self.nodes[name].wait_for("daemon.ready")

    def do(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bursar", *arguments, "--store", self.store],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def apply(self, text: str) -> str:
        file = self.folder / "policy.toml"
        file.write_text(text)
        return self.do("apply", str(file), "--yes")

    def list_up(self) -> dict[str, Any]:
        rows = json.loads(self.do("node", "list", "--json"))
        return {row["node"]: row["version"] for row in rows if row["problem"] != "not up"}

    def url(self, *names: str) -> str:
        return "bursar://" + ",".join(f"127.0.0.1:{self.ports[name]}" for name in names)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


async def spend(url: str, resource: str, tenant: str, count: int) -> int:
    """How many of so many requests were granted, one after the other."""
    granted = 0
    async with await bursar.connect(url, timeout=PATIENCE_S) as b:
        for _ in range(count):
            try:
                async with b.resource(resource).acquire(tenant, wait=5) as grant:
                    granted += grant.fallback is None
            except Refused:
                continue
    return granted


def test_a_policy_is_applied_once_and_known_everywhere_and_nodes_come_and_go(fleet: Fleet) -> None:
    fleet.be_up("a", "b")
    said = fleet.apply(POLICY)
    assert "version 1 is the policy; a, b took it within" in said
    assert asyncio.run(spend(fleet.url("a", "b"), "api", "acme", 20)) == 20

    fleet.be_up("c")
    assert fleet.list_up() == {"a": 1, "b": 1, "c": 1}
    assert asyncio.run(spend(fleet.url("c"), "api", "acme", 20)) == 20, "a node that joined serves"

    fleet.nodes["b"].signal(signal.SIGTERM)
    assert fleet.nodes["b"].wait() == 0
    assert fleet.list_up() == {"a": 1, "c": 1}, "one that leaves is off the list at once"

    fleet.nodes["c"].signal(signal.SIGKILL)
    fleet.nodes["c"].wait()
    until = time.monotonic() + PATIENCE_S
    while fleet.list_up() != {"a": 1}:
        assert time.monotonic() < until, "one that dies is missed"
    assert asyncio.run(spend(fleet.url("a"), "api", "acme", 20)) == 20
    assert "not up" in fleet.do("node", "list")


def test_what_cannot_change_changes_nothing_anywhere(fleet: Fleet) -> None:
    fleet.be_up("a", "b")
    fleet.apply(POLICY)
    file = fleet.folder / "policy.toml"
    file.write_text(
        POLICY.replace('kind = "quota"', 'kind = "quota"\nwindow = "day"').replace("200/s", "300/s")
    )
    said = fleet.do("apply", str(file), "--yes", code=2)
    assert "resource.llm.window: none -> day   cannot be changed" in said and "nothing was changed" in said
    assert fleet.list_up() == {"a": 1, "b": 1}
    assert len(json.loads(fleet.do("history", "--json"))) == 1


def test_a_node_whose_file_differs_from_the_fleets_policy_does_not_start(fleet: Fleet) -> None:
    fleet.be_up("a")
    fleet.apply(POLICY)
    file = fleet.folder / "other.toml"
    file.write_text(POLICY.replace("200/s", "300/s"))
    node = fleet.start("b", str(file))
    assert node.wait() == 2
    said = "".join(node.lines)
    assert "differs from the policy in the store" in said
    assert "~ resource.api.tenant.acme.limit: 200/s -> 300/s" in said


def test_sighup_applies_a_nodes_file_to_the_whole_fleet(fleet: Fleet) -> None:
    file = fleet.folder / "own.toml"
    file.write_text(POLICY)
    fleet.start("a", str(file)).wait_for("daemon.ready")
    fleet.be_up("b")
    file.write_text(POLICY.replace("200/s", "300/s"))
    fleet.nodes["a"].signal(signal.SIGHUP)
    assert fleet.nodes["b"].wait_for("policy.taken")["source"] == "policy version 2"
    file.write_text(POLICY.replace('kind = "quota"', 'kind = "claim"').replace("{ limit = 1000 }", "{}"))
    fleet.nodes["a"].signal(signal.SIGHUP)
    kept = fleet.nodes["a"].wait_for("policy.kept")
    assert kept["level"] == "warning" and "a resource keeps its kind" in kept["why"]
    assert fleet.list_up() == {"a": 2, "b": 2}
