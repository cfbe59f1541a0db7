"""Twenty daemons as processes: one is killed every second and started again, and the network is cut
in two for a quarter of the time. Does every unit stay where it is?

Nodes are in two network namespaces with mutual TLS between them; the store is one SQLite file that
both halves reach, so that a node may seem alive and be unreachable. At the end all are killed once
more, and the audit reads their journals, not their memory.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar.quotas import entries
from bursar.quotas.ledger import Ledger
from bursar.quotas.replay import replay
from bursar_lab.experiments.quotas.halves import ADDRESSES, Halves
from bursar_lab.experiments.quotas.runs import judge
from bursar_lab.experiments.quotas.worker import AMOUNT_MAX, ASKERS, RESOURCE, STOP, TENANT, WIRING, Diary

UNITS_A_SECOND = 40
"""Of the quota, for each node: about what the load uses, so that the end is seen too."""

PORT = 7100
BLOCK = 50
KILL_EVERY_S = 1.0
CUT = (0.4, 0.65)
"""The network is cut between these parts of the time."""

START_S = 60.0
RESOLVE_S = 60.0


class Fleet:
    """The daemons, by number; the even ones on one side of the wire."""

    def __init__(self, folder: Path, halves: Halves, nodes: int, mode: str, seconds: float) -> None:
        self.folder = folder
        self.nodes = nodes
        self.mode = mode
        self.limit = int(UNITS_A_SECOND * nodes * seconds)
        self.kills = 0
        self._halves = halves
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        _make_certificate(folder, nodes)
        addresses = {f"n{node}": f"{ADDRESSES[node % 2]}:{PORT + node}" for node in range(nodes)}
        (folder / WIRING).write_text(json.dumps(addresses))
        for node in range(nodes):
            self.policy(node).write_text(self._write_policy(node))

    def policy(self, node: int) -> Path:
        return self.folder / f"n{node}.toml"

    def _write_policy(self, node: int) -> str:
        return f"""store = "sqlite://{self.folder}/store.db"
[daemon]
name = "n{node}"
http = "127.0.0.1:0"
state = "{self.folder}/n{node}"
session_timeout = "3s"
tls = {{ cert = "{self.folder}/all.crt", key = "{self.folder}/all.key", ca = "{self.folder}/all.crt" }}
[resource.{RESOURCE}]
kind = "quota"
mode = "{self.mode}"
block = {BLOCK}
[resource.{RESOURCE}.tenant]
{TENANT} = {{ limit = {self.limit} }}
"""

    def start(self, node: int) -> None:
        command = [sys.executable, "-m", "bursar_lab.experiments.quotas.worker", str(self.policy(node))]
        with (self.folder / f"n{node}.log").open("ab") as log:
            self._children[node] = subprocess.Popen(
                self._halves.inside(node % 2, command), stdout=log, stderr=log
            )

    def kill(self, node: int) -> None:
        child = self._children.pop(node)
        if child.poll() is not None:
            raise BursarError(f"n{node} ended by itself with {child.returncode}:\n{self._tail(node)}")
        child.kill()
        child.wait()
        self.kills += 1

    def kill_all(self) -> None:
        for node in list(self._children):
            self.kill(node)

    def end_all(self) -> None:
        for child in self._children.values():
            child.kill()
            child.wait()

    def _tail(self, node: int) -> str:
        return (self.folder / f"n{node}.log").read_text(errors="replace")[-2000:]

    def diary(self, node: int) -> tuple[dict[str, int], int]:
        return Diary.read(self.policy(node).with_suffix(".diary"))

    def wait_for(self, ending: str, timeout_s: float) -> None:
        """Until every node has written its file of that ending."""
        deadline = time.monotonic() + timeout_s
        for node in range(self.nodes):
            while not self.policy(node).with_suffix(ending).exists():
                if time.monotonic() > deadline:
                    raise BursarError(f"n{node} has no {ending} after {timeout_s:g} s:\n{self._tail(node)}")
                time.sleep(0.1)


def _make_certificate(folder: Path, nodes: int) -> None:
    """One certificate in the names of all nodes, which is its own authority."""
    names = ",".join(f"DNS:n{node}" for node in range(nodes))
    command = "openssl req -x509 -newkey ed25519 -nodes -days 2 -subj /CN=nodes -keyout all.key -out all.crt"
    done = subprocess.run(
        [*command.split(), "-addext", f"subjectAltName={names}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BursarError(f"openssl failed: {done.stderr.strip()}")


def run_faults(nodes: int, seconds: float, mode: str, seed: int = 1) -> dict[str, Any]:
    """One run; what the tenants were told beside what the journals say."""
    with tempfile.TemporaryDirectory(prefix="bursar-quota-") as folder, Halves() as halves:
        fleet = Fleet(Path(folder), halves, nodes, mode, seconds)
        try:
            for node in range(nodes):
                fleet.start(node)
            fleet.wait_for(".diary", START_S)
            _torment(fleet, halves, seconds, random.Random(seed))
            (fleet.folder / STOP).touch()
            fleet.wait_for(".done", RESOLVE_S)
            kills = fleet.kills
            fleet.kill_all()
        finally:
            fleet.end_all()
        return _judge(fleet, kills)


def _torment(fleet: Fleet, halves: Halves, seconds: float, rng: random.Random) -> None:
    began, cut = time.monotonic(), False
    while (passed := time.monotonic() - began) < seconds:
        if not cut and CUT[0] * seconds <= passed < CUT[1] * seconds:
            halves.cut()
            cut = True
        elif cut and passed >= CUT[1] * seconds:
            halves.heal()
            cut = False
        victim = rng.randrange(fleet.nodes)
        fleet.kill(victim)
        fleet.start(victim)
        time.sleep(KILL_EVERY_S)
    if cut:
        halves.heal()


def _judge(fleet: Fleet, kills: int) -> dict[str, Any]:
    ledgers = {f"n{node}": _read_ledger(fleet.folder / f"n{node}") for node in range(fleet.nodes)}
    lines = {name: ledger.account(TENANT) for name, ledger in ledgers.items()}
    unspent = sum(line.unspent for line in lines.values())
    charged = sum(line.held + line.spent for line in lines.values())
    in_flight = sum(
        amount
        for name, line in lines.items()
        for peer, channel in line.channels.items()
        for number, (amount, _) in channel.outbox.items()
        if number > lines[peer].channel(name).received
    )
    told = sum(fleet.diary(node)[1] for node in range(fleet.nodes))
    # A life that was killed may have charged a block, and grants that nobody was told of.
    lost_max = 0 if fleet.mode == "exact" else (kills + fleet.nodes) * (BLOCK + ASKERS * AMOUNT_MAX)
    missing, unaware = fleet.limit - charged - unspent - in_flight, charged - told
    bars = [
        judge(f"{fleet.mode}: units missing of all that there are, exactly 0", missing, missing == 0),
        judge(f"{fleet.mode}: units charged that nobody was told of, at least 0", unaware, unaware >= 0),
        judge(f"{fleet.mode}: the same, at most {lost_max}", unaware, unaware <= lost_max),
    ]
    return {
        "mode": fleet.mode,
        "nodes": fleet.nodes,
        "kills": kills,
        "quota": fleet.limit,
        "told to tenants": told,
        "charged": charged,
        "unspent": unspent,
        "in flight": in_flight,
        "missing": missing,
        "bars": bars,
    }


def _read_ledger(state: Path) -> Ledger:
    """The ledger as its journal has it, read by the code that a daemon reads it with."""
    from urllib.parse import quote

    from bursar.runtime.journal import read_records

    path = state / "journals" / quote(f"quota/{RESOURCE}", safe="")
    records, _ = read_records(path.read_bytes(), path)
    ledger = Ledger(entries.read_identity(records) or state.name)
    replay(ledger, records)
    return ledger


def live(out: Path, quick: bool) -> dict[str, Any]:
    """Both modes."""
    nodes, seconds = (6, 6.0) if quick else (20, 60.0)
    rows = [run_faults(nodes, seconds, mode) for mode in ("exact", "fast")]
    bars = [bar for row in rows for bar in row["bars"]]
    return {
        "workload": f"{nodes} daemons, {seconds:g} s, one killed every {KILL_EVERY_S:g} s, cut {CUT}",
        "rows": rows,
        "table": [{key: value for key, value in row.items() if key != "bars"} for row in rows],
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }
