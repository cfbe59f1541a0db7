"""`bursar experiment mixed-versions`: an older build of bursar beside this one.

The older one is made from a commit (`BURSAR_OLD`, or OLD), in an environment of its own; daemons and
clients are real processes. The two talk, or one refuses the other by name and says what to do; and what all
clients together were told of a quota is its limit, to the unit, and each fence of a name is newer than the
one before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar_lab.experiments.fleet.processes import Fleet
from bursar_lab.experiments.versions import client
from bursar_lab.experiments.versions.builds import build

OLD = "f5d5bef"
LIMIT = 1_000
PART = 100
CLIENT_S = 60

START_S = 240
"""A build that was just made compiles its kernels first, which takes minutes where much else runs."""

KINDS = ("rate", "share", "pool", "quota", "claim")
POLICY = f"""
[resource.rate]
kind = "rate"
servers = {{ "*" = "1k/s" }}
without_bursar = "refuse"
[resource.rate.tenant]
acme = {{ limit = "100/s" }}
[resource.share]
kind = "share"
capacity = "1k/s"
[resource.share.tenant]
acme = {{ weight = 1 }}
[resource.pool]
kind = "pool"
capacity = "1k/s"
[resource.pool.tenant]
acme = {{ reservation = "100/s" }}
[resource.quota]
kind = "quota"
[resource.quota.tenant]
acme = {{ limit = {LIMIT} }}
[resource.claim]
kind = "claim"
"""


class Town:
    """A fleet of either build, its clients, and what those were told."""

    def __init__(self, folder: Path, old: str) -> None:
        self.pythons = {"older": old, "this": sys.executable}
        self.fleet = Fleet(folder, f"sqlite://{folder}/store.db")
        self.rows: list[dict[str, Any]] = []
        self.told = 0
        self.fences: list[int] = []

    def apply(self, build: str) -> None:
        file = self.fleet.folder / "policy.toml"
        file.write_text(POLICY)
        if said := self.command(build, "apply", str(file), "--store", self.fleet.store, "--yes"):
            raise BursarError(f"the policy was not applied: {said}")

    def command(self, build: str, *arguments: str) -> str:
        """What it complained of; empty if it worked."""
        done = subprocess.run(
            [self.pythons[build], "-m", "bursar", *arguments],
            cwd=self.fleet.folder,
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
        )
        return done.stderr.strip() or "it failed without a word" if done.returncode else ""

    def start(self, name: str, build: str) -> str:
        """Why it did not start; empty if it did."""
        (self.fleet.folder / f"{name}.log").unlink(missing_ok=True)  # it may have the words of another life
        try:
            self.fleet.start(name, self.pythons[build])
        except BursarError:
            return self._take_away(name)
        node = self.fleet.nodes[name]
        until = time.monotonic() + START_S
        while "daemon.ready" not in node.log.read_text(errors="replace"):
            if not node.running:
                return self._take_away(name)
            if time.monotonic() > until:
                raise node.fail(f"node {name} did not become ready")
            time.sleep(0.05)
        return ""

    def _take_away(self, name: str) -> str:
        """The last that a node said that did not start."""
        return self.fleet.nodes.pop(name).log.read_text(errors="replace").strip().splitlines()[-1]

    def stop(self) -> None:
        self.fleet.stop()
        self.fleet.nodes.clear()

    def use(self, name: str, build: str, most: int = LIMIT) -> dict[str, Any]:
        done = subprocess.run(
            [self.pythons[build], client.__file__, self.fleet.url(name), str(most)],
            cwd=self.fleet.folder,
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        self.told += found["told"]
        self.fences.append(found["fence"])
        return found

    def note(self, what: str, comes: str, met: bool) -> None:
        self.rows.append({"what": what, "what came": comes, "as promised": met})

    def note_talk(self, what: str, found: dict[str, Any]) -> None:
        silent = [kind for kind in KINDS if found["kinds"].get(kind) != "granted"]
        self.note(what, found.get("end", "") if silent else "granted in all kinds", not silent)

    def note_refusal(self, what: str, said: str) -> None:
        named = "form" in said and any(word in said for word in ("pgrade", "store adopt"))
        self.note(what, said or "it worked", named)

    def conclude(self, where: str) -> None:
        self.note(f"{where}: told of the quota", f"{self.told} of {LIMIT}", self.told == LIMIT)
        rising = self.fences == sorted(set(self.fences))
        self.note(f"{where}: fences", f"{len(self.fences)}, {'rising' if rising else self.fences}", rising)


def mixed(out: Path, quick: bool) -> dict[str, Any]:
    revision = os.environ.get("BURSAR_OLD", OLD)
    with tempfile.TemporaryDirectory(prefix="bursar-versions-") as folder:
        old = build(revision, Path(folder) / "build")
        rows = [
            row
            for number, scene in enumerate((join_older, join_newer, upgrade))
            for row in _play(scene, Path(folder) / str(number), old)
        ]
    return {"table": rows, "older": revision, "ok": all(row["as promised"] for row in rows)}


def _play(scene: Any, folder: Path, old: str) -> list[dict[str, Any]]:
    folder.mkdir()
    with _town(folder, old) as town:
        scene(town)
        return town.rows


@contextmanager
def _town(folder: Path, old: str) -> Iterator[Town]:
    town = Town(folder, old)
    try:
        yield town
    finally:
        town.stop()


def join_older(town: Town) -> None:
    """A node of this build would join a fleet of the older one, whose clients and tools are of both."""
    town.apply("older")
    town.start("a", "older")
    town.note_talk("a client of the older build at its daemon", town.use("a", "older", PART))
    town.note_talk("a client of this build at an older daemon", town.use("a", "this", PART))
    town.note_refusal("a node of this build joins an older fleet", town.start("b", "this"))
    changed = town.command("this", "tenant", "set", "quota", "late", "limit=5", "--store", town.fleet.store)
    town.note_refusal("this build's `bursar tenant` at an older store", changed)
    town.use("a", "older")
    town.conclude("an older fleet")


def join_newer(town: Town) -> None:
    town.apply("this")
    town.start("a", "this")
    town.note_talk("a client of this build at its daemon", town.use("a", "this", PART))
    town.note_talk("a client of the older build at a daemon of this", town.use("a", "older", PART))
    town.note_refusal("an older node joins a fleet of this build", town.start("b", "older"))
    town.use("a", "this")
    town.conclude("a fleet of this build")


def upgrade(town: Town) -> None:
    """One node of the older build begins the budget alone; then the fleet is upgraded, the other first."""
    town.apply("older")
    town.start("a", "older")
    town.use("a", "older", 4 * PART)
    town.start("b", "older")
    town.use("b", "older", PART)
    town.stop()
    town.note_refusal("this build is started on the older one's store", town.start("b", "this"))
    said = town.command("this", "store", "adopt", "--store", town.fleet.store, "--yes")
    town.note("`bursar store adopt`", said or "done", not said)
    town.note(
        "the older fleet's nodes of this build", town.start("b", "this") or town.start("a", "this"), True
    )
    town.use("b", "this")
    town.use("a", "this")
    town.note_refusal("a node goes back to the older build", town.start("c", "older"))
    town.conclude("an upgraded fleet")
