"""Figures 5-2 to 5-10 as PNG."""

from __future__ import annotations

import statistics as averages
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

LABELS = {
    "optimal": "optimal",
    "bursar": "bursar's order",
    "thesis": "thesis's order",
    "lock": "lock server",
    "fifo": "first-come locks",
}
COLOURS = {
    "optimal": "#444444",
    "bursar": "#0b6e4f",
    "thesis": "#2a6fbb",
    "lock": "#c8553d",
    "fifo": "#e0a030",
}
SIZE = (6.4, 4.0)
DPI = 110


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE, dpi=DPI)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, out: Path, name: str) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(out / f"{name}.png")
    pyplot.close(figure)


def _scatter(axes: Any, rows: Sequence[Row], designs: Sequence[str], value: str) -> None:
    for design in designs:
        points = sorted((row["tasks"], row[value]) for row in rows if row["design"] == design)
        axes.scatter(*zip(*points, strict=True), s=12, color=COLOURS[design], label=LABELS[design], alpha=0.7)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def draw_rectangular(out: Path, rows: Sequence[Row]) -> None:
    small = [row for row in rows if row["size"] <= 3]
    figure, axes = _axes("Rectangles, 1 to 3 (figure 5-2)", "tasks", "completion time, s")
    _scatter(axes, small, ("optimal", "bursar", "thesis", "lock"), "seconds")
    _save(figure, out, "claims-5-2")
    figure, axes = _axes("Rectangles: time over optimal (figure 5-3)", "tasks", "ratio to optimal")
    _scatter(axes, rows, ("bursar", "thesis", "lock"), "ratio")
    _save(figure, out, "claims-5-3")
    figure, axes = _axes("Rectangles, 1 to 10 (figure 5-4)", "tasks", "completion time, s")
    _scatter(axes, rows, ("optimal", "bursar", "thesis"), "seconds")
    _save(figure, out, "claims-5-4")


def draw_hierarchical(out: Path, rows: Sequence[Row], ratios: Sequence[Row]) -> None:
    figure, axes = _axes("Hierarchy (figure 5-6)", "tasks", "completion time, s (mean, std)")
    for design in ("bursar", "thesis", "lock", "fifo"):
        _error_bars(axes, [row for row in rows if row["design"] == design], "size", "seconds", design)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _save(figure, out, "claims-5-6")
    figure, axes = _axes("Hierarchy: lock server over thesis's order (figure 5-7)", "tasks", "ratio")
    _error_bars(axes, ratios, "size", "ratio", "lock")
    axes.set_ylim(bottom=0)
    _save(figure, out, "claims-5-7")


def _error_bars(axes: Any, rows: Sequence[Row], x: str, y: str, design: str) -> None:
    places = sorted({row[x] for row in rows})
    groups = [[row[y] for row in rows if row[x] == place] for place in places]
    axes.errorbar(
        places,
        [averages.mean(group) for group in groups],
        [averages.pstdev(group) for group in groups],
        color=COLOURS[design],
        label=LABELS[design],
        marker="o",
        markersize=4,
        capsize=3,
    )


def draw_availability(out: Path, rows: Sequence[Row], line: Mapping[str, float]) -> None:
    figure, axes = _axes("Completion time by crash rate (figure 5-8)", "crashes a second", "seconds")
    rates, seconds = [row["rate"] for row in rows], [row["seconds"] for row in rows]
    axes.scatter(rates, seconds, s=16, color=COLOURS["bursar"])
    ends = (0.0, max(row["rate"] for row in rows))
    axes.plot(
        ends,
        [line["intercept"] + line["slope"] * rate for rate in ends],
        color=COLOURS["lock"],
        label=f"{line['slope']:.1f} c + {line['intercept']:.1f}, r2 = {line['r2']:.2f}",
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _save(figure, out, "claims-5-8")


def draw_scalability(out: Path, rows: Sequence[Row]) -> None:
    for number, factor in (("5-9", "servers"), ("5-10", "instances")):
        title = f"Completion time by number of tasks (figure {number})"
        figure, axes = _axes(title, "tasks", "seconds (mean, std)")
        levels = sorted({row[factor] for row in rows})
        for shade, level in zip(("bursar", "thesis", "lock"), levels, strict=False):
            chosen = [row for row in rows if row[factor] == level]
            _error_bars(axes, chosen, "tasks", "seconds", shade)
            axes.containers[-1].set_label(f"{level} {factor}")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        _save(figure, out, f"claims-{number}")


def draw_on_servers(out: Path, table: Sequence[Row]) -> None:
    figure, axes = _axes("On three ZooKeeper servers (mean, 95 %)", "", "completion time, ratio")
    for shift, design in ((-0.2, "bursar"), (0.2, "lock")):
        axes.bar(
            [place + shift for place in range(len(table))],
            [line[design] for line in table],
            yerr=[line[f"{design} +-"] for line in table],
            width=0.4, capsize=3, color=COLOURS[design], label=LABELS[design],
        )  # fmt: skip
    axes.set_xticks(range(len(table)), [f"{line['work']}\n{line['size']}" for line in table])
    axes.legend(frameon=False)
    _save(figure, out, "claims-servers")
