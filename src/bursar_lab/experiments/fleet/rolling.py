"""Three nodes are restarted one after the other, at half of what they can do: no acquire that may wait a
second fails, for a client that names all three."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from bursar_lab.experiments.fleet.processes import Fleet, read_client, start_client
from bursar_lab.zookeeper_server import ZookeeperServers

NAMES = ("a", "b", "c")
CAPACITY = 400
STREAMS = 6
POLICY = """
[resource.api]
kind = "rate"
servers = {{ "*" = "{capacity}/s" }}
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
"""


def rolling(out: Path, quick: bool) -> dict[str, Any]:
    pause_s = 4.0 if quick else 10.0
    with tempfile.TemporaryDirectory(prefix="bursar-rolling-") as folder, ZookeeperServers(1) as zookeeper:
        fleet = Fleet(Path(folder), zookeeper.url("/fleet"))
        try:
            for name in NAMES:
                fleet.start(name)
            fleet.apply(POLICY.format(capacity=CAPACITY, limit=len(NAMES) * CAPACITY // 2))
            counts = _roll(fleet, pause_s)
        finally:
            fleet.stop()
    failed = sum(sum(each["failed"].values()) for each in counts)
    told = sum(sum(each["told"].values()) for each in counts)
    bars = [{"bar": "acquires with wait=1 that failed, none", "found": failed, "met": failed == 0}]
    return {
        "granted": told,
        "failed": {kind: count for each in counts for kind, count in each["failed"].items()},
        "bars": bars,
        "ok": failed == 0,
    }


def _roll(fleet: Fleet, pause_s: float) -> list[dict[str, Any]]:
    """The load is what the streams of waiting callers make of a limit that is half of the capacity."""
    seconds = (len(NAMES) + 1.5) * pause_s
    clients = [
        start_client(fleet.url(name, *(n for n in NAMES if n != name)), "acme", STREAMS, seconds)
        for name in NAMES
    ]
    for name in NAMES:
        time.sleep(pause_s)
        print(f"  restart {name}", flush=True)
        fleet.nodes[name].stop()
        fleet.start(name)
    return [read_client(child, seconds + 60) for child in clients]
