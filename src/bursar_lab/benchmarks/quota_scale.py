"""`bursar bench quotas-scale`: many tenants at three daemons over one ZooKeeper, from their first use on.

Every tenant acquires once at every daemon, from a client of each, a few requests at a time: first when
nothing has been used yet (each account is opened), then again (they are), and once more right after the hour
has turned at all three (each account is opened anew, while all of them are asked for). What is measured is
what a caller waits, and the processor time of the daemons and of the clients: they share the processors of
this machine with ZooKeeper, so on a small one that is what decides how long it takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bursar
from bursar.demo.ports import find_free_port
from bursar.runtime.loops import new_event_loop
from bursar_lab.processes import Process, await_port
from bursar_lab.zookeeper_server import ZookeeperServers

TENANTS, QUICK_TENANTS = 100_000, 2_000
NODES = ("a", "b", "c")
TOGETHER = 4
"""Requests at a time from each client: enough to keep the daemons busy, and no queue of the client's own."""

FIRST_USE_MAX_S = 60.0
ACQUIRE_P99_MAX_MS = 20.0
WAIT_S = 30.0

POLICY = """
store = "{store}"
[resource.llm]
kind = "quota"
window = "hour"
[resource.llm.tenant]
"*" = {{ limit = 1_000 }}
[daemon]
http = "off"
"""


def run(quick: bool) -> dict[str, Any]:
    return measure(QUICK_TENANTS if quick else TENANTS)


def measure(tenants: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bursar-scale-", dir="/var/tmp") as folder,
        ZookeeperServers(1) as zookeeper,
        _serve(Path(folder), zookeeper.url("/scale")) as (nodes, ports),
    ):
        empty = [node.memory_bytes() for node in nodes]
        pids = [node.pid for node in nodes]
        rows = [_phase("first use", tenants, ports, pids)]
        full = [node.memory_bytes() for node in nodes]
        rows.append(_phase("used again", tenants, ports, pids))
        for node in nodes:
            node.child.send_signal(signal.SIGUSR1)
        rows.append(_phase("the hour turned", tenants, ports, pids))
    grown = max(after - before for before, after in zip(empty, full, strict=True))
    return _conclude(tenants, rows, grown)


@contextmanager
def _serve(folder: Path, store: str) -> Iterator[tuple[list[Process], list[int]]]:
    policy = folder / "policy.toml"
    policy.write_text(POLICY.format(store=store))
    ports = [find_free_port() for _ in NODES]
    nodes: list[Process] = []
    try:
        for name, port in zip(NODES, ports, strict=True):
            command = [
                sys.executable, "-m", "bursar_lab.benchmarks.quota_node", "serve", str(policy),
                "--name", name, "--listen", f"127.0.0.1:{port}", "--state", str(folder / name),
            ]  # fmt: skip
            nodes.append(Process(command, folder / f"{name}.log"))
            await_port(port, nodes[-1].child)
        yield nodes, ports
    finally:
        for node in nodes:
            node.kill()


def _phase(name: str, tenants: int, ports: Sequence[int], pids: Sequence[int]) -> dict[str, Any]:
    """All tenants at all daemons, from a process for each."""
    before_s = sum(map(_read_cpu_s, pids))
    clients = [
        subprocess.Popen([sys.executable, "-m", __name__, str(port), str(tenants)], stdout=subprocess.PIPE)
        for port in ports
    ]
    found = [json.loads(client.communicate()[0]) for client in clients]
    waits = sorted(wait for each in found for wait in each["waits_ms"])
    return {
        "phase": name,
        "tenants": tenants,
        "daemons": len(ports),
        "s": round(max(each["s"] for each in found), 1),
        "acquires/s": round(len(waits) / max(each["s"] for each in found)),
        "p50 ms": round(waits[len(waits) // 2], 2),
        "p99 ms": round(waits[len(waits) * 99 // 100], 2),
        "p99.9 ms": round(waits[len(waits) * 999 // 1000], 2),
        "most ms": round(waits[-1], 1),
        "daemon's us": round((sum(map(_read_cpu_s, pids)) - before_s) / len(waits) * 1e6),
        "client's us": round(sum(each["cpu_s"] for each in found) / len(waits) * 1e6),
        "not granted": sum(each["failed"] for each in found),
    }


def _read_cpu_s(pid: int) -> float:
    """Processor time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _use_all(port: int, tenants: int) -> dict[str, Any]:
    """Each tenant once."""
    waits: list[float] = []
    failed = 0
    names = iter(range(tenants))

    async with await bursar.connect(f"bursar://127.0.0.1:{port}") as b:
        llm = b.resource("llm")

        async def use() -> None:
            nonlocal failed
            for number in names:
                began = time.perf_counter()
                try:
                    grant = await llm.acquire(f"tenant-{number}", 1, wait=WAIT_S)
                except (bursar.Refused, bursar.Unknown):
                    failed += 1
                else:
                    grant.settle(1)
                    await grant.release()
                waits.append((time.perf_counter() - began) * 1e3)

        began = time.perf_counter()
        await asyncio.gather(*(use() for _ in range(TOGETHER)))
        took_s = time.perf_counter() - began
        return {"s": took_s, "cpu_s": time.process_time(), "waits_ms": waits, "failed": failed}


def _conclude(tenants: int, rows: list[dict[str, Any]], grown: int) -> dict[str, Any]:
    p99 = max(rows[0]["p99 ms"], rows[2]["p99 ms"])
    bars = [
        {
            "bar": f"first use of all in {FIRST_USE_MAX_S:g} s",
            "found": rows[0]["s"],
            "limit": FIRST_USE_MAX_S,
        },
        {"bar": "p99 of an acquire, first use and turn", "found": p99, "limit": ACQUIRE_P99_MAX_MS},
    ]
    met = all(bar["found"] <= bar["limit"] for bar in bars)
    memory = {"bytes a tenant, each daemon": round(grown / tenants)}
    return {"rows": rows, "bars": bars, "memory": memory, "table": [*rows, memory], "ok": met}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(_use_all(int(sys.argv[1]), int(sys.argv[2])))))
