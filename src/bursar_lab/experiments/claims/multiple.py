"""Sections 5.4 and 5.5: several instances, as processes, on real ZooKeeper servers. Both take long;
stopped in the middle (Ctrl-C) and started again they go on where they were."""

from __future__ import annotations

import asyncio
import statistics as averages
from collections.abc import Iterable, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

from bursar_lab.experiments.claims import figures
from bursar_lab.experiments.claims.kept import KeptRows, Row
from bursar_lab.experiments.claims.live import run_workers
from bursar_lab.experiments.claims.statistics import anova, fit_line, tukey
from bursar_lab.experiments.claims.workloads import draw_shared
from bursar_lab.zookeeper_server import ZookeeperServers

Findings = dict[str, Any]

INSTANCES = 3
TASKS = 5000
RATES = (0.0, 0.05, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
REPEATS = 5
FAULT_FREE_MIN_S = 60.0
AVAILABILITY_TASK_S = 1.0
RUNNING_MAX = 27
"""Tasks of a second each that an instance has done at a time: 5,000 take a little over a minute."""

THESIS_SECONDS_A_CRASH = 0.881


def availability(out: Path, quick: bool) -> Findings:
    """Section 5.4: instances killed with kill -9 at growing rates, on real ZooKeeper."""
    tasks = 400 if quick else TASKS
    rates = (0.0, 0.5, 1.0) if quick else RATES
    kept = KeptRows(out / f"claims-availability{'-quick' * quick}.part")
    cases = [{"rate": rate, "repeat": repeat} for repeat in range(1 if quick else REPEATS) for rate in rates]
    for case in cases:
        if not kept.has(case):
            with ZookeeperServers(1) as servers:
                kept.add(case | asyncio.run(_run_crashing(servers, tasks, case["rate"])))
    rows = kept.finish()
    line = fit_line([row["rate"] for row in rows], [row["seconds"] for row in rows])
    figures.draw_availability(out, rows, line)
    findings: Findings = {
        "table": [*rows, _describe_line(line)],
        "line": line,
        "seconds_a_crash": line["slope"] / line["intercept"],
        "fault_free_seconds": averages.mean(row["seconds"] for row in rows if row["rate"] == 0),
        "thesis": {"seconds a crash": THESIS_SECONDS_A_CRASH, "line": "85.03 c + 96.50", "r2": "above 0.8"},
        "task_seconds": AVAILABILITY_TASK_S,
        "rows": rows,
    }
    if len(rows) > len(rates):
        findings["anova"] = anova(rows, "seconds", ("rate",))
        findings["tukey"] = tukey(rows, "seconds", "rate")
    once = all(row["completed"] == tasks and row["recorded_twice"] == 0 for row in rows)
    findings["ok"] = once and (quick or findings["fault_free_seconds"] >= FAULT_FREE_MIN_S)
    return findings


async def _run_crashing(servers: ZookeeperServers, tasks: int, rate: float) -> Row:
    return await run_workers(
        servers,
        draw_shared(tasks, 10),
        instances=INSTANCES,
        duration=AVAILABILITY_TASK_S,
        crash_rate=rate,
        running_max=RUNNING_MAX,
    )


def _describe_line(line: dict[str, float]) -> Row:
    a_crash_ms = 1000 * line["slope"] / line["intercept"]
    return {
        "rate": f"{line['slope']:.1f} c + {line['intercept']:.1f} s",
        "repeat": f"r2 = {line['r2']:.3f}",
        "seconds": f"{a_crash_ms:.0f} ms a crash (thesis: {1000 * THESIS_SECONDS_A_CRASH:.0f})",
    }


COMBINATIONS = ((100, 1), (100, 10), (100, 100), (1000, 1), (1000, 10), (10_000, 1))
"""(tasks, resources) of section 5.5.1."""

FACTORS = ("servers", "instances", "tasks", "resources")
SCALABILITY_REPEATS = 5
SCALABILITY_TASK_S = 0.1


def scalability(out: Path, quick: bool) -> Findings:
    """Section 5.5: more servers, instances, tasks and resources; what the system itself costs."""
    kept = KeptRows(out / f"claims-scalability{'-quick' * quick}.part")
    for servers_count, cases in groupby(_scalability_cases(quick), key=lambda case: case["servers"]):
        left = [case for case in cases if not kept.has(case)]
        if left:
            with ZookeeperServers(servers_count) as servers:
                for case in left:
                    kept.add(case | {"seconds": asyncio.run(_run_sharing(servers, case))})
    rows = kept.finish()
    figures.draw_scalability(out, rows)
    findings: Findings = {
        "table": list(_average(rows)),
        "task_seconds": SCALABILITY_TASK_S,
        "thesis": {"servers": "F = 24.87", "instances": "F = 0.29, p = 0.75", "tasks": "F = 313.13"},
        "rows": rows,
    }
    if not quick:
        findings["anova"] = anova(rows, "seconds", FACTORS)
        findings["tukey"] = {factor: tukey(rows, "seconds", factor) for factor in FACTORS}
    return findings


def _scalability_cases(quick: bool) -> list[Row]:
    counts = (1, 3) if quick else (1, 3, 5)
    combinations = COMBINATIONS[:2] if quick else COMBINATIONS
    repeats = range(1 if quick else SCALABILITY_REPEATS)
    return [
        {"servers": servers, "repeat": repeat, "instances": instances, "tasks": tasks, "resources": names}
        for servers, repeat, instances, (tasks, names) in product(counts, repeats, counts, combinations)
    ]


async def _run_sharing(servers: ZookeeperServers, case: Row) -> float:
    found = await run_workers(
        servers,
        draw_shared(case["tasks"], case["resources"]),
        instances=case["instances"],
        duration=SCALABILITY_TASK_S,
        running_max=100_000,
        chroot="/" + "-".join(str(case[name]) for name in ("repeat", *FACTORS)),
    )
    return float(found["seconds"])


def _average(rows: Sequence[Row]) -> Iterable[Row]:
    """Mean over the repeats, a line a case."""
    for case in sorted({tuple(row[factor] for factor in FACTORS) for row in rows}):
        seconds = [row["seconds"] for row in rows if tuple(row[factor] for factor in FACTORS) == case]
        yield {**dict(zip(FACTORS, case, strict=True)), "seconds": averages.mean(seconds)}
