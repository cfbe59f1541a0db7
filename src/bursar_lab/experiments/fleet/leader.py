"""The leader of a rate is killed (kill -9) every five seconds, and started again at once: four nodes on a
real ZooKeeper, each with a server, at defaults; a tenant that always wants more than its limit, everywhere.

First nothing happens, then the kills begin, in one run and with the same clients. What is killed is a whole
node, the leader and its server: what that server still had of the period is lost with it, since nobody can
know that its clients were not told of it. So the periods in which a node died are listed beside all others.

How much that is depends on when in its period the node dies: all of its part at the beginning, nothing at the
end. So that chance does not decide, the kills are spread evenly over a period: each comes five seconds and a
twelfth of a period after the one before. What had to be lost is told: an even part of what was left then.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass
class Heard:
    """What all clients were told, by period and by moment, and when a period was first heard of."""

    told: Counter[int] = field(default_factory=Counter)
    served: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    seen: dict[int, float] = field(default_factory=dict)

    def add(self, found: Mapping[str, Any]) -> None:
        self.told.update({int(period): tokens for period, tokens in found["told"].items()})
        self.served.update({int(moment): tokens for moment, tokens in found["served"].items()})
        self.failed.update(found["failed"])
        for period, moment in found["seen"].items():
            self.seen[int(period)] = min(moment, self.seen.get(int(period), moment))

    def find_period(self, moment: float) -> int:
        return max((p for p in self.seen if self.seen[p] <= moment), key=self.seen.__getitem__)


def _run(fleet: Fleet, calm_s: float, kills: int) -> dict[str, Any]:
    wild_s = kills * EVERY_S + PERIOD_S
    clients = [
        start_client(
            fleet.url(name, *(n for n in NAMES if n != name)), "acme", STREAMS, WARM_S + calm_s + wild_s + 1
        )
        for name in NAMES
    ]
    time.sleep(WARM_S)
    began = time.time()
    time.sleep(calm_s)
    killing = time.time()
    killed = [_kill_leader(fleet, killing + number * (EVERY_S + PERIOD_S / kills)) for number in range(kills)]
    time.sleep(max(0.0, killing + wild_s - time.time()))
    ended = time.time()
    heard = Heard()
    for child in clients:
        heard.add(read_client(child, 60))
    return _tell_deaths(heard, killed, began, ended) | _conclude(heard, killed, (began, killing, ended))


def _tell_deaths(heard: Heard, killed: list[tuple[str, float]], began: float, ended: float) -> dict[str, Any]:
    died_in = [heard.find_period(at) for _, at in killed]
    left = [max(0.0, 1 - (at - heard.seen[p]) / PERIOD_S) for (_, at), p in zip(killed, died_in, strict=True)]
    whole = [p for p, at in heard.seen.items() if began + PERIOD_S < at < ended - PERIOD_S]
    wild = LIMIT * (ended - killed[0][1]) / PERIOD_S
    return {
        "told in the periods in which a node died": [heard.told[p] for p in died_in],
        "of which there was still to come": [round(part, 2) for part in left],
        "the most that is possible without what the dead had": round(
            1 - sum(left) * LIMIT / len(NAMES) / wild, 4
        ),
        "least told in any other whole period": min(heard.told[p] for p in whole if p not in died_in),
    }


def _kill_leader(fleet: Fleet, moment: float) -> tuple[str, float]:
    """At that moment. Who it was, and when."""
    time.sleep(max(0.0, moment - time.time()))
    name = asyncio.run(_find_leader(fleet))
    print(f"  kill {name}", flush=True)
    at = time.time()
    fleet.nodes[name].kill()
    fleet.start(name)
    return name, at


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
    heard: Heard, killed: list[tuple[str, float]], moments: tuple[float, float, float]
) -> dict[str, Any]:
    began, killing, ended = moments
    told, served = heard.told, heard.served
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
        "killed": " ".join(name for name, _ in killed),
        "served a second without kills": round(calm, 1),
        "served a second with kills": round(wild, 1),
        "longest gap without kills, s": round(calm_gap_s, 2),
        "longest gap with kills, s": round(wild_gap_s, 2),
        "told a period, from the least": sorted(told.values())[:10],
        "periods": len(told),
        "calls that failed": dict(heard.failed),
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
