"""Four nodes on a real ZooKeeper, started with the same command but for the name. Under load, a policy
is applied that cuts a limit, a fifth node joins, one is stopped, one is killed.

acme has a limit and asks everywhere for more; gold has a reservation over all nodes and asks for just
that, everywhere. By the periods that the grants name, acme is never told more than the limit in force,
and gold gets its reservation in every period but those in which something happened and the one after.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bursar_lab.experiments.fleet.processes import Fleet, read_client, start_client
from bursar_lab.zookeeper_server import ZookeeperServers

FIRST = ("a", "b", "c", "d")
FIFTH = "e"
CAPACITY = 500
LIMIT, CUT = 400, 250
RESERVED = 600
ACME_STREAMS, GOLD_STREAMS = 6, 12
PERIOD_S = 1.0
KNOWN_MAX_S = 1.0
MET_MIN = 0.99
CALM_S = 2 * PERIOD_S

POLICY = """
[resource.api]
kind = "rate"
servers = {{ "*" = "{capacity}/s" }}
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
gold = {{ reservation = "{reserved}/s", limit = "{reserved}/s" }}
"""


@dataclass
class Story:
    """What was done when (wall time), and what the clients told of it."""

    events: dict[str, float] = field(default_factory=dict)
    applied_at: float = 0.0
    known_s: float = 0.0
    clients: list[subprocess.Popen[str]] = field(default_factory=list)
    told: dict[str, Counter[int]] = field(default_factory=lambda: {"acme": Counter(), "gold": Counter()})
    seen: dict[int, float] = field(default_factory=dict)
    at_fifth: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def note(self, what: str) -> None:
        self.events[what] = time.time()
        print(f"  {what}", flush=True)

    def hear(self, found: dict[str, Any], *, fifth: bool) -> None:
        for period, tokens in found["told"].items():
            self.told[found["tenant"]][int(period)] += tokens
            if fifth:
                self.at_fifth[int(period)] += tokens
        for period, at in found["seen"].items():
            self.seen[int(period)] = min(at, self.seen.get(int(period), at))
        self.failed.update(found["failed"])


def nodes(out: Path, quick: bool) -> dict[str, Any]:
    pause_s = 6.0 if quick else 12.0
    with tempfile.TemporaryDirectory(prefix="bursar-fleet-") as folder, ZookeeperServers(1) as zookeeper:
        fleet = Fleet(Path(folder), zookeeper.url("/fleet"))
        try:
            story = _run(fleet, pause_s)
        finally:
            fleet.stop()
    return _conclude(story)


def _run(fleet: Fleet, pause_s: float) -> Story:
    story = Story()
    for name in FIRST:
        fleet.start(name)
    fleet.apply(POLICY.format(capacity=CAPACITY, limit=LIMIT, reserved=RESERVED))
    seconds = 5 * pause_s
    for name in FIRST:
        _start_clients(fleet, story, name, seconds)
    time.sleep(pause_s)
    story.note("apply")
    done = fleet.apply(POLICY.format(capacity=CAPACITY, limit=CUT, reserved=RESERVED))
    story.known_s = done["known_after_s"]
    story.applied_at = time.time()
    time.sleep(pause_s)
    story.note("join")
    fleet.start(FIFTH)
    story.note("joined")
    _start_clients(fleet, story, FIFTH, 3 * pause_s - (story.events["joined"] - story.events["join"]))
    time.sleep(pause_s)
    leader = _find_leader(fleet)
    followers = [name for name in FIRST if name != leader]
    story.note(f"stop {followers[0]}")
    fleet.nodes[followers[0]].stop()
    time.sleep(pause_s)
    story.note(f"kill {followers[1]}")
    fleet.nodes[followers[1]].kill()
    for number, child in enumerate(story.clients):
        story.hear(read_client(child, 4 * pause_s + 60), fifth=number >= 2 * len(FIRST))
    return story


def _start_clients(fleet: Fleet, story: Story, name: str, seconds: float) -> None:
    others = [other for other in fleet.ports if other != name]
    url = fleet.url(name, *others)
    story.clients.append(start_client(url, "acme", ACME_STREAMS, seconds))
    story.clients.append(start_client(url, "gold", GOLD_STREAMS, seconds))


def _find_leader(fleet: Fleet) -> str:
    """Who leads, as its log says."""
    leads = {
        name: node.log.read_text(errors="replace").rfind("rate.leading") for name, node in fleet.nodes.items()
    }
    return max(leads, key=lambda name: leads[name])


def _conclude(story: Story) -> dict[str, Any]:
    whole = sorted(story.told["gold"])[2:-3]
    before = [p for p in story.told["acme"] if story.seen[p] < story.events["apply"]]
    after = [p for p in story.told["acme"] if story.seen[p] > story.applied_at + PERIOD_S]
    most_before = max(story.told["acme"][p] for p in before)
    most_after = max(story.told["acme"][p] for p in after)
    calm = [p for p in whole if _is_calm(story, story.seen[p])]
    met = [story.told["gold"][p] >= MET_MIN * RESERVED for p in calm]
    joined = [at for p, at in story.seen.items() if story.at_fifth[p]]
    served_s = min(joined) - story.events["joined"] if joined else float("inf")
    bars = [
        _bar(
            f"seconds from the writing of the new policy until every node runs it, at most {KNOWN_MAX_S}",
            story.known_s,
            KNOWN_MAX_S,
        ),
        _bar(f"told in a period before the cut, at most {LIMIT}", most_before, LIMIT),
        _bar(f"told in a period after the cut, at most {CUT}", most_after, CUT),
        _bar("seconds until the fifth node serves, at most two periods", served_s, 2 * PERIOD_S),
        {
            "bar": f"calm periods in which the reservation of {RESERVED} was met to {MET_MIN:.0%}, all",
            "found": round(sum(met) / len(met), 4),
            "met": all(met),
        },
    ]
    return {
        "periods": len(whole),
        "calm periods": len(calm),
        "least of gold in a calm period": min(story.told["gold"][p] for p in calm),
        "by the fifth node": sum(story.at_fifth.values()),
        "calls that failed": dict(story.failed),
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }


def _is_calm(story: Story, at: float) -> bool:
    """Whether nothing happened in the period or in the one before it."""
    return all(not -PERIOD_S <= at - event <= CALM_S for event in story.events.values())


def _bar(what: str, found: float, most: float) -> dict[str, Any]:
    return {"bar": what, "found": round(found, 3), "met": found <= most}
