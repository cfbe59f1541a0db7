"""Experiments 1 and 2 (section IV-B): are reservations met while demand moves about?"""

from __future__ import annotations

import os
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np

from bursar.allocation.reservations import allocate
from bursar.estimate import SURPRISE
from bursar.simulate.cluster import Control, Outcome, Simulation
from bursar.simulate.workload import Workload
from bursar_lab.experiments.rates import figures
from bursar_lab.experiments.rates.workload import Setting, count_demand, draw_workload

PAPER = Control()
"""Arrivals of the last interval (section III-D)."""

WATCHFUL = Control(parts=10, window=10, surprise=SURPRISE)
"""Arrivals since the last change of demand."""

FREQUENT = Control(intervals=25)
"""The paper's estimate over a shorter interval."""

NO_TOKENS = Control(tokens=False)
"""Plain round robin."""

SMALL = Setting(servers=8, tenants=300, active=4, rate=4_000)
MISSED = 0.05
SEEDS = 5

CONTROLS = {
    "5 intervals, arrivals of the last (the paper)": PAPER,
    "5 intervals, arrivals since the last change": WATCHFUL,
    "25 intervals, arrivals of the last": FREQUENT,
}


def one(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """64 servers, 10,000 tenants, all capacity reserved, two changes of demand each."""
    setting = SMALL if quick else Setting()
    _compile()
    outcomes = [_simulate(draw_workload(seed, setting), PAPER, seed) for seed in range(1, SEEDS + 1)]
    first = outcomes[0]
    plain = _simulate(draw_workload(1, setting), NO_TOKENS, 1)
    step = max(1, setting.tenants // 200)
    names = [
        figures.draw_reservations(out / "rates-1-reservations.png", first),
        figures.draw_changes(out / "rates-1-changes.png", first, step),
        figures.draw_intervals(out / "rates-1-intervals.png", first, step, setting.period_s),
    ]
    met = [1.0 - outcome.miss() for outcome in outcomes]
    requests = [int(outcome.served.sum()) for outcome in outcomes]
    seconds = [outcome.simulated_s for outcome in outcomes]
    cpu_s = float(np.median([outcome.cpu_s for outcome in outcomes]))
    allocation_ms = [1e3 * value for outcome in outcomes for value in outcome.allocation_s]
    low, high = int(first.reservation.min()), int(first.reservation.max())
    return {
        "servers": setting.servers,
        "tenants": setting.tenants,
        "seeds": list(range(1, SEEDS + 1)),
        "tenants_met_95": met,
        "tenants_met_95_without_tokens": 1.0 - plain.miss(),
        "requests": requests,
        "simulated_s": seconds,
        "simulated_cpu_s_median": cpu_s,
        "allocation_ms_median": float(np.median(allocation_ms)),
        "figures": names,
        "table": [
            {"": name, "paper": paper, "bursar": found}
            for name, paper, found in (
                ("servers, tenants", "64, 10,000", f"{setting.servers}, {setting.tenants:,}"),
                ("reservations, smallest and largest", "about 120, 13,000", f"{low:,}, {high:,}"),
                (
                    f"tenants that got at least 95 % ({SEEDS} seeds: worst, mean)",
                    "99.5 %",
                    f"{min(met):.2%}, {np.mean(met):.2%}",
                ),
                ("the same without tokens (round robin)", "-", f"{1.0 - plain.miss():.2%}"),
                ("requests served in the period", "6.4 million", f"{int(np.mean(requests)):,}"),
                (
                    "time to simulate it (median, worst)",
                    "-",
                    f"{np.median(seconds):.1f} s, {max(seconds):.1f} s",
                ),
                ("processor time for it (median)", "-", f"{cpu_s:.1f} s"),
                ("one allocation (median)", "-", f"{np.median(allocation_ms):.2f} ms"),
            )
        ],
    }


def two(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 4: tenants that miss 5 % or more, by active servers and changes of demand."""
    setting = SMALL if quick else Setting()
    active_grid = (1, 2, 4) if quick else (1, 2, 4, 8)
    change_grid = (0, 2) if quick else (0, 1, 2, 5, 10)
    seeds = range(1, 3 if quick else SEEDS + 1)
    _compile()
    cells = [
        _measure(replace(setting, active=active, changes=changes), seeds)
        for active in active_grid
        for changes in change_grid
    ]
    name = figures.draw_errors(out / "rates-2-errors.png", cells, list(CONTROLS))
    rows = [
        {
            "active servers": cell["active"],
            "changes": cell["changes"],
            "intrinsic": f"{cell['intrinsic']:.2%}",
            **{name: f"{cell[name]:.2%}" for name in CONTROLS},
        }
        for cell in cells
    ]
    return {"runs": len(seeds), "cells": cells, "figures": [name], "table": rows}


def _measure(setting: Setting, seeds: range) -> dict[str, Any]:
    """Mean error over the seeds for each way of control, and the part nobody could avoid."""
    errors: dict[str, list[float]] = {name: [] for name in CONTROLS}
    intrinsic = []
    for seed in seeds:
        workload = draw_workload(seed, setting)
        intrinsic.append(find_intrinsic_error(workload))
        for name, control in CONTROLS.items():
            errors[name].append(_simulate(workload, control, seed).miss(1.0 - MISSED))
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    means["intrinsic"] = float(np.mean(intrinsic))
    return {"active": setting.active, "changes": setting.changes, **means}


def find_intrinsic_error(workload: Workload) -> float:
    """Tenants that miss even if the whole period's demand is known beforehand and requests may
    be served before they arrive, when what is short is shared evenly. (Letting a few tenants
    starve would make the number smaller, and nobody happier.)"""
    shape = workload.shape
    best = allocate(count_demand(workload), np.full(shape.servers, shape.capacity), workload.reservation)
    got = best.granted - best.shortfall
    return float((got < (1.0 - MISSED) * workload.reservation).mean())


def _simulate(workload: Workload, control: Control, seed: int) -> Outcome:
    return Simulation(workload, control, seed, threads=os.cpu_count() or 1).run()


def _compile() -> None:
    """Once, before anything is timed."""
    tiny = Setting(servers=2, tenants=4, active=2, rate=100)
    _simulate(draw_workload(0, tiny), PAPER, 0)
