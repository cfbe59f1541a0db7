"""The store is lost under two daemons that share a budget: through the public door, nothing is told twice."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
from pathlib import Path

import bursar

from .processes import Process

LIMIT = 1_000


def run(*arguments: str) -> Process:
    return Process([sys.executable, "-m", "bursar", *arguments])


class Fleet:
    """Two daemons on one SQLite store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policies: dict[str, Path] = {}
        self.at: dict[str, str] = {}
        for name in ("a", "b"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.at[name] = f"bursar://127.0.0.1:{port}"
            self.policies[name] = folder / f"{name}.toml"
            self.policies[name].write_text(
                f'store = "sqlite://{folder}/store.db"\n'
                f'[daemon]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\nhttp = "off"\n'
                f'state = "{folder}/{name}"\n[resource.llm]\nkind = "quota"\n'
                f"[resource.llm.tenant]\nacme = {{ limit = {LIMIT} }}\n"
            )

    def serve(self, name: str) -> Process:
        return run("serve", str(self.policies[name]), "--log", "json")

    def lose_store(self) -> None:
        for file in self.folder.glob("store.db*"):
            file.unlink()

    def adopt(self) -> None:
        store, state = f"sqlite://{self.folder}/store.db", str(self.folder / "a")
        with run("store", "adopt", "--store", store, "--state", state, "--yes") as adopting:
            assert adopting.wait() == 0, adopting.output()


async def spend(at: str, most: int) -> int:
    """Tens, as long as they are granted."""
    told = 0
    async with await bursar.connect(at) as b:
        while told < most:
            try:
                async with b.resource("llm").acquire("acme", 10, wait=2):
                    told += 10
            except (bursar.Refused, bursar.Unknown):
                return told
    return told


async def test_a_node_that_begins_anew_leaves_the_other_out(tmp_path: Path) -> None:
    """Told 1,470 of 1,000 once: the other, with its old ledger, was let in."""
    fleet = Fleet(tmp_path)
    with fleet.serve("a") as a, fleet.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        await spend(fleet.at["a"], 200)
        await spend(fleet.at["b"], 270)
        for daemon in (a, b):
            daemon.signal(signal.SIGKILL)
            daemon.wait()
    fleet.lose_store()
    shutil.rmtree(tmp_path / "a")
    with fleet.serve("a") as a, fleet.serve("b") as b:
        a.wait_for("daemon.ready")
        assert b.wait() != 0
        said = "".join(b.lines)
        assert "belongs to the store" in said and "store adopt" in said


async def test_daemons_go_on_with_an_adopted_store_and_tell_no_more_than_the_limit(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    with fleet.serve("a") as a, fleet.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        told = await spend(fleet.at["a"], 200) + await spend(fleet.at["b"], 270)
        for daemon in (a, b):
            daemon.signal(signal.SIGKILL)
            daemon.wait()
    fleet.lose_store()
    fleet.adopt()
    with fleet.serve("a") as a, fleet.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        told += await spend(fleet.at["a"], LIMIT) + await spend(fleet.at["b"], LIMIT)
        assert told == LIMIT
        with run("quota", "show", "--at", fleet.at["a"], "--json") as show:
            assert show.wait() == 0, show.output()
            whole = json.loads(show.output())["whole"]["acme"]
    assert (whole["spent"], whole["missing"], whole["fenced"]) == (LIMIT, 0, "")
