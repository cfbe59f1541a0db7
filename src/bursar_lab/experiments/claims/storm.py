"""A storm of tasks on three ZooKeeper servers: workers killed, stopped and continued, leaders killed, all
servers away for long; results that are too large, tasks that kill their process and tasks that block. Then
every task must have ended, or be in the list of the dead, none later than the stated bound after the last
fault; and no guarded write conflicts with another.

Everything comes through the public door: workers are `bursar work`, tasks are submitted with the verb."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import bursar
from bursar.errors import BursarError, Unknown
from bursar.runtime.clock import BootClock
from bursar.runtime.functions import Call
from bursar.stores import open_store
from bursar.world import SECOND_NS
from bursar_lab.experiments.claims.ends import Ends
from bursar_lab.zookeeper_server import ZookeeperServers

Findings = dict[str, Any]
RESOURCE = "things"
SHOP = "bursar_lab.experiments.claims.storm_shop"
SESSION_S = 4.0
AGING_S = 20.0
ATTEMPTS = 5
WORKERS = 4
BLOCK_S = 3 * SESSION_S
SUBMITTERS = 8
MISS_S = 2 * SESSION_S + 2.0
"""A dead worker is missed, and its tasks are taken over, within this."""

BOUND_S = AGING_S + ATTEMPTS * MISS_S + 2 * BLOCK_S
"""From the last fault, or its submission if that was later, to a task's end: it reserves its names after
`aging`; whoever holds them ends, blocks, or dies as often as it may."""

LEADER_S, KILL_S, STOP_S = 5.0, 7.0, 11.0
PATIENCE_S = 600.0
SHOW_S = 5.0


@dataclass(frozen=True)
class Size:
    tasks: int
    storm_s: float
    outage_s: float


QUICK = Size(400, 40.0, 15.0)
FULL = Size(20_000, 900.0, 360.0)


@dataclass
class Log:
    """What was done, and when by the wall clock."""

    submitted: dict[str, float] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    last_fault: float = 0.0

    def fault(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.last_fault = time.time()


def storm(out: Path, quick: bool) -> Findings:
    """`bursar experiment claims-storm`."""
    size, seed = (QUICK if quick else FULL), int(os.environ.get("STORM_SEED", "1"))
    folder = Path(tempfile.mkdtemp(prefix="bursar-claims-storm-"))
    with ZookeeperServers(3) as servers:
        findings = asyncio.run(_run(servers, folder, size, random.Random(seed)))
    findings |= {"seed": seed, "folder": str(folder)}
    return findings


async def _run(servers: ZookeeperServers, folder: Path, size: Size, chance: random.Random) -> Findings:
    _write_policy(folder, servers.url("/storm"))
    _call_shop(folder)
    workers = [Worker(folder, number) for number in range(WORKERS)]
    log = Log()
    try:
        async with bursar.Bursar(folder / "policy.toml") as b:
            faults = asyncio.create_task(_do_faults(servers, workers, size, log, chance))
            showing = asyncio.create_task(_show(log, size))
            await _submit_all(b, size, log, chance)
            await faults
            showing.cancel()
            store = await open_store(servers.url("/storm"), clock=BootClock(), timeout_ns=10 * SECOND_NS)
            ends = Ends(store, RESOURCE, dead=True)
            await _wait_for_ends(ends, workers, log)
            await ends.read_all()
            await store.close()
    finally:
        for worker in workers:
            worker.kill()
    return _judge(ends, find_conflicts(folder / "writes.db"), log, size)


async def _show(log: Log, size: Size) -> None:
    """How far it is."""
    began = time.monotonic()
    while True:
        left_s = max(0.0, began + size.storm_s - time.monotonic())
        faults = ", ".join(f"{count} {what}" for what, count in log.counts.items())
        line = f"    {left_s:.0f} s left, {len(log.submitted):,} of {size.tasks:,} submitted; {faults}"
        print(line, file=sys.stderr, flush=True)
        await asyncio.sleep(SHOW_S)


def _write_policy(folder: Path, url: str) -> None:
    (folder / "policy.toml").write_text(
        f'store = "{url}"\n\n[daemon]\nsession_timeout = "{SESSION_S}s"\n\n[resource.{RESOURCE}]\n'
        f'kind = "claim"\npaths = true\naging = "{AGING_S}s"\nattempts = {ATTEMPTS}\n'
    )


def _call_shop(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", f"import {SHOP} as shop; shop.set_up()"], cwd=folder, check=True)


class Worker:
    """`bursar work`, started again whenever it is gone."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._lives = 0
        self.is_stopped = False
        self.start()

    def start(self) -> None:
        self._lives += 1
        name = f"w{self._number}-{self._lives}"
        command = [sys.executable, "-m", "bursar", "work", f"{SHOP}:b", "--name", name, "--at-once", "8"]
        environment = os.environ | {"STORM_BLOCK_S": str(BLOCK_S)}
        with open(self._folder / f"w{self._number}.log", "ab") as file:
            self._child = subprocess.Popen(
                command, cwd=self._folder, stdout=file, stderr=file, env=environment
            )

    def is_gone(self) -> bool:
        return self._child.poll() is not None

    def send(self, what: signal.Signals) -> None:
        self._child.send_signal(what)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()


# Submitting


async def _submit_all(b: bursar.Bursar, size: Size, log: Log, chance: random.Random) -> None:
    """Over the whole storm, and a little beyond: some tasks come when all is well again."""
    numbers = iter(range(size.tasks))
    pause_s = size.storm_s / size.tasks
    began = time.monotonic()

    async def submit_some() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, began + number * pause_s - time.monotonic()))
            await _submit(b, number, log, chance)

    await asyncio.gather(*(submit_some() for _ in range(SUBMITTERS)))


async def _submit(b: bursar.Bursar, number: int, log: Log, chance: random.Random) -> None:
    needs = draw_needs(chance)
    function = {10: "block", 20: "grow", 30: "die"}.get(number % 1_000, "use")
    arguments: dict[str, Any] = {"needs": needs}
    if function == "use":
        arguments["seconds"] = chance.random() * 0.05
    call = msgspec.msgpack.encode(Call(function, arguments))
    names = [f"{name}:{mode}" for name, mode in needs]
    while True:
        with suppress(Unknown):
            submit = b.resource(RESOURCE).verb
            id = await submit("submit", tenant="t", names=names, payload=call, key=f"n{number}")
            log.submitted[id], log.expected[id] = time.time(), function
            return
        log.counts["unknown"] = log.counts.get("unknown", 0) + 1


def draw_needs(chance: random.Random) -> list[list[str]]:
    """1 to 20 names, mostly few: paths, whose hosts are then shared, and things."""
    count = min(20, 1 + int(chance.expovariate(0.4)))
    found: dict[str, str] = {}
    for _ in range(count):
        if chance.random() < 0.5:
            name = f"host-{chance.randrange(20)}/vm-{chance.randrange(30)}"
        else:
            name = f"thing-{chance.randrange(400)}"
        found[name] = "E" if chance.random() < 0.6 else "S"
    return [[name, mode] for name, mode in sorted(found.items())]


# Faults


async def _do_faults(
    servers: ZookeeperServers, workers: list[Worker], size: Size, log: Log, chance: random.Random
) -> None:
    """One after the other as their times come, with the outage in the middle; then all is mended."""
    ends = time.monotonic() + size.storm_s
    outage = time.monotonic() + (size.storm_s - size.outage_s) / 2
    due = {"leader": LEADER_S, "kill": KILL_S, "stop": STOP_S}
    began = time.monotonic()
    while (now := time.monotonic()) < ends:
        for number, worker in enumerate(workers):
            if worker.is_gone():
                log.counts["gone"] = log.counts.get("gone", 0) + 1
                workers[number].start()
        if outage and now > outage:
            outage = 0.0
            await _be_away(servers, size.outage_s, log)
        for what in [what for what, at in due.items() if now - began > at]:
            due[what] = now - began + {"leader": LEADER_S, "kill": KILL_S, "stop": STOP_S}[what]
            await _do_fault(what, servers, workers, log, chance)
        await asyncio.sleep(0.2)
    for worker in workers:
        if worker.is_stopped:
            worker.send(signal.SIGCONT)
    await _await_servers(servers)
    log.last_fault = time.time()


async def _be_away(servers: ZookeeperServers, seconds: float, log: Log) -> None:
    for number in range(servers.count):
        servers.kill(number)
    log.fault("outage")
    await asyncio.sleep(seconds)
    for number in range(servers.count):
        servers.start(number)
    await _await_servers(servers)


async def _do_fault(
    what: str, servers: ZookeeperServers, workers: list[Worker], log: Log, chance: random.Random
) -> None:
    if what == "leader":
        await _kill_leader(servers, log)
        return
    log.fault(what)
    worker = workers[chance.randrange(len(workers))]
    if what == "kill":
        worker.kill()
        worker.is_stopped = False
        worker.start()
    elif not worker.is_gone():
        worker.send(signal.SIGCONT if worker.is_stopped else signal.SIGSTOP)
        worker.is_stopped = not worker.is_stopped


async def _kill_leader(servers: ZookeeperServers, log: Log) -> None:
    """Nothing where none leads: one that was killed before is not back yet."""
    with suppress(BursarError):
        number = await asyncio.to_thread(servers.leader)
        servers.kill(number)
        log.fault("leader")
        await asyncio.sleep(0.5)
        servers.start(number)


async def _await_servers(servers: ZookeeperServers) -> None:
    """All of them, however long a busy machine takes for it."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            await asyncio.to_thread(servers.wait_until_serving)
            return
        except BursarError:
            if time.monotonic() > until:
                raise


# Judging


async def _wait_for_ends(ends: Ends, workers: list[Worker], log: Log) -> None:
    until = time.monotonic() + PATIENCE_S
    while await ends.count() < len(log.submitted) and time.monotonic() < until:
        for worker in workers:
            if worker.is_gone():  # a task killed it: somebody starts workers again
                log.counts["gone"] = log.counts.get("gone", 0) + 1
                worker.start()
        await asyncio.sleep(0.2)


def find_conflicts(path: Path) -> list[str]:
    """Writes that must not be beside each other: an older fence after a newer one, or two tasks with one
    fence of which one held the name exclusively."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, mode, fence, key FROM writes ORDER BY number")
    found = list(judge_writes(rows))
    connection.close()
    return found


def judge_writes(rows: Iterable[tuple[str, str, int, str]]) -> Iterable[str]:
    newest: dict[str, int] = {}
    writers: dict[tuple[str, int], dict[str, str]] = {}
    for name, mode, fence, key in rows:
        if fence < newest.get(name, 0):
            yield f"{name}: {key} wrote with {fence} after a write with {newest[name]}"
        newest[name] = max(fence, newest.get(name, 0))
        others = writers.setdefault((name, fence), {})
        others[key] = mode
        if len(others) > 1 and "E" in others.values():
            yield f"{name}: {', '.join(others)} wrote with {fence}, one of them alone"


def _judge(ends: Ends, conflicts: list[str], log: Log, size: Size) -> Findings:
    lost = [id for id in log.submitted if id not in ends.tasks]
    wrong = [
        f"{id} ({function}): {ends.tasks[id].outcome}"
        for id, function in log.expected.items()
        if id in ends.tasks and not _is_expected(function, ends.tasks[id].outcome)
    ]
    late = {
        id: task.ended / SECOND_NS - max(log.submitted[id], log.last_fault)
        for id, task in ends.tasks.items()
        if id in log.submitted
    }
    last_s = max(late.values(), default=0.0)
    outcomes: dict[str, int] = {}
    for task in ends.tasks.values():
        outcomes[str(task.outcome)] = outcomes.get(str(task.outcome), 0) + 1
    row = {
        "tasks": len(log.submitted),
        **outcomes,
        **log.counts,
        "attempts": sum(task.attempt for task in ends.tasks.values()),
        "last end after the last fault, s": round(last_s, 1),
        "bound, s": BOUND_S,
        "lost": len(lost),
        "conflicts": len(conflicts),
        "ends changed": len(ends.changed),
    }
    ok = len(log.submitted) == size.tasks and last_s <= BOUND_S
    ok = ok and not (lost or conflicts or ends.changed or wrong)
    table = [{"": name, "found": value} for name, value in row.items()]
    return {"table": table, "lost": lost[:20], "wrong": wrong[:20], "conflicts": conflicts[:20], "ok": ok}


def _is_expected(function: str, outcome: str | None) -> bool:
    """A task whose process dies is given up, and so may be what is beside it too often; one that was
    deposed in the middle may be refused by the guard and fail."""
    return outcome in {"grow": ("failed", "dead"), "die": ("dead",)}.get(function, ("ok", "failed", "dead"))
