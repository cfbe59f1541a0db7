"""Figure 3: what the last of the quota costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bursar_lab.experiments.quotas import figures
from bursar_lab.experiments.quotas.loopback import measure_round_trip_ns
from bursar_lab.experiments.quotas.runs import (
    ALGORITHMS,
    PAPER_WAITING,
    REQUESTS_A_NODE,
    RUNS,
    Result,
    average,
    judge,
    make_loopback,
    make_trace,
    run,
)

NODES = 30
PART = 0.2
PRINTED = "of the printed form's"
COMPARED = (*ALGORITHMS, PAPER_WAITING)
"""The printed form shares out by rates alone. With requests that wait served first, as bursar does,
it needs fewer messages: shown beside it."""


def remaining(out: Path, quick: bool) -> dict[str, Any]:
    network = make_loopback(measure_round_trip_ns())
    each, runs = (1_000, 2) if quick else (REQUESTS_A_NODE, RUNS)
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[tuple[float, int, int]]]] = {}
    for name in ("zipf", "world-cup"):
        found: dict[str, list[Result]] = {algorithm.name: [] for algorithm in COMPARED}
        for seed in range(1, runs + 1):
            trace = make_trace(name, NODES, seed, each)
            for algorithm in COMPARED:
                found[algorithm.name].append(run(algorithm, trace, network, seed))
        rows += _rows(name, found)
        curves[name] = {algorithm: results[0].outcome.curve for algorithm, results in found.items()}
    figures.draw_remaining(out / "quotas-remaining.png", curves)
    bars = [
        judge(
            f"{row['trace']}: the last 10 % costs at most {PART:g} {PRINTED}",
            row[PRINTED],
            row[PRINTED] <= PART,
        )
        for row in rows
        if row["algorithm"] == "bursar"
    ]
    return {
        "workload": f"{NODES} nodes, {each} requests a node, {runs} runs, random placement",
        "rows": rows,
        "figures": ["quotas-remaining.png"],
        "bars": bars,
        "table": rows,
        "ok": quick or all(bar["met"] for bar in bars),
    }


def _rows(trace: str, found: dict[str, list[Result]]) -> list[dict[str, Any]]:
    printed = average(found["paper"], lambda r: r.last_cost)
    waiting = average(found[PAPER_WAITING.name], lambda r: r.last_cost)
    return [
        {
            "trace": trace,
            "algorithm": name,
            "cost until 90 %": round(average(runs, lambda r: r.outcome.cost - r.last_cost)),
            "cost of the last 10 %": round(average(runs, lambda r: r.last_cost)),
            "messages of the last 10 %": round(average(runs, lambda r: r.last_messages)),
            PRINTED: round(average(runs, lambda r: r.last_cost) / printed, 3),
            "of its with waiting first": round(average(runs, lambda r: r.last_cost) / waiting, 3),
        }
        for name, runs in found.items()
    ]
