"""Two groups of real processes on a real disk, shared through the kernel's controller: the checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bursar_lab.experiments.shares.kernel import INTERVAL_MS, measure
from bursar_lab.experiments.shares.measures import Check


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
