"""The pictures of the live runs. Each function writes one PNG and returns its name."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live.cluster import Outcome
from bursar_lab.experiments.rates_live.plan import SLICE_NS

_DPI = 90
_COLOURS = 64
"""Lines and letters need no more, and the file has a third of the size."""


def _save(figure: Any, path: pathlib.Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    with Image.open(path) as image:
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    return path.name


def sum_period(outcome: Outcome, period: int) -> tuple[Any, Any]:
    """(seconds since the period opened, requests served since then by tenant)."""
    first = (outcome.openings[period] - outcome.began_at) // SLICE_NS
    count = outcome.plan.period_ns // SLICE_NS
    served = outcome.slices[first : first + count]
    sums = np.vstack([np.zeros((1, served.shape[1]), np.int64), np.cumsum(served, axis=0)])
    return np.arange(len(sums)) * SLICE_NS / SECOND_NS, sums


def draw_periods(
    path: pathlib.Path, runs: Mapping[str, tuple[Outcome, Sequence[int]]], *, columns: int = 3
) -> str:
    """Figures 8 and 9: requests served in a period so far, a line for each tenant; several periods
    one after the other. Dotted: the reservation and the limit, where they are the same for all."""
    rows = -(-len(runs) // columns)
    size = (12.0 if columns > 1 else 10.0, 3.6 * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axes, (title, (outcome, periods)) in zip(panels.ravel(), runs.items(), strict=False):
        for k, period in enumerate(periods):
            at, sums = sum_period(outcome, period)
            axes.set_prop_cycle(None)
            lines = axes.plot(at + k * outcome.plan.period_s, sums, linewidth=1.2)
        _draw_terms(axes, outcome)
        axes.set(title=title, xlabel="time (s)", ylabel="requests served in the period")
        axes.legend(lines, outcome.plan.tenants, fontsize=7, loc="upper left", ncol=2)
        axes.grid(alpha=0.3)
    return _save(figure, path)


def _draw_terms(axes: Any, outcome: Outcome) -> None:
    for place, name in ((0, "reservation"), (1, "limit")):
        values = {terms[place] for terms in outcome.plan.terms.values()}
        capacity = outcome.plan.capacity
        if len(values) == 1 and (value := values.pop()) is not None and value < capacity:
            axes.axhline(value, color="black", linestyle=":", linewidth=0.9)
            axes.annotate(
                name, (0.99, value), xycoords=("axes fraction", "data"), fontsize=7, ha="right", va="bottom"
            )


def draw_reservations(path: pathlib.Path, outcome: Outcome) -> str:
    """Figure 10(a)."""
    figure, axes = plt.subplots(figsize=(9.0, 3.2), layout="constrained")
    values = sorted((terms[0] for terms in outcome.plan.terms.values()), reverse=True)
    axes.semilogy(np.arange(1, len(values) + 1), values)
    axes.set(xlabel="tenant", ylabel="reservation (requests a period)")
    axes.grid(alpha=0.3, which="both")
    return _save(figure, path)


def draw_intervals(path: pathlib.Path, outcome: Outcome, periods: Sequence[int]) -> str:
    """Figures 10(b) and (c): what each tenant was served in each interval of a period."""
    plan = outcome.plan
    order = sorted(range(len(plan.terms)), key=lambda k: -plan.terms[plan.tenants[k]][0])
    reservations = [plan.terms[plan.tenants[k]][0] for k in order]
    limits = [plan.terms[plan.tenants[k]][1] for k in order]
    figure, panels = plt.subplots(
        len(periods), 1, figsize=(9.0, 3.6 * len(periods)), squeeze=False, layout="constrained"
    )
    at = np.arange(1, len(order) + 1)
    for axes, period in zip(panels[:, 0], periods, strict=True):
        _, sums = sum_period(outcome, period)
        edges = np.linspace(0, len(sums) - 1, plan.intervals + 1).astype(int)
        parts = np.diff(sums[edges], axis=0)[:, order]
        base = np.zeros(len(order))
        for k, part in enumerate(parts):
            axes.bar(at, part, width=1.0, bottom=base, label=f"interval {k + 1}")
            base += part
        axes.step(at, reservations, where="mid", color="black", linewidth=0.9, label="reservation")
        axes.step(at, limits, where="mid", color="grey", linewidth=0.9, linestyle="--", label="limit")
        axes.set(
            xlabel="tenant", ylabel="requests served", title=f"period {period}", xlim=(0, len(order) + 1)
        )
        axes.legend(fontsize=7, ncol=2)
    return _save(figure, path)


def draw_timeline(path: pathlib.Path, outcome: Outcome, marks: Sequence[tuple[str, float]]) -> str:
    """Requests a second by tenant, with what happened; below, when each period was open."""
    plan = outcome.plan
    per_bin = 5
    slices = outcome.slices[: int(plan.duration_s * SECOND_NS) // SLICE_NS]
    slices = slices[: len(slices) // per_bin * per_bin]
    rates = slices.reshape(-1, per_bin, slices.shape[1]).sum(axis=1) / (per_bin * SLICE_NS / SECOND_NS)
    figure, (axes, below) = plt.subplots(
        2, 1, figsize=(11.0, 5.2), sharex=True, height_ratios=(5, 1), layout="constrained"
    )
    at = (np.arange(len(rates)) + 0.5) * per_bin * SLICE_NS / SECOND_NS
    for k, (tenant, (reservation, limit)) in enumerate(plan.terms.items()):
        promised = f"{tenant}: reservation {reservation}, limit {limit if limit else 'none'}"
        axes.plot(at, rates[:, k], linewidth=1.1, label=promised)
    for text, moment_s in marks:
        axes.axvline(moment_s, color="black", linewidth=0.8, linestyle="--")
        axes.annotate(
            text,
            (moment_s, 0.99),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize=8,
            ha="right",
            va="top",
        )
    axes.set(ylabel="requests a second")
    axes.legend(fontsize=8, loc="upper right")
    axes.grid(alpha=0.3)
    for period, opened_at in outcome.openings.items():
        start_s = (opened_at - outcome.began_at) / SECOND_NS
        below.barh(0, plan.period_s, left=start_s, color=f"C{period % 2}", height=0.8)
    below.set(yticks=[], xlabel="time (s)", ylabel="periods", xlim=(0, plan.duration_s))
    return _save(figure, path)
