"""Clients of each engine, as processes; servers and clients killed; what they told, judged."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bursar_lab.etcd_server import EtcdServers
from bursar_lab.experiments.histories.checker import Event, judge
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.zookeeper_server import ZookeeperServers

ENGINES = ("sqlite", "zookeeper", "postgresql", "etcd")
CLIENTS = 3
OPERATIONS = 10_000
LIMIT_S = 300.0
KILL_EVERY_S = 5.0

Kill = Callable[[], None]


def run(out: Path, quick: bool) -> dict[str, Any]:
    """Every engine, and at the end one with a planted bug, which must be found."""
    rows = []
    for engine in ENGINES:
        row = measure(engine, OPERATIONS // (5 if quick else 1))
        rows.append(row)
        Console().print(
            f"{row['engine']}: {row['operations']:,} operations in {row['seconds']:.0f} s, "
            f"{row['unanswered']:,} without an answer, {row['kills']} kills: "
            + (f"[red]{row['breaches']} breaches[/]" if row["breaches"] else "linearisable")
        )
        for line in row["found"][:5]:
            Console().print(f"  {line}")
    planted = measure("sqlite", OPERATIONS // 5, plant="forgets")
    Console().print(f"a store that forgets one write in forty: {planted['breaches']} breaches found")
    met = not any(row["breaches"] for row in rows) and bool(planted["breaches"])
    return {"rows": [*rows, {**planted, "engine": "sqlite, planted"}], "met": met}


def measure(engine: str, operations: int, plant: str = "") -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bursar-histories-") as folder,
        open_engine(engine, Path(folder)) as (
            url,
            kill,
        ),
    ):
        clients = Clients(url, Path(folder), plant)
        began = time.monotonic()
        kills = clients.run(operations, kill)
        seconds = time.monotonic() - began
        events = list(read_events(Path(folder)))
    found = judge(events)
    return {
        "engine": engine,
        "operations": len(events),
        "unanswered": sum(event.end is None for event in events),
        "seconds": seconds,
        "kills": kills,
        "breaches": len(found),
        "found": found,
    }


@contextmanager
def open_engine(engine: str, folder: Path) -> Iterator[tuple[str, Kill]]:
    """Its URL, and what kills the server that leads (and starts what was killed before)."""
    with ExitStack() as stack:
        if engine == "sqlite":
            yield f"sqlite://{folder}/store.db", lambda: None
        elif engine == "postgresql":
            pair = stack.enter_context(PostgresqlServers(2))

            def fail_over() -> None:
                lost = pair.leader()
                pair.kill(lost)
                pair.fail_over(lost)
                pair.rejoin(lost)

            yield pair.url(), fail_over
        else:
            servers: ZookeeperServers | EtcdServers
            servers = ZookeeperServers(3) if engine == "zookeeper" else EtcdServers(3)
            stack.enter_context(servers)

            def kill_leader() -> None:
                leader = servers.leader()
                servers.kill(leader)
                time.sleep(KILL_EVERY_S / 2)
                servers.start(leader)
                servers.wait_until_serving()

            yield servers.url("/histories"), kill_leader


class Clients:
    """Processes that are killed too, one at a time, and followed by others."""

    def __init__(self, url: str, folder: Path, plant: str) -> None:
        self._url = url
        self._plant = plant
        self._folder = folder
        self._begun = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, operations: int, kill: Kill) -> int:
        """Until there were so many; how often something was killed."""
        kills = 0
        until = time.monotonic() + LIMIT_S
        try:
            self._running = [self._start() for _ in range(CLIENTS)]
            while self._count() < operations and time.monotonic() < until:
                time.sleep(KILL_EVERY_S)
                kill()
                self._running.append(self._start())
                self._stop(self._running.pop(0))
                kills += 2
        finally:
            for client in self._running:
                self._stop(client)
        return kills

    def _start(self) -> subprocess.Popen[bytes]:
        self._begun += 1
        log = self._folder / f"{self._begun}.log"
        module = "bursar_lab.experiments.histories.worker"
        command = [sys.executable, "-m", module, self._url, str(log), str(self._begun), self._plant]
        with open(self._folder / f"{self._begun}.err", "ab") as err:
            return subprocess.Popen(command, stderr=err)

    def _stop(self, client: subprocess.Popen[bytes]) -> None:
        client.kill()
        client.wait()

    def _count(self) -> int:
        return sum(path.read_bytes().count(b'"start"') for path in self._folder.glob("*.log"))


def read_events(folder: Path) -> Iterator[Event]:
    """What the clients told; of a read without an answer nothing can be said."""
    for path in sorted(folder.glob("*.log")):
        told: dict[int, dict[str, Any]] = {}
        for line in path.read_text().splitlines():
            try:
                words = json.loads(line)
            except ValueError:
                continue  # the last line of one that was killed
            told.setdefault(words["id"], {}).update(words)
        for words in told.values():
            if words.get("void") or (words["kind"] in ("read", "glance", "hold") and "end" not in words):
                continue
            yield Event(
                words["kind"],
                words["key"],
                words["start"],
                words.get("end"),
                words["value"],
                words.get("version", 0),
                f"{path.stem}/{words['session']}",
            )
