"""Four client processes of one daemon share one tenant's limit; beside them another tenant has three
quarters of the server reserved, and a fifth client is idle but for one request.

By the periods that the grants name, the sum over the clients must never pass the limit and use at
least 97 % of it; the tenant with the reservation must get 99 % of it in every period.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar_lab.processes import await_port

CLIENT = "bursar_lab.experiments.door.client"
CAPACITY = 2_000
RESERVED = 1_500
LIMIT = 400
STREAMS = 10
CLIENTS = 4
USED_MIN = 0.97
MET_MIN = 0.99

POLICY = """
[resource.api]
kind = "rate"
servers = {{ here = "{capacity}/s" }}
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
gold = {{ reservation = "{reserved}/s", limit = "{reserved}/s" }}
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{state}"
"""


def clients(out: Path, quick: bool) -> dict[str, Any]:
    seconds = 8 if quick else 30
    with tempfile.TemporaryDirectory(prefix="bursar-clients-") as folder:
        port = find_free_port()
        policy = Path(folder) / "policy.toml"
        policy.write_text(
            POLICY.format(
                capacity=CAPACITY, limit=LIMIT, reserved=RESERVED, port=port, state=Path(folder) / "state"
            )
        )
        daemon = subprocess.Popen(
            [sys.executable, "-m", "bursar", "serve", str(policy)], stderr=subprocess.DEVNULL
        )
        try:
            await_port(port, daemon)
            counts = _run_clients(f"bursar://127.0.0.1:{port}", seconds)
        finally:
            daemon.terminate()
            daemon.wait(10)
    return _conclude(counts)


def _run_clients(url: str, seconds: int) -> list[dict[str, Any]]:
    kinds = [("acme", STREAMS)] * CLIENTS + [("gold", 40), ("acme", 0)]
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bursar_lab.experiments.door.client",
                url,
                tenant,
                str(streams),
                str(seconds),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for tenant, streams in kinds
    ]
    return [json.loads(child.communicate(timeout=seconds + 60)[0]) for child in children]


def _conclude(counts: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Counter[int]] = {"acme": Counter(), "gold": Counter()}
    lots = 0
    for each in counts:
        lots += each["from_lots"]
        for period, tokens in each["told"].items():
            told[each["tenant"]][int(period)] += tokens
    # The first and last periods are not whole: clients start and end at any moment.
    busy = [period for period in sorted(told["gold"]) if period in told["acme"]][2:-2]
    acme = [told["acme"][period] for period in busy]
    gold = [told["gold"][period] for period in busy]
    most, used = max(told["acme"].values()), sum(acme) / (LIMIT * len(busy))
    met = sum(tokens >= MET_MIN * RESERVED for tokens in gold) / len(busy)
    bars = [
        {"bar": f"told in a period, at most the limit of {LIMIT}", "found": most, "met": most <= LIMIT},
        {"bar": f"of the limit used, at least {USED_MIN}", "found": round(used, 4), "met": used >= USED_MIN},
        {
            "bar": f"periods in which the reservation of {RESERVED} was met to {MET_MIN:.0%}, at least all",
            "found": round(met, 4),
            "met": met == 1.0,
        },
    ]
    table = [
        {"tenant": "acme", "least": min(acme), "mean": round(sum(acme) / len(acme), 1), "most": max(acme)},
        {"tenant": "gold", "least": min(gold), "mean": round(sum(gold) / len(gold), 1), "most": max(gold)},
    ]
    return {
        "table": table,
        "periods": len(busy),
        "from lots": lots,
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }
