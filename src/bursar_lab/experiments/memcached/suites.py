"""Two tenants of one program, who share its client and connection: acme, who has tokens enough, and guest,
who is refused most of the time. Whatever guest is told, acme's answers are those of a dictionary."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from bursar_lab.experiments.memcached.libraries import LIBRARIES, Denied, Library
from bursar_lab.experiments.memcached.standing import Standing, stand

OPERATIONS = 200
MISS = ("--refused-reads", "miss", "--refused-writes", "not-stored", "--refused-deletes", "not-found")
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "an error": (1, ()),
    "a miss": (1, MISS),
    "an error, 3 servers": (3, ()),
}


def clients(out: Path, quick: bool) -> dict[str, Any]:
    """Nobody of acme's may fail, and where a refusal looks like a miss nobody connects twice."""
    table: list[dict[str, Any]] = []
    for way, (servers, options) in WAYS.items():
        with stand(servers, *options) as found:
            table += [{"refused as": way, "library": name, **run(name, found)} for name in LIBRARIES]
    failed = sum(row["acme failed"] + row["acme wrong"] + row["guest wrong"] for row in table)
    again = sum(row["connections"] - 1 for row in table if row["refused as"] == "a miss")
    refused = min(row["guest refused"] for row in table)
    bars = [
        {"bar": "acme's and guest's answers are right", "found": f"{failed} wrong", "met": failed == 0},
        {"bar": "guest is refused in each suite", "found": f"{refused} at least", "met": refused > 0},
        {"bar": "a miss ends no connection", "found": f"{again} ended", "met": again == 0},
    ]
    return {"table": table, "bars": bars, "ok": all(bar["met"] for bar in bars)}


def run(name: str, found: Standing) -> dict[str, int]:
    """One library's suite: its operations, and how often it had to connect."""
    before, refused = found.count("connections_total"), found.count("refused_total")
    library = LIBRARIES[name](found.port)
    told = play(library, name, random.Random(7))
    library.close()
    connections = found.count("connections_total") - before
    return {**told, "guest refused": found.count("refused_total") - refused, "connections": connections}


def play(library: Library, prefix: str, rng: random.Random) -> dict[str, int]:
    """Every fourth operation is guest's."""
    holds: dict[str, bytes | None] = {}
    told = {"acme": 0, "acme failed": 0, "acme wrong": 0, "guest": 0, "guest wrong": 0}
    for number in range(OPERATIONS):
        tenant = "guest" if number % 4 == 3 else "acme"
        key = f"{tenant}:{prefix}:{rng.randrange(20)}"
        told[tenant] += 1
        try:
            right = _do(library, key, holds, rng, tenant == "guest")
        except Denied:
            told["acme failed"] += tenant == "acme"
            continue
        told[f"{tenant} wrong"] += not right
    return told


def _do(
    library: Library, key: str, holds: dict[str, bytes | None], rng: random.Random, may_miss: bool
) -> bool:
    """One operation; whether its answer is what it should be. Who may be refused may be told of a miss."""
    match rng.choice(["set", "get", "get", "get", "delete"]):
        case "set":
            value = b"v%d\r\nEND\r\n" % rng.randrange(1000)
            stored = library.set(key, value)
            if stored:
                holds[key] = value
            return stored or may_miss
        case "delete":
            there = holds.get(key) is not None
            gone = library.delete(key)
            if gone:
                holds[key] = None
            return gone == there or may_miss
        case _:
            value_found = library.get(key)
            return value_found == holds.get(key) or (may_miss and value_found is None)
