"""Table II: how long a re-allocation takes, simulated on two networks, and on real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bursar.world import MILLISECOND_NS
from bursar_lab.experiments.quotas import figures
from bursar_lab.experiments.quotas.loopback import measure_round_trip_ns
from bursar_lab.experiments.quotas.nodes import measure_live
from bursar_lab.experiments.quotas.runs import (
    ALGORITHMS,
    BURSAR_TREE,
    PARALLEL,
    REQUESTS_A_NODE,
    RUNS,
    SEQUENTIAL,
    Network,
    Result,
    average,
    judge,
    make_loopback,
    make_trace,
    make_wan,
    run,
)

NODES = 30
MANY = 100
EACH_WAN = 1_000
"""Requests a node on the wide network, where the sequential baseline falls ever further behind its
requests: it is run once there, and the quota is smaller."""

PAPER_MS = {
    ("sequential", "zipf"): 69.5,
    ("sequential", "world-cup"): 75.8,
    ("paper", "zipf"): 13.0,
    ("paper", "world-cup"): 22.7,
}
FASTER = {"zipf": 5.0, "world-cup": 3.0}
FASTER_THAN_PARALLEL = 1.5


def response(out: Path, quick: bool) -> dict[str, Any]:
    round_trip_ns = measure_round_trip_ns()
    loopback = make_loopback(round_trip_ns)
    networks = [loopback, make_wan(loopback.handling_ns)]
    sizes = (500, 500, 1) if quick else (REQUESTS_A_NODE, EACH_WAN, RUNS)
    rows = [
        row
        for network, each in zip(networks, sizes, strict=False)
        for name in ("zipf", "world-cup")
        for row in _rows(network, name, each, sizes[2])
    ]
    many = _compare_many(networks, sizes[:2], 1 if quick else 2)
    live = measure_live(6 if quick else 16, seconds=2 if quick else 8)
    bars = _check(rows, many)
    figures.draw_responses(out / "quotas-response.png", rows)
    return {
        "workload": f"{NODES} nodes, {sizes[0]} requests a node ({sizes[1]} on wan), random placement",
        "loopback_round_trip_us": round_trip_ns / 1000,
        "rows": rows,
        "at_100_nodes": many,
        "live": live,
        "figures": ["quotas-response.png"],
        "bars": bars,
        "table": [*rows, *many, live],
        "ok": quick or all(bar["met"] for bar in bars),
    }


def _rows(network: Network, trace_name: str, each: int, runs: int) -> list[dict[str, Any]]:
    parents = network.parents(NODES)
    found: dict[str, list[Result]] = {algorithm.name: [] for algorithm in ALGORITHMS}
    for seed in range(1, runs + 1):
        trace = make_trace(trace_name, NODES, seed, each)
        for algorithm in ALGORITHMS:
            if seed == 1 or algorithm is not SEQUENTIAL or network.name != "wan":
                found[algorithm.name].append(run(algorithm, trace, network, seed, parents=parents))
    slowest = average(found["sequential"], lambda r: r.response_ms)
    return [_row(network.name, trace_name, NODES, name, results, slowest) for name, results in found.items()]


def _row(
    network: str, trace: str, nodes: int, name: str, results: list[Result], slowest: float
) -> dict[str, Any]:
    took = average(results, lambda r: r.response_ms)
    waits = [mean(r.outcome.waits_ns) / MILLISECOND_NS for r in results if r.outcome.waits_ns]
    return {
        "network": network,
        "trace": trace,
        "nodes": nodes,
        "algorithm": name,
        "re-allocation ms": round(took, 3),
        "paper ms": PAPER_MS.get((name, trace), ""),
        "times faster than sequential": round(slowest / took, 2) if took else "",
        "requests that waited %": round(
            average(results, lambda r: 100 * r.outcome.waited / r.outcome.granted), 3
        ),
        "their wait ms": round(mean(waits), 3) if waits else 0.0,
    }


def _compare_many(networks: list[Network], sizes: Sequence[int], runs: int) -> list[dict[str, Any]]:
    """bursar beside the parallel baseline at 100 nodes."""
    rows = []
    for network, each in zip(networks, sizes, strict=True):
        parents = network.parents(MANY)
        found: dict[str, list[Result]] = {BURSAR_TREE.name: [], PARALLEL.name: []}
        for seed in range(1, runs + 1):
            trace = make_trace("zipf", MANY, seed, each)
            for algorithm in (BURSAR_TREE, PARALLEL):
                found[algorithm.name].append(run(algorithm, trace, network, seed, parents=parents))
        parallel = average(found[PARALLEL.name], lambda r: r.response_ms)
        mine = average(found[BURSAR_TREE.name], lambda r: r.response_ms)
        rows.append(
            {
                "network": network.name,
                "trace": "zipf",
                "nodes": MANY,
                "algorithm": "bursar beside parallel",
                "re-allocation ms": round(mine, 3),
                "parallel ms": round(parallel, 3),
                "times faster than parallel": round(parallel / mine, 2),
            }
        )
    return rows


def _check(rows: list[dict[str, Any]], many: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bars = []
    for row in rows:
        if row["algorithm"] == "bursar":
            times, wanted = row["times faster than sequential"], FASTER[row["trace"]]
            name = f"{row['network']}, {row['trace']}: at least {wanted:g} times faster than sequential"
            bars.append(judge(name, times, times >= wanted))
    for row in many:
        times = row["times faster than parallel"]
        name = f"{row['network']}, {MANY} nodes: at least {FASTER_THAN_PARALLEL} times faster than parallel"
        bars.append(judge(name, times, times >= FASTER_THAN_PARALLEL))
    return bars
