"""Figures 4 and 5: from 10 to 100 nodes, and on to 10,000."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

from bursar_lab.experiments.quotas import figures
from bursar_lab.experiments.quotas.grid import tree_parents
from bursar_lab.experiments.quotas.loopback import measure_round_trip_ns
from bursar_lab.experiments.quotas.runs import (
    ALGORITHMS,
    BURSAR_TREE,
    REQUESTS_A_NODE,
    make_loopback,
    make_trace,
    run,
)

NODES = (10, 20, 40, 60, 80, 100)
LARGE = {1_000: 10_000, 10_000: 1_000}
"""Nodes -> requests a node: ten million in all, either way."""

PAPER_AT_100_MS = {"paper": 25.0, "sequential": 346.0}


def scale(out: Path, quick: bool) -> dict[str, Any]:
    network = make_loopback(measure_round_trip_ns())
    each = 500 if quick else REQUESTS_A_NODE
    rows = []
    for nodes in (10, 30) if quick else NODES:
        trace = make_trace("zipf", nodes, 1, each)
        for algorithm in ALGORITHMS:
            rows.append(_row(nodes, each, algorithm.name, run(algorithm, trace, network, 1)))
    for nodes, large_each in ({300: 100} if quick else LARGE).items():
        trace = make_trace("zipf", nodes, 1, large_each)
        result = run(BURSAR_TREE, trace, network, 1, parents=tree_parents(nodes))
        rows.append(_row(nodes, large_each, "bursar", result))
    figures.draw_scale(out / "quotas-scale.png", rows)
    last = {row["algorithm"]: row for row in rows if row["nodes"] == (30 if quick else 100)}
    ratio = last["sequential"]["re-allocation ms"] / last["bursar"]["re-allocation ms"]
    return {
        "rows": rows,
        "faster_than_sequential_at_100": round(ratio, 2),
        "paper_says": round(PAPER_AT_100_MS["sequential"] / PAPER_AT_100_MS["paper"], 1),
        "growth": _growth(rows),
        "figures": ["quotas-scale.png"],
        "table": rows,
    }


def _row(nodes: int, each: int, name: str, result: Any) -> dict[str, Any]:
    central = 2 * result.outcome.granted
    return {
        "nodes": nodes,
        "requests a node": each,
        "algorithm": name,
        "messages": result.messages,
        "cost": result.outcome.cost,
        "messages a node": round(result.messages / nodes, 1),
        "% fewer than central": round(100 * (1 - result.outcome.cost / central), 2),
        "re-allocation ms": round(result.response_ms, 3),
        "% local until 90%": round(100 - 100 * result.outcome.early_waited / max(1, result.outcome.early), 4),
    }


def _growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponents: messages grow like nodes^x, between the smallest and the largest run."""
    growth = {}
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [
            row
            for row in rows
            if row["algorithm"] == name and row["requests a node"] == rows[0]["requests a node"]
        ]
        first, last = mine[0], mine[-1]
        steps = log(last["nodes"] / first["nodes"])
        growth[f"{name}: messages like nodes^x, x"] = round(
            log(last["messages"] / first["messages"]) / steps, 2
        )
        times = last["re-allocation ms"] / first["re-allocation ms"]
        growth[f"{name}: response like nodes^x, x"] = round(log(times) / steps, 2)
    return growth
