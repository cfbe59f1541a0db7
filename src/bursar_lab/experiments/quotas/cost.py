"""Figure 2: how many messages, beside a centralised quota (two messages a request)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bursar_lab.experiments.quotas import figures
from bursar_lab.experiments.quotas.bound import FANOUT, count_messages
from bursar_lab.experiments.quotas.bound import NODES as TREE_NODES
from bursar_lab.experiments.quotas.loopback import measure_round_trip_ns
from bursar_lab.experiments.quotas.runs import (
    ALGORITHMS,
    REQUESTS_A_NODE,
    RUNS,
    Network,
    Result,
    average,
    judge,
    make_loopback,
    make_trace,
    run,
)

NODES = 30
PAPER_REDUCTION = {"paper": 92.0, "sequential": 85.0}
FEWER_THAN_CENTRAL = 92.0
FEWER_THAN_BASELINE = 42.0
LOCAL_GRANTS = 99.0


def cost(out: Path, quick: bool) -> dict[str, Any]:
    network = make_loopback(measure_round_trip_ns())
    each, runs = (1_000, 2) if quick else (REQUESTS_A_NODE, RUNS)
    results = {name: _run_all(name, network, each, runs) for name in ("zipf", "world-cup")}
    rows = [row for name, found in results.items() for row in _rows(name, found)]
    least, most = count_messages()
    bars = [*_check(rows), _check_bound(least, most)]
    figures.draw_bars(out / "quotas-cost.png", rows)
    return {
        "workload": f"{NODES} nodes, {each} requests a node, {runs} runs, random placement",
        "rows": rows,
        "messages_of_one_reallocation": {"least": least, "most": most, "bound": "3M to 3N"},
        "figures": ["quotas-cost.png"],
        "bars": bars,
        "table": rows,
        "ok": quick or all(bar["met"] for bar in bars),
    }


def _run_all(name: str, network: Network, each: int, runs: int) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {algorithm.name: [] for algorithm in ALGORITHMS}
    for seed in range(1, runs + 1):
        trace = make_trace(name, NODES, seed, each)
        for algorithm in ALGORITHMS:
            found[algorithm.name].append(run(algorithm, trace, network, seed))
    return found


def _rows(trace: str, found: dict[str, list[Result]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    baseline_cost = average(found["sequential"], lambda r: r.outcome.cost)
    baseline_messages = average(found["sequential"], lambda r: r.messages)
    for name, runs in found.items():
        messages, weighed = average(runs, lambda r: r.messages), average(runs, lambda r: r.outcome.cost)
        central = average(runs, lambda r: 2 * r.outcome.granted)
        waited = average(runs, lambda r: 100 * r.outcome.early_waited / r.outcome.early)
        rows.append(
            {
                "trace": trace,
                "algorithm": name,
                "messages": round(messages),
                "of them acks": round(average(runs, lambda r: r.outcome.acks)),
                "cost": round(weighed),
                "% fewer than central": round(100 * (1 - weighed / central), 2),
                "paper says": PAPER_REDUCTION.get(name, ""),
                "% fewer than baseline": round(100 * (1 - weighed / baseline_cost), 1),
                "% fewer, unweighed": round(100 * (1 - messages / baseline_messages), 1),
                "% local until 90%": round(100 - waited, 4),
            }
        )
    return rows


def _check(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bars = []
    for row in rows:
        if row["algorithm"] == "bursar":
            for what, least in (
                ("% fewer than central", FEWER_THAN_CENTRAL),
                ("% fewer than baseline", FEWER_THAN_BASELINE),
                ("% local until 90%", LOCAL_GRANTS),
            ):
                bars.append(
                    judge(f"{row['trace']}: {what}, at least {least:g}", row[what], row[what] >= least)
                )
    return bars


def _check_bound(least: int, most: int) -> dict[str, Any]:
    """Section IV-B3, of the printed form. Who asks saves one message: its request is its answer."""
    low, high = 3 * FANOUT - 1, 3 * TREE_NODES
    name = f"printed form: a re-allocation takes {low} (3M - 1) to {high} (3N) messages; least {least}, most"
    return judge(name, most, low <= least <= most <= high)


def sizes(out: Path, quick: bool) -> dict[str, Any]:
    """The same quota asked for in smaller and larger pieces (section V-A varies the sizes)."""
    network = make_loopback(measure_round_trip_ns())
    quota = (1_000 if quick else REQUESTS_A_NODE) * NODES * 100
    rows = []
    for size in (10, 30, 100, 300, 1_000):
        trace = make_trace("zipf", NODES, 1, quota // NODES // size, size)
        for algorithm in ALGORITHMS:
            result = run(algorithm, trace, network, 1, quota=quota)
            rows.append(
                {
                    "request": size,
                    "algorithm": algorithm.name,
                    "messages": result.messages,
                    "cost": result.outcome.cost,
                    "% of central": round(100 * result.outcome.cost / (2 * result.outcome.granted), 2),
                }
            )
    figures.draw_sizes(out / "quotas-sizes.png", rows)
    return {"quota": quota, "rows": rows, "figures": ["quotas-sizes.png"], "table": rows}
