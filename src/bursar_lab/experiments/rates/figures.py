"""The pictures of the rate experiments. Each function writes one PNG and returns its name."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from bursar.simulate.cluster import Outcome

_DPI = 100
_WIDTH, _HEIGHT = 8.0, 4.0


def _save(figure: Any, path: pathlib.Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path.name


def draw_reservations(path: pathlib.Path, outcome: Outcome) -> str:
    """Figure 3(a)."""
    figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT))
    axes.semilogy(np.arange(1, outcome.reservation.size + 1), outcome.reservation)
    axes.set(xlabel="tenant", ylabel="reservation (requests a period)", title="Reservations")
    axes.grid(alpha=0.3)
    return _save(figure, path)


def draw_changes(path: pathlib.Path, outcome: Outcome, step: int) -> str:
    """Figure 3(b)."""
    figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT))
    shown = np.arange(0, outcome.reservation.size, step)
    for k in range(outcome.changed_at.shape[1]):
        axes.plot(shown, outcome.changed_at[shown, k], ".", markersize=4, label=f"change {k + 1}")
    axes.set(xlabel=f"tenant (every {step}th)", ylabel="time (s)", title="When demand changes")
    axes.legend(loc="lower center", bbox_to_anchor=(0.85, 1.0), ncol=2, fontsize=8, frameon=False)
    return _save(figure, path)


def draw_intervals(path: pathlib.Path, outcome: Outcome, step: int, period_s: float) -> str:
    """Figure 3(c)."""
    figure, axes = plt.subplots(figsize=(_WIDTH, 5.0))
    shown = np.arange(0, outcome.reservation.size, step)
    intervals = outcome.served.shape[0]
    length = period_s / intervals
    base = np.zeros(shown.size)
    for k in range(intervals):
        part = outcome.served[k, shown]
        label = f"{k * length:g} to {(k + 1) * length:g} s"
        axes.bar(shown, part, width=step, bottom=base, label=label)
        base += part
    axes.step(
        shown, outcome.reservation[shown], where="mid", color="black", linewidth=0.8, label="reservation"
    )
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(1, outcome.reservation.min() / 20))
    axes.set(xlabel=f"tenant (every {step}th)", ylabel="requests served", title="Service by interval")
    axes.legend(loc="upper right", fontsize=8)
    return _save(figure, path)


def draw_errors(path: pathlib.Path, cells: Sequence[dict[str, Any]], controls: Sequence[str]) -> str:
    """Figure 4: one panel for each number of active servers."""
    actives = sorted({cell["active"] for cell in cells})
    figure, panels = plt.subplots(1, len(actives), figsize=(3.2 * len(actives), 4.4), squeeze=False)
    for axes, active in zip(panels[0], actives, strict=True):
        mine = [cell for cell in cells if cell["active"] == active]
        at = np.arange(len(mine))
        for k, name in enumerate(controls):
            axes.bar(at + (k - 1) * 0.27, [100 * cell[name] for cell in mine], width=0.27, label=name)
        floor = [100 * cell["intrinsic"] for cell in mine]
        axes.bar(at, floor, width=0.81, fill=False, hatch="//", edgecolor="black", label="intrinsic")
        axes.set_xticks(at, [str(cell["changes"]) for cell in mine])
        axes.set_ylim(0.0, max(0.1, axes.get_ylim()[1]))
        axes.set(xlabel="changes of demand", title=f"{active} active server{'s' * (active > 1)}")
    panels[0][0].set_ylabel("tenants that miss 5 % or more (%)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=2, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path.name


def draw_lines(
    path: pathlib.Path,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Figures 5 to 7: named lines."""
    figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT))
    for name, (xs, ys) in lines.items():
        axes.plot(xs, ys, marker="o", markersize=4, label=name)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return _save(figure, path)
