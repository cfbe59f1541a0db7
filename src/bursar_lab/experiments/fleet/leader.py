"""The leader of a rate is killed (kill -9) every five seconds, and started again at once: four nodes on a
real ZooKeeper, each with a server, at defaults; a tenant that always wants more than its limit, everywhere.

First nothing happens, then the kills begin, in one run and with the same clients. What is killed is a whole
node, the leader and its server: what that server still had of the period is lost with it, since nobody can
know that its clients were not told of it. So the periods in which a node died are listed beside all others.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bursar
from bursar.errors import BursarError
from bursar_lab.experiments.fleet.processes import BIN_S, Fleet, read_client, start_client
from bursar_lab.zookeeper_server import ZookeeperServers

NAMES = ("a", "b", "c", "d")
CAPACITY, LIMIT = 500, 400
STREAMS = 8
EVERY_S = 5.0
WARM_S = 4.0
PERIOD_S = 1.0
SERVED_MIN = 0.97
ASK_TIMEOUT_S = 2.0

POLICY = f"""
[resource.api]
kind = "rate"
servers = {{ "*" = "{CAPACITY}/s" }}
[resource.api.tenant]
acme = {{ limit = "{LIMIT}/s" }}
"""


def leader(out: Path, quick: bool) -> dict[str, Any]:
    calm_s, kills = (15.0, 4) if quick else (30.0, 12)
    with tempfile.TemporaryDirectory(prefix="bursar-leader-") as folder, ZookeeperServers(1) as zookeeper:
        fleet = Fleet(Path(folder), zookeeper.url("/fleet"))
        try:
            for name in NAMES:
                fleet.start(name)
            _apply(fleet)
            return _run(fleet, calm_s, kills)
        finally:
            fleet.stop()


def _apply(fleet: Fleet) -> None:
    """On a busy machine nodes may take longer to know it than `apply` waits."""
    try:
        fleet.apply(POLICY)
    except BursarError as error:
        print(f"  {str(error)[:120]}", flush=True)
    asyncio.run(_find_leader(fleet))


def _run(fleet: Fleet, calm_s: float, kills: int) -> dict[str, Any]:
    seconds = WARM_S + calm_s + kills * EVERY_S
    clients = [
        start_client(fleet.url(name, *(n for n in NAMES if n != name)), "acme", STREAMS, seconds + 1)
        for name in NAMES
    ]
    time.sleep(WARM_S)
    began = time.time()
    time.sleep(calm_s)
    killing = time.time()
    killed, at = [], []
    for number in range(kills):
        time.sleep(max(0.0, killing + number * EVERY_S - time.time()))
        at.append(time.time())
        killed.append(_kill_leader(fleet))
    time.sleep(max(0.0, killing + kills * EVERY_S - time.time()))
    ended = time.time()
    told: Counter[int] = Counter()
    served: Counter[int] = Counter()
    failed: Counter[str] = Counter()
    seen: dict[int, float] = {}
    for child in clients:
        found = read_client(child, 60)
        told.update({int(period): tokens for period, tokens in found["told"].items()})
        served.update({int(moment): tokens for moment, tokens in found["served"].items()})
        failed.update(found["failed"])
        for period, moment in found["seen"].items():
            seen[int(period)] = min(moment, seen.get(int(period), moment))
    dying = {max((p for p in seen if seen[p] <= moment), key=seen.__getitem__) for moment in at}
    whole = [p for p in seen if began + PERIOD_S < seen[p] < ended - PERIOD_S]
    parts = {
        "told in the periods in which a node died": [told[p] for p in sorted(dying)],
        "least told in any other whole period": min(told[p] for p in whole if p not in dying),
    }
    return parts | _conclude(told, served, failed, killed, (began, killing, ended))


def _kill_leader(fleet: Fleet) -> str:
    name = asyncio.run(_find_leader(fleet))
    print(f"  kill {name}", flush=True)
    fleet.nodes[name].kill()
    fleet.start(name)
    return name


async def _find_leader(fleet: Fleet) -> str:
    """Who says that it leads, of the latest epoch."""
    while True:
        epochs = {name: await _ask_epoch(fleet.url(name)) for name in NAMES}
        if max(epochs.values()) > 0:
            return max(epochs, key=lambda name: epochs[name])
        await asyncio.sleep(0.05)


async def _ask_epoch(url: str) -> int:
    """The epoch in which the node leads; 0 if it does not, or does not say."""
    try:
        async with await bursar.connect(url, timeout=ASK_TIMEOUT_S) as b:
            statistics = await b.statistics("api")
            rate = statistics.part
            return int(rate["epoch"]) if rate["leading"] else 0
    except BursarError:
        return 0


def _conclude(
    told: Counter[int],
    served: Counter[int],
    failed: Counter[str],
    killed: list[str],
    moments: tuple[float, float, float],
) -> dict[str, Any]:
    began, killing, ended = moments
    calm, calm_gap_s = _count(served, began, killing)
    wild, wild_gap_s = _count(served, killing, ended)
    most = max(told.values())
    part = wild / calm
    bars = [
        {
            "bar": f"served while leaders are killed, of what it is without, at least {SERVED_MIN:.0%}",
            "found": round(part, 4),
            "met": part >= SERVED_MIN,
        },
        {"bar": f"told in any period, at most {LIMIT}", "found": most, "met": most <= LIMIT},
    ]
    return {
        "kills": len(killed),
        "killed": " ".join(killed),
        "served a second without kills": round(calm, 1),
        "served a second with kills": round(wild, 1),
        "longest gap without kills, s": round(calm_gap_s, 2),
        "longest gap with kills, s": round(wild_gap_s, 2),
        "told a period, from the least": sorted(told.values())[:10],
        "periods": len(told),
        "calls that failed": dict(failed),
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }


def _count(served: Counter[int], since: float, until: float) -> tuple[float, float]:
    """Served a second, and the longest time in which nothing was."""
    bins = range(int(since / BIN_S) + 1, int(until / BIN_S))
    longest = run = 0
    for moment in bins:
        run = 0 if served[moment] else run + 1
        longest = max(longest, run)
    return sum(served[moment] for moment in bins) / (len(bins) * BIN_S), longest * BIN_S
