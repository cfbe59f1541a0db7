"""What a greedy group gets beside a steady one, through the kernel's controller on a real disk."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bursar.integrations.blkio.groups import Controller, find_controller, find_device
from bursar_lab.experiments.shares.kernel import (
    MIB,
    make_groups,
    read_for,
    start_bursar,
    start_fio,
    write_file,
)

TOLD_BYTES = 200 * MIB
TOO_MUCH_BYTES = 8192 * MIB
WEIGHTS = ((1, 1), (1, 3), (3, 1))
PARTS = (0.05, 0.2, 0.5, 0.8)
DEPTHS = ((16, 16, 0.1), (32, 4, 0.2), (4, 32, 0.2))
SETTLE_S = 2.5
"""Half a second for fio to start, two for the shares to follow."""

_Row = dict[str, Any]


def lending(out: Path, quick: bool) -> dict[str, Any]:
    """Greedy beside 5, 20, 50 and 80 % users at three pairs of weights; weights with far too much told."""
    seconds = 2.0 if quick else 4.0
    controller = find_controller()
    with tempfile.TemporaryDirectory(prefix="bursar-blkio-", dir="/var/tmp") as name:
        folder, device = Path(name), find_device(name)
        for tenant in "ab":
            write_file(folder / f"{tenant}.data")
        parts = PARTS[1:2] if quick else PARTS
        rows = [
            _measure_steady(controller, folder, device, weights, part, seconds)
            for weights in WEIGHTS
            for part in parts
        ]
        told = [] if quick else [None, TOO_MUCH_BYTES]
        greedy = [
            _measure_greedy(controller, folder, device, capacity, *depths, 3 * seconds)
            for capacity in told
            for depths in DEPTHS
        ]
    table = "\n".join(["shares-lending:", *_draw_steady(rows), *_draw_greedy(greedy)])
    return {"steady": rows, "greedy": greedy, "table": table, "ok": all(r["holds"] for r in rows + greedy)}


def _measure_steady(
    controller: Controller,
    folder: Path,
    device: str,
    weights: tuple[int, int],
    part: float,
    seconds: float,
) -> _Row:
    asks = int(part * TOLD_BYTES)
    jobs = {"a": {"rate": asks}, "b": {}}
    a, b = _run(controller, folder, device, weights, TOLD_BYTES, jobs, SETTLE_S, seconds)
    due = min(asks, TOLD_BYTES * weights[0] // sum(weights))
    return {
        "weights": f"{weights[0]}:{weights[1]}",
        "asks_mib": asks / MIB,
        "due_mib": due / MIB,
        "steady_mib": a / MIB,
        "greedy_mib": b / MIB,
        "total_part": (a + b) / TOLD_BYTES,
        "steady_part": a / due,
        "holds": a + b >= 0.95 * TOLD_BYTES and a >= 0.98 * due,
    }


def _measure_greedy(
    controller: Controller,
    folder: Path,
    device: str,
    told: int | None,
    depth_a: int,
    depth_b: int,
    within: float,
    seconds: float,
) -> _Row:
    jobs = {"a": {"depth": depth_a}, "b": {"depth": depth_b}}
    settle = 8.0 if told is None else 2 * SETTLE_S
    a, b = _run(controller, folder, device, (1, 3), told, jobs, settle, seconds)
    return {
        "told_mib": None if told is None else told / MIB,
        "depths": f"{depth_a}, {depth_b}",
        "a_mib": a / MIB,
        "b_mib": b / MIB,
        "ratio": b / a,
        "holds": abs(b / a / 3 - 1) <= within,
    }


def _run(
    controller: Controller,
    folder: Path,
    device: str,
    weights: tuple[int, int],
    told: int | None,
    jobs: dict[str, dict[str, int]],
    settle_s: float,
    seconds: float,
) -> tuple[float, float]:
    """Bytes a second of both groups, after they had so long to settle."""
    processes: list[subprocess.Popen[Any]] = []
    with make_groups(controller) as groups:
        try:
            both = dict(zip(groups, weights, strict=True))
            processes.append(start_bursar(folder, device, groups, both, told))
            for name, job in jobs.items():
                group = controller.root / groups[name]
                depth, rate = job.get("depth", 16), job.get("rate")
                processes.append(
                    start_fio(folder, name, group, settle_s + seconds + 2, depth=depth, rate=rate)
                )
            readings = read_for(controller, device, groups, settle_s + seconds)
        finally:
            for process in processes:
                process.terminate()
                process.wait(timeout=20)
    return tuple(readings.rate(name, settle_s, settle_s + seconds) for name in groups)  # type: ignore[return-value]


def _draw_steady(rows: list[_Row]) -> list[str]:
    head = f"  told {TOLD_BYTES // MIB} MiB/s; {SETTLE_S:g} s after the start of both; MiB/s"
    names = "       weights   asks    due  steady  greedy   total  of told  of due"
    return [head, names] + [
        f"  {'yes' if r['holds'] else 'NO '}  {r['weights']:>7} {r['asks_mib']:6.0f} {r['due_mib']:6.0f} "
        f"{r['steady_mib']:7.1f} {r['greedy_mib']:7.1f} {r['steady_mib'] + r['greedy_mib']:7.1f} "
        f"{r['total_part']:8.1%} {r['steady_part']:7.1%}"
        for r in rows
    ]


def _draw_greedy(rows: list[_Row]) -> list[str]:
    return [
        f"  {'yes' if r['holds'] else 'NO '}  weights 1:3, both greedy, depths {r['depths']}, told "
        f"{'nothing' if r['told_mib'] is None else format(r['told_mib'], '.0f') + ' MiB/s'}: "
        f"{r['a_mib']:.0f} and {r['b_mib']:.0f} MiB/s, 1:{r['ratio']:.2f}"
        for r in rows
    ]
