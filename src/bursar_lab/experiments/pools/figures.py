"""The pictures of the pool experiments. Each function writes one PNG and returns its name."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

_DPI = 80


def _save(figure: Any, path: pathlib.Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path.name


def draw_clients(
    path: pathlib.Path, panels: Mapping[str, Mapping[str, Sequence[float]]], unit: str = "K I/Os a period"
) -> str:
    """Bars for each client, a panel for each case: {panel: {series: value for each client}}."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(max(7.0, 4.6 * len(panels)), 3.8), squeeze=False, sharey=True
    )
    for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
        count = len(next(iter(series.values())))
        at, width = np.arange(count), 0.8 / len(series)
        for k, (name, values) in enumerate(series.items()):
            axis.bar(at + (k - (len(series) - 1) / 2) * width, values, width=width, label=name)
        axis.set_xticks(at, [f"C{k + 1}" for k in range(count)])
        axis.set_title(title, fontsize=10)
    axes[0][0].set_ylabel(unit)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=max(1, len(labels)), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path.name


def draw_lines(
    path: pathlib.Path,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    *,
    x: str,
    y: str,
) -> str:
    """Lines over a common axis, a panel for each case; a name that begins with "_" is dashed."""
    figure, axes = plt.subplots(1, len(panels), figsize=(5.0 * len(panels), 3.6), squeeze=False, sharey=True)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for name, (xs, ys) in lines.items():
            dashed = name.startswith("_")
            style = (
                {"linestyle": "--", "color": "black", "linewidth": 1.0}
                if dashed
                else {"marker": ".", "markersize": 4}
            )
            axis.plot(xs, ys, label=name.lstrip("_"), **style)
        axis.set(xlabel=x, title=title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0][0].set_ylabel(y)
    return _save(figure, path)


def draw_totals(
    path: pathlib.Path, groups: Mapping[str, Mapping[str, float]], y: str, *, log: bool = False
) -> str:
    """Bars by group: {group: {series: value}}."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    names = list(next(iter(groups.values())))
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        at = np.arange(len(groups)) + (k - (len(names) - 1) / 2) * width
        bars = axes.bar(at, [series[name] for series in groups.values()], width=width, label=name)
        axes.bar_label(bars, fmt="%.4g", fontsize=7)
    axes.set_xticks(np.arange(len(groups)), list(groups))
    axes.set_ylabel(y)
    if log:
        axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.legend(fontsize=8)
    return _save(figure, path)
