"""Section IV-G, run again: what an allocation and an interval cost; and the kernel's controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bursar.benchmarks import shares
from bursar.experiments.shares.blkio import INTERVAL_MS, measure
from bursar.experiments.shares.figures import draw_lines
from bursar.experiments.shares.measures import Check

FRAMEWORK_MS = 25.0
"""The paper's overhead of one interval, whatever the number of tenants."""


def overhead(out: Path, quick: bool) -> dict[str, Any]:
    """IV-G: microseconds a tenant, beside the paper's 30 and a plain loop."""
    found = shares.run(quick)
    rows = found["rows"]
    lines = {
        "allocation": [row["allocation"] for row in rows],
        "whole interval": [row["interval"] for row in rows],
        "the paper's allocation": [row["paper"] for row in rows],
    }
    if all(row["plain"] is not None for row in rows):
        lines["plain loop"] = [row["plain"] for row in rows]
    figure = draw_lines(
        out / "shares-overhead.png",
        "IV-G: cost of an allocation",
        "active tenants",
        "microseconds a tenant",
        [row["tenants"] for row in rows],
        lines,
        log_y=True,
    )
    whole_ms = max(row["interval"] * row["tenants"] / 1000 for row in rows if row["tenants"] <= 1000)
    said = (
        f"a whole interval for 1,000 tenants: {whole_ms:.1f} ms (the paper's, any number: {FRAMEWORK_MS:g})"
    )
    return {
        **found,
        "figures": [figure],
        "table": f"{found['table']}\n{said}",
        "paper": "less than 30 us a job",
    }


def blkio(out: Path, quick: bool) -> dict[str, Any]:
    """Two groups of fio with weights 1:3 through the kernel's controller, and bursar killed."""
    found = measure(quick)
    takeover, lifted = found["takeover_intervals"], found["lifted_after_s"]
    checks = [
        Check(
            "weights 1:3 get 1:3 within 10 %", f"1:{found['ratio']:.2f}", abs(found["ratio"] / 3 - 1) <= 0.1
        ),
        Check(
            f"one alone gets everything within 3 intervals of {INTERVAL_MS} ms",
            f"{takeover} intervals, then {found['alone_mib']:.1f} of {found['capacity_mib']:.0f} MiB/s",
            takeover is not None and takeover <= 3 and found["alone_part"] >= 0.9,
        ),
        Check(
            "after kill -9 no stale limit stays",
            f"{found['limits_before_kill']} limits stood, gone after "
            + ("-" if lifted is None else f"{1000 * lifted:.0f} ms"),
            found["limits_before_kill"] > 0 and lifted is not None,
        ),
    ]
    table = [f"  {'yes' if check.holds else 'NO '}  {check.claim}: {check.seen}" for check in checks]
    return {**found, "table": "\n".join(["shares-blkio:", *table]), "ok": all(c.holds for c in checks)}
