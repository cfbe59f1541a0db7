"""The experiments on this machine: real processes over records in shared memory.

What the clients contend for is processors and memory bandwidth, which the operating system shares
evenly, as the paper's network card did; but what a virtual machine has of them varies. Every value (a
client alone, all together, the deviation) is measured here first. `behind_card` has the same with a
capacity that holds still.
"""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np

from bursar.profile.measures import CLIENTS
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools import kills
from bursar_lab.experiments.pools.bars import Findings, at_least, below, conclude
from bursar_lab.experiments.pools.figures import draw_clients, draw_totals
from bursar_lab.experiments.pools.place import (
    Place,
    measure_profile,
    open_place,
    run_all,
    run_bare,
    run_tokens,
    run_two_sided,
)

ZIPF = 0.6
KILLS_PERIOD_NS = 500 * MILLISECOND_NS
KILLS_SEED = 7


def zipf(total: float, clients: int = CLIENTS) -> list[int]:
    weights = np.array([1 / (k + 1) ** ZIPF for k in range(clients)])
    return [int(share) for share in total * weights / weights.sum()]


def one(out: pathlib.Path, quick: bool) -> Findings:
    """One-sided against two-sided; a client alone against all (figures 6 and 7)."""
    seconds = 1.0 if quick else 4.0
    papers = {1: "400 / 327", 2: "800 / 430", CLIENTS: "1570 / 430"}
    rows: list[dict[str, Any]] = []
    with open_place() as place:
        for clients in (1, 2, CLIENTS):
            one_sided = sum(run_bare(place, clients, seconds))
            two_sided = sum(run_two_sided(place, clients, seconds))
            rows.append(
                {
                    "clients": clients,
                    "one-sided /s": round(one_sided),
                    "two-sided /s": round(two_sided),
                    "ratio": one_sided / two_sided,
                    "paper's, K": papers[clients],
                }
            )
    series = {
        f"{row['clients']} clients": {"one-sided": row["one-sided /s"], "two-sided": row["two-sided /s"]}
        for row in rows
    }
    figure = draw_totals(out / "pools-live-1.png", series, "I/Os a second")
    alone = rows[0]["one-sided /s"] / rows[-1]["one-sided /s"]
    return conclude(
        {"table": rows, "a client alone / the node": alone, "figures": [figure]},
        at_least("one-sided over two-sided, all clients", rows[-1]["ratio"], 1.0),
        below("a client alone over the saturated node", alone, 1.0),
    )


def processors(out: pathlib.Path, quick: bool) -> Findings:
    """90 % reserved, Zipf, without a card: what the processors carry is the node, and it varies."""
    seconds = 6.0 if quick else 30.0
    with open_place() as place:
        profile = measure_profile(place, 2.0 if quick else 8.0)
        # Others may use this machine too: promise a little less than its mean.
        capacity = int(profile.capacity - profile.sigma)
        reservations = zipf(0.9 * capacity)
        bare = run_bare(place, CLIENTS, seconds / 3)
        run = run_tokens(place, reservations, seconds, capacity)
    rows: list[dict[str, Any]] = [
        {
            "client": f"C{k + 1}",
            "reservation": reservation,
            "bare": round(bare[k]),
            "with tokens": round(float(run.done[k].mean())),
            "least": int(run.done[k].min()),
            "met": float((run.done[k] >= reservation).mean()),
        }
        for k, reservation in enumerate(reservations)
    ]
    series = {
        name: [row[name] / 1000 for row in rows] for name in ("reservation", "bare", "with tokens", "least")
    }
    figure = draw_clients(out / "pools-live-processors.png", {"90 % reserved, Zipf": series})
    met = run.met(reservations)
    total = {"client": "all", "bare": round(sum(bare)), "with tokens": round(run.total()), "met": met}
    findings = {
        "table": [*rows, total],
        "profile": {"client": profile.client, "capacity": profile.capacity, "sigma": profile.sigma},
        "periods": int(run.done.shape[1]),
        "met": met,
        "of bare": run.total() / sum(bare),
        "figures": [figure],
    }
    return conclude(
        findings,
        below("the largest client over its reservation, bare", bare[0] / reservations[0], 1.0),
        at_least("periods after the warm-up", run.done.shape[1], 1 if quick else 20),
    )


def cost(out: pathlib.Path, quick: bool) -> Findings:
    """Throughput with tokens that never run out, as a part of bare, in alternating turns."""
    with open_place() as place:
        ratios = {
            "read_many": measure_cost(place, quick, many=True),
            "read": measure_cost(place, quick, many=False),
        }
    medians = {call: statistics.median(found) for call, found in ratios.items()}
    rows = [
        {"call": call, "of bare": medians[call], "lowest": min(found), "highest": max(found)}
        for call, found in ratios.items()
    ]
    return conclude(
        {"table": rows, "pairs": ratios},
        at_least("read_many over bare, median", medians["read_many"], 0.97),
        at_least("read over bare, median", medians["read"], 0.8),
    )


def measure_cost(place: Place, quick: bool, *, many: bool) -> list[float]:
    """One client with and without tokens, in turns."""
    pairs = 2 if quick else 15
    seconds = 4.0 * pairs + 5.0
    place.forget_words()
    plenty = 1 << 27
    monitor = place.config("monitor", seconds=seconds, reservations={"C1": plenty}, capacity=2 * plenty)
    client = place.config("pairs", tenant="C1", seconds=seconds, pairs=pairs, many=many, paced=False)
    _, counts = run_all(place, [monitor, client], seconds)
    return counts.ratios


def kill(out: pathlib.Path, quick: bool) -> Findings:
    """kill -9 of clients and of the monitor at random: no period issues more than its estimate, and
    clients that live keep their reservation in periods with a monitor."""
    with open_place() as place:
        profile = measure_profile(place, 2.0)
    # The rest of the node is left to the processes that start: each takes a second of a processor.
    capacity = int(0.25 * profile.capacity * KILLS_PERIOD_NS / SECOND_NS)
    reservations = {f"C{k + 1}": share for k, share in enumerate(zipf(0.8 * capacity))}
    return kills.run_kills(8.0 if quick else 60.0, KILLS_SEED, reservations, capacity, KILLS_PERIOD_NS)
