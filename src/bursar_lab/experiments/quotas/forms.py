"""bursar's rules beside the printed ones with the same retry rules, on two networks.

The paper does not say when a node whose need was not met asks again. Read as "at once" (here: after a
millisecond), the printed form asks very often, mostly its own neighbourhood, which has nothing: many short
re-allocations that bring nothing make its mean short, and its costs high. Here it waits as bursar does, so
that what differs is the algorithm. Beside it: the same with requests that wait served first, the form that
asks every millisecond, and rates as equation 4 has them, a part of the quota an aggregation.

What a caller has of it all is the last column: what its requests waited, those that did not wait included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from bursar.quotas.rules import BURSAR, PAPER
from bursar.world import MILLISECOND_NS
from bursar_lab.experiments.quotas.grid import MeteredBook
from bursar_lab.experiments.quotas.loopback import measure_round_trip_ns
from bursar_lab.experiments.quotas.runs import (
    BURSAR_TREE,
    REQUESTS_A_NODE,
    RUNS,
    Algorithm,
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
EACH_WAN = 1_000

PRINTED = replace(PAPER, retry_ns=BURSAR.retry_ns, retry_max_ns=BURSAR.retry_max_ns)
PER_EVENT_NAME = "printed, eq. 4 per event"
FORMS = (
    BURSAR_TREE,
    Algorithm("printed", PRINTED, MeteredBook),
    Algorithm("printed, waiting first", replace(PRINTED, by_rate_only=False), MeteredBook),
    Algorithm("printed, every ms", PAPER, MeteredBook),
    Algorithm(PER_EVENT_NAME, replace(PRINTED, per_event=True), MeteredBook),
)


def forms(out: Path, quick: bool) -> dict[str, Any]:
    loopback = make_loopback(measure_round_trip_ns())
    sizes, runs = ((500, 500), 1) if quick else ((REQUESTS_A_NODE, EACH_WAN), RUNS)
    rows = [
        row
        for network, each in zip((loopback, make_wan(loopback.handling_ns)), sizes, strict=True)
        for trace in ("zipf", "world-cup")
        for row in _compare(network, trace, each, runs)
    ]
    bars = _check(rows)
    return {
        "workload": f"{NODES} nodes, {sizes[0]} requests a node ({sizes[1]} on wan), {runs} runs",
        "rows": rows,
        "bars": bars,
        "table": rows,
        "ok": quick or all(bar["met"] for bar in bars),
    }


def _compare(network: Network, trace_name: str, each: int, runs: int) -> list[dict[str, Any]]:
    parents = network.parents(NODES)
    traces = [make_trace(trace_name, NODES, seed, each) for seed in range(1, runs + 1)]
    found = {
        form.name: [run(form, trace, network, seed, parents=parents) for seed, trace in enumerate(traces, 1)]
        for form in FORMS
    }
    return [_row(network.name, trace_name, name, results) for name, results in found.items()]


def _row(network: str, trace: str, name: str, results: Sequence[Result]) -> dict[str, Any]:
    took = [each for result in results for each in result.outcome.durations_ns]
    waits = [each for result in results for each in result.outcome.waits_ns]
    granted = sum(result.outcome.granted for result in results)
    return {
        "network": network,
        "trace": trace,
        "algorithm": name,
        "messages": round(average(results, lambda r: r.messages)),
        "cost": round(average(results, lambda r: r.outcome.cost)),
        "cost of the last 10 %": round(average(results, lambda r: r.last_cost)),
        "re-allocations": round(len(took) / len(results)),
        "mean ms": round(mean(took) / MILLISECOND_NS, 3) if took else 0.0,
        "median ms": round(median(took) / MILLISECOND_NS, 3) if took else 0.0,
        "% waited": round(100 * len(waits) / granted, 3),
        "their wait ms": round(mean(waits) / MILLISECOND_NS, 3) if waits else 0.0,
        "wait of all, ms": round(sum(waits) / granted / MILLISECOND_NS, 4),
    }


def _check(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """bursar's costs and waits beside those of the printed form with the same retry rules."""
    bars = []
    for mine, printed in _pair(rows):
        where = f"{mine['network']}, {mine['trace']}"
        for what in ("cost", "cost of the last 10 %", "wait of all, ms"):
            part = mine[what] / printed[what] if printed[what] else 1.0
            bars.append(
                judge(f"{where}: {what}, of the printed form's, at most 1", round(part, 3), part <= 1)
            )
    return bars


def _pair(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    named = {(row["network"], row["trace"], row["algorithm"]): row for row in rows}
    return [
        (row, named[network, trace, "printed"])
        for (network, trace, name), row in named.items()
        if name == BURSAR_TREE.name
    ]
