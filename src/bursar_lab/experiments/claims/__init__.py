"""Chapter 5 of the thesis, run again: the order in virtual time, and the system on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import statistics as averages
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bursar.claims.queue import conflict_order, release_order
from bursar.claims.requirements import Mode
from bursar_lab.experiments.claims import figures
from bursar_lab.experiments.claims.live import run_live
from bursar_lab.experiments.claims.multiple import availability, scalability
from bursar_lab.experiments.claims.simulation import run_fifo_locks, run_lock_server, run_queue
from bursar_lab.experiments.claims.statistics import anova, tukey
from bursar_lab.experiments.claims.workloads import Job, draw_alike, draw_hierarchy, draw_rectangles
from bursar_lab.zookeeper_server import ZookeeperServers

__all__ = ["availability", "hierarchical", "rectangular", "scalability"]

Findings = dict[str, Any]
Row = dict[str, Any]
Design = Callable[[Sequence[Job]], float]

SETS = 20
LARGE_MAX_S = 60.0
SCALE = 0.1
"""A second of the benchmark on real ZooKeeper, in seconds."""

DESIGNS: dict[str, Design] = {
    "bursar": lambda jobs: run_queue(jobs, conflict_order),
    "thesis": lambda jobs: run_queue(jobs, release_order),
    "lock": run_lock_server,
    "fifo": run_fifo_locks,
}


def rectangular(out: Path, quick: bool) -> Findings:
    """Section 5.2: completion time over the optimum, which is known."""
    sets = 5 if quick else SETS
    sizes = (1, 3, 10) if quick else tuple(range(1, 11))
    rows: list[Row] = []
    for rectangles in sizes:
        for seed in range(sets):
            jobs, optimal = draw_rectangles(seed, rectangles)
            common = {"size": rectangles, "tasks": len(jobs), "set": seed}
            rows.append({**common, "design": "optimal", "seconds": float(optimal), "ratio": 1.0})
            for design, run in DESIGNS.items():
                seconds = run(jobs)
                rows.append({**common, "design": design, "seconds": seconds, "ratio": seconds / optimal})
    table = [_ratios(rows, size) for size in sizes]
    live = asyncio.run(_rectangles_live(1 if quick else 3, 3 if quick else 10))
    figures.draw_rectangular(out, rows)
    last = table[-1]
    findings: Findings = {
        "table": table,
        "thesis": {"scheduler over optimal": 2.10, "lock over optimal": 4.32},
        "lock_over_bursar_at_10": last["lock"] / last["bursar"],
        "fifo_over_bursar_at_10": last["fifo"] / last["bursar"],
        "live_over_optimal": live,
        "live_scale": SCALE,
        "anova": anova(rows, "seconds", ("design", "size")),
        "tukey": tukey(rows, "seconds", "design"),
        "rows": rows,
    }
    findings["ok"] = (
        last["thesis"] <= 1.4
        and last["bursar"] <= 1.25
        and findings["lock_over_bursar_at_10"] >= 1.5
        and max(live.values()) <= 1.6
    )
    findings["table"] = [*table, {"size": "live", **live}]
    return findings


def _ratios(rows: list[Row], size: int) -> Row:
    return {"size": size} | {
        design: averages.mean(row["ratio"] for row in rows if row["size"] == size and row["design"] == design)
        for design in DESIGNS
    }


async def _rectangles_live(sets: int, rectangles: int) -> dict[str, float]:
    """Mean ratio to the optimum on one ZooKeeper server, a tenth of the time."""
    ratios: dict[str, list[float]] = {"bursar": [], "thesis": []}
    with ZookeeperServers(1) as servers:
        for seed in range(sets):
            jobs, optimal = draw_rectangles(seed, rectangles)
            for design, order in (("bursar", conflict_order), ("thesis", release_order)):
                seconds = await run_live(jobs, servers, order, SCALE, f"{design}-{seed}")
                ratios[design].append(seconds / optimal)
    return {design: averages.mean(found) for design, found in ratios.items()}


def hierarchical(out: Path, quick: bool) -> Findings:
    """Section 5.3: shared and exclusive names of a tree."""
    sets = 5 if quick else SETS
    sizes = (100, 300) if quick else (100, 300, 500, 700, 1000)
    rows: list[Row] = []
    for size in sizes:
        for seed in range(sets):
            jobs = draw_hierarchy(seed, size)
            rows += [
                {"size": size, "set": seed, "design": design, "seconds": run(jobs)}
                for design, run in DESIGNS.items()
            ]
    table = [_compare(rows, size) for size in sizes]
    ratios = _pair_ratios(rows)
    figures.draw_hierarchical(out, rows, ratios)
    lock = averages.mean(line["lock/thesis"] for line in table)
    ours = averages.mean(line["bursar/thesis"] for line in table)
    growing = table[-1]["lock/thesis"] > table[0]["lock/thesis"]
    met = lock >= 1.6 and growing and ours <= 0.95 and all(line["bursar/thesis"] <= 1 for line in table)
    large = _time_large(1000 if quick else 10_000)
    return {
        "table": table,
        "thesis": {"lock over scheduler": 1.61},
        "lock_over_thesis": lock,
        "bursar_over_thesis": ours,
        "anova": anova(rows, "seconds", ("design", "size")),
        "tukey": tukey(rows, "seconds", "design"),
        "anova_of_ratio": anova(ratios, "ratio", ("size",)),
        "tukey_of_ratio": tukey(ratios, "ratio", "size"),
        "large": large,
        "ok": quick or (met and max(large.values()) < LARGE_MAX_S),
        "rows": rows,
    }


def _time_large(tasks: int) -> dict[str, float]:
    """Seconds of this machine that many tasks of 100 resources each take, shared and exclusive."""
    seconds = {}
    for mode in Mode:
        began = time.perf_counter()
        run_queue(draw_alike(tasks, 100, mode), conflict_order)
        seconds[f"{tasks} tasks of 100 resources, {mode.name.lower()}"] = time.perf_counter() - began
    return seconds


def _compare(rows: list[Row], size: int) -> Row:
    means = {
        design: averages.mean(
            row["seconds"] for row in rows if row["size"] == size and row["design"] == design
        )
        for design in DESIGNS
    }
    return {
        "tasks": size,
        **means,
        "lock/thesis": means["lock"] / means["thesis"],
        "bursar/thesis": means["bursar"] / means["thesis"],
    }


def _pair_ratios(rows: list[Row]) -> list[Row]:
    found = {(row["size"], row["set"], row["design"]): row["seconds"] for row in rows}
    return [
        {"size": size, "ratio": found[size, number, "lock"] / seconds}
        for (size, number, design), seconds in found.items()
        if design == "thesis"
    ]
