"""SQLite under real processes that are killed and stopped.

Replay with the seed that a failure prints: BURSAR_SEED=N pytest tests/stores/test_sqlite_crash.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bursar.runtime.clock import BootClock
from bursar.stores.sqlite import SqliteStore
from bursar.world import SECOND_NS

KILLS = 50
CONTENTION_S = 8.0
ACTORS = Path(__file__).with_name("actors.py")


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("BURSAR_SEED", "7"))
    print(f"replay with BURSAR_SEED={seed}")
    return random.Random(seed)


def start(role: str, store: Path, log: Path, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(ACTORS), role, str(store), str(log), str(seed)])


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def wait_for_lines(log: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 20
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, f"the writer ended by itself with {process.returncode}"
        assert time.monotonic() < give_up, f"fewer than {count} commits in 20 s"
        time.sleep(0.002)


async def open_store(path: Path) -> SqliteStore:
    return await SqliteStore.open(str(path), BootClock(), timeout_ns=30 * SECOND_NS)


async def test_fifty_kills_of_a_writer_lose_nothing_that_was_answered(
    tmp_path: Path, chance: random.Random
) -> None:
    path, answered = tmp_path / "store.db", {}
    store = await open_store(path)
    for node in ("/left", "/right", "/n", "/writers"):
        await store.create(node)
    revision = await store.sync()
    for number in range(KILLS):
        log = tmp_path / f"writer-{number}.log"
        writer = start("writer", path, log, number)
        try:
            await asyncio.to_thread(wait_for_lines, log, chance.randrange(1, 40), writer)
            await asyncio.sleep(chance.random() * 0.003)
        finally:
            kill(writer)
        # The kill may have torn the log's last line, which then says nothing.
        whole = log.read_text().rpartition("\n")[0]
        answered.update(line.split() for line in whole.splitlines() if " " in line)
        revision = await check_kept(store, answered, revision)
    assert len(answered) >= KILLS
    await wait_until_empty(store, "/writers")
    await store.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def check_kept(store: SqliteStore, answered: dict[str, str], before: int) -> int:
    left, right = await store.children("/left"), await store.children("/right")
    assert left == right, "half a transaction survived"
    assert set(answered) <= set(left), "an answered change was lost"
    for name, data in answered.items():
        assert (await store.get(f"/left/{name}"))[0].hex() == data
    assert (await store.get("/n"))[1].version == len(left)
    revision = await store.sync()
    assert revision > before
    return revision


async def wait_until_empty(store: SqliteStore, path: str) -> None:
    """The nodes of dead sessions go within their timeout and a little."""
    async with asyncio.timeout(10):
        watch = await store.watch(path)
        while await store.children(path):
            await watch.changed()
        watch.close()


@contextmanager
def contenders(count: int, store: Path, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [start("contender", store, logs / f"{number}.log", number) for number in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            kill(process)


def play_faults(
    processes: list[subprocess.Popen[bytes]], store: Path, logs: Path, chance: random.Random
) -> dict[str, int]:
    """Stop contenders for longer and shorter than their session lives, kill and replace some."""
    played = {"stop": 0, "kill": 0}
    end, names = time.monotonic() + CONTENTION_S, itertools.count(len(processes))
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.2)
        index = chance.randrange(len(processes))
        if chance.random() < 0.25:
            kill(processes[index])
            number = next(names)
            processes[index] = start("contender", store, logs / f"{number}.log", number)
            played["kill"] += 1
        else:
            processes[index].send_signal(signal.SIGSTOP)
            time.sleep(chance.choice((0.05, 0.3, 1.2)))
            processes[index].send_signal(signal.SIGCONT)
            played["stop"] += 1
    played["ended by itself"] = sum(process.poll() is not None for process in processes)
    return played


def read_logs(logs: Path) -> list[list[str]]:
    return [line.split() for log in sorted(logs.iterdir()) for line in log.read_text().splitlines()]


async def test_two_processes_never_both_hold_an_exclusive_node(tmp_path: Path, chance: random.Random) -> None:
    path, logs = tmp_path / "store.db", tmp_path / "logs"
    logs.mkdir()
    store = await open_store(path)
    with contenders(3, path, logs) as processes:
        played = await asyncio.to_thread(play_faults, processes, path, logs, chance)
    lines = read_logs(logs)
    check_acts(lines)
    check_trust(lines)
    seen = {word: sum(line[0] == word for line in lines) for word in ("acquired", "acted", "expired")}
    print(played, seen)
    assert played["stop"] >= 3 and played["kill"] >= 1 and played["ended by itself"] == 0
    assert seen["acquired"] >= 20 and seen["acted"] >= 100 and seen["expired"] >= 1
    await store.close()


def check_acts(lines: list[list[str]]) -> None:
    """In the order of revisions, an owner's acts lie between its acquisition and the next one."""
    acts = sorted((int(line[3]), int(line[1])) for line in lines if line[0] == "acted")
    fences = sorted(int(line[1]) for line in lines if line[0] == "acquired")
    assert len(fences) == len(set(fences)), "two owners with one fence"
    assert len(acts) == len({revision for revision, _ in acts})
    for (revision, fence), (_, later) in itertools.pairwise(acts):
        assert fence <= later, f"the owner of fence {later} acted after that of {fence} (at {revision})"
    for revision, fence in acts:
        following = [other for other in fences if other > fence]
        assert fence < revision and (not following or revision < following[0]), "a deposed owner acted"


def check_trust(lines: list[list[str]]) -> None:
    """No owner trusts its session at a moment when the next has already acquired."""
    acquired = sorted((int(line[1]), int(line[3])) for line in lines if line[0] == "acquired")
    for line in lines:
        if line[0] == "trusted":
            fence, moment_ns = int(line[1]), int(line[3])
            next_ns = min((at_ns for other, at_ns in acquired if other > fence), default=moment_ns)
            assert moment_ns <= next_ns, f"the owner of fence {fence} still trusted a session that was over"


async def test_processes_that_start_together_share_one_new_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    (tmp_path / "logs").mkdir()
    with contenders(4, path, tmp_path / "logs"):
        async with asyncio.timeout(20):
            store = await open_store(path)
            watch = await store.watch("/")
            while not await store.children("/"):
                await watch.changed()
            watch.close()
    assert set(await store.children("/")) <= {"lock", "register"}
    await store.close()
