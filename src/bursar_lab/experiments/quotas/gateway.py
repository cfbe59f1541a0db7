"""A day of a gateway in front of a language model, in ten minutes, through the public API.

Two daemons, callers in processes of their own, 1,000 customers. Each request is under requests a minute,
tokens a minute and tokens a month at once; daemons are killed, a process of callers is killed, and three
times the window of the budget turns, at both daemons. At the end three totals must be one, customer by
customer: what the export has (`bursar quota usage`), what the journals of the ledgers have, read from disk
once all is stopped, and what the callers counted.

What the law loses stays visible: a grant of which nobody was told, or whose caller died, is still held.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.quotas import entries
from bursar.quotas.ledger import Ledger
from bursar.quotas.replay import replay
from bursar.quotas.windows import split_account
from bursar.runtime.journal import read_records
from bursar_lab.experiments.quotas.runs import judge
from bursar_lab.processes import Process, await_port

NODES = ("a", "b")
TURNS = (0.25, 0.5, 0.75)
"""Parts of the day after which the window turns."""

KILLS = 4
DOWN_S = 1.0
START_S = 120.0
RESOLVE_S = 120.0
MONTHLY = 400_000

POLICY = """
store = "sqlite://{folder}/store.db"
[daemon]
http = "off"
peers = {{ {peers} }}
[resource.rpm]
kind = "rate"
period = "1min"
servers = {{ a = "60_000/min", b = "60_000/min" }}
[resource.rpm.tenant]
"*" = {{ limit = "600/min" }}
[resource.tpm]
kind = "rate"
period = "1min"
servers = {{ a = "30_000_000/min", b = "30_000_000/min" }}
[resource.tpm.tenant]
"*" = {{ limit = "200_000/min" }}
[resource.budget]
kind = "quota"
unit = "tokens"
window = "hour"
over = "take"
hold_expiry = "1d"
[resource.budget.tenant]
"*" = {{ limit = {limit} }}
"""


class Gateway:
    """The daemons and the callers of one run."""

    def __init__(self, folder: Path, callers: int) -> None:
        self.folder = folder
        self.kills = 0
        self.ports = {name: find_free_port() for name in NODES}
        self.diaries = [folder / f"caller-{number}.diary" for number in range(callers)]
        self._nodes: dict[str, Process] = {}
        self._up: dict[str, Process] = {}
        self._lock = threading.Lock()
        self._callers: list[subprocess.Popen[bytes]] = []
        self._turns = 0
        peers = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in self.ports.items())
        (folder / "policy.toml").write_text(POLICY.format(folder=folder, peers=peers, limit=MONTHLY))

    @property
    def addresses(self) -> str:
        return "bursar://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self, name: str) -> None:
        policy, ahead = str(self.folder / "policy.toml"), self._turns
        command = [
            "env", f"HOURS_AHEAD={ahead}",
            sys.executable, "-m", "bursar_lab.benchmarks.quota_node", "serve", policy,
            "--name", name, "--listen", f"127.0.0.1:{self.ports[name]}", "--state", str(self.folder / name),
        ]  # fmt: skip
        node = self._nodes[name] = Process(command, self.folder / f"{name}.log")
        await_port(self.ports[name], node.child, START_S)
        with self._lock:
            for _ in range(self._turns - ahead):  # windows that turned while it started
                node.child.send_signal(signal.SIGUSR1)
                time.sleep(0.05)
            self._up[name] = node

    def kill(self, name: str) -> None:
        with self._lock:
            self._up.pop(name).kill()
        self.kills += 1
        time.sleep(DOWN_S)
        self.start(name)

    def turn(self) -> None:
        with self._lock:
            self._turns += 1
            for node in self._up.values():
                node.child.send_signal(signal.SIGUSR1)

    def call(self, requests: int, seconds: float, customers: int) -> None:
        each = requests // len(self.diaries)
        for seed, diary in enumerate(self.diaries):
            module = "bursar_lab.experiments.quotas.gateway_client"
            ends = (self.addresses, diary, seed, each, seconds, customers)
            command = [sys.executable, "-m", module, *map(str, ends)]
            self._callers.append(subprocess.Popen(command, stdout=subprocess.PIPE))

    def kill_caller(self) -> None:
        self._callers[-1].kill()

    def wait(self) -> list[dict[str, Any]]:
        """What the callers say that were not killed."""
        said = [caller.communicate()[0] for caller in self._callers]
        return [json.loads(each) for each in said if each]

    def stop(self) -> None:
        for node in self._nodes.values():
            node.stop()
        for caller in self._callers:
            if caller.poll() is None:
                caller.kill()


def gateway(out: Path, quick: bool) -> dict[str, Any]:
    sizes = (4_000, 24.0, 2) if quick else (500_000, 560.0, 2)
    with tempfile.TemporaryDirectory(prefix="bursar-gateway-", dir="/var/tmp") as folder:
        return run_day(Path(folder), *sizes)


def run_day(
    folder: Path, requests: int, seconds: float, callers: int, customers: int = 1_000
) -> dict[str, Any]:
    day = Gateway(folder, callers)
    try:
        for name in NODES:
            day.start(name)
        began = time.monotonic()
        day.call(requests, seconds, customers)
        _torment(day, seconds)
        said = day.wait()
        took_s = time.monotonic() - began
        counted = asyncio.run(_settle_all(day))
        exported = _export(day)
    finally:
        day.stop()
    return _judge(day, requests, took_s, said, counted, exported)


def _torment(day: Gateway, seconds: float) -> None:
    """Windows turn, daemons are killed, and with the last of them a process of callers."""
    rng, began = random.Random(1), time.monotonic()
    kills = sorted(rng.uniform(0.05, 0.9) for _ in range(KILLS))

    def wait(part: float) -> None:
        time.sleep(max(0.0, began + part * seconds - time.monotonic()))

    def kill_often() -> None:
        for part in kills:
            wait(part)
            day.kill(rng.choice(NODES))

    killing = threading.Thread(target=kill_often)  # a node takes a while to start, and the day goes on
    killing.start()
    for part in TURNS:
        wait(part)
        day.turn()
    wait(0.8)
    day.kill_caller()
    killing.join()


def _read_diaries(day: Gateway) -> dict[str, tuple[str, int]]:
    """By the id of the grant: whose it is, and what it was settled with."""
    settled: dict[str, tuple[str, int]] = {}
    for diary in day.diaries:
        for line in diary.read_text().splitlines():
            id, customer, used = json.loads(line)
            settled[id] = customer, used
    return settled


async def _settle_all(day: Gateway) -> Counter[str]:
    """Say every settlement again, until it is decided; what each customer's come to."""
    counted: Counter[str] = Counter()
    async with await bursar.connect(day.addresses) as b:
        budget = b.resource("budget")
        waiting, until = _read_diaries(day), time.monotonic() + RESOLVE_S
        while waiting:
            for id, (customer, used) in list(waiting.items()):
                try:
                    await budget.settle(id, used)
                except bursar.Unknown:
                    continue
                counted[customer] += used
                del waiting[id]
            if waiting and time.monotonic() > until:
                raise BursarError(f"{len(waiting)} settlements were not decided in {RESOLVE_S:g} s")
    return counted


def _export(day: Gateway) -> list[dict[str, str]]:
    """As whoever writes the bills gets it."""
    at = f"bursar://127.0.0.1:{day.ports['a']}"
    command = [sys.executable, "-m", "bursar", "quota", "usage", "--resource", "budget", "--at", at]
    done = subprocess.run([*command, "--format", "csv"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BursarError(f"bursar quota usage failed: {done.stderr.strip()}")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def _read_ledgers(day: Gateway) -> tuple[Counter[str], int]:
    """What the journals have as spent, by customer, and what is held, once nobody writes to them."""
    spent: Counter[str] = Counter()
    held = 0
    for name in NODES:
        path = day.folder / name / "journals" / quote("quota/budget", safe="")
        records, _ = read_records(path.read_bytes(), path)
        ledger = Ledger(entries.read_identity(records) or name)
        replay(ledger, records)
        for account in ledger.accounts.values():
            spent[split_account(account.name)[0]] += account.spent
            held += account.held
    return spent, held


def _judge(
    day: Gateway,
    requests: int,
    took_s: float,
    said: Sequence[Mapping[str, Any]],
    counted: Counter[str],
    exported: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    spent, held = _read_ledgers(day)
    used: Counter[str] = Counter()
    for row in exported:
        used[row["tenant"]] += int(row["used"])
    answers: Counter[str] = Counter()
    for each in said:
        answers.update(each["said"])
    waits = sorted(wait for each in said for wait in each["waits_ms"])
    windows = len({row["begin"] for row in exported})
    over = [row for row in exported if int(row["used"]) + int(row["held"]) > MONTHLY]
    exported_held = sum(int(row["held"]) for row in exported)
    rows = {
        "requests": requests,
        "s": round(took_s, 1),
        "customers": len(used),
        "windows": windows,
        "daemons killed": day.kills,
        **answers,
        "p50 ms": round(waits[len(waits) // 2], 2),
        "p99 ms": round(waits[len(waits) * 99 // 100], 2),
        "counted": sum(counted.values()),
        "exported": sum(used.values()),
        "in the ledgers": sum(spent.values()),
        "held": exported_held,
        "load average": round(os.getloadavg()[1], 1),
    }
    differing = [name for name in {*counted, *used, *spent} if not counted[name] == used[name] == spent[name]]
    bars = [
        judge("customers whose three totals differ, exactly 0", len(differing), not differing),
        judge(
            "held in the export less in the ledgers, exactly 0", exported_held - held, exported_held == held
        ),
        judge("windows of a customer that are above the limit, exactly 0", len(over), not over),
        judge("windows, at least 4", windows, windows >= 4),
        judge(
            "rows that not every ledger answered for, exactly 0",
            sum(row["complete"] != "True" for row in exported),
            all(row["complete"] == "True" for row in exported),
        ),
    ]
    return {"rows": [rows], "table": [rows], "bars": bars, "ok": all(bar["met"] for bar in bars)}
