"""The paper's figures 2 to 5, drawn from runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {"bursar": "#4477aa", "paper": "#ee6677", "sequential": "#228833", "parallel": "#ccbb44"}
EXTRA = {"paper, waiting first": "#aa3377"}
DPI = 80
PALETTE = 256
Rows = Sequence[Mapping[str, Any]]


def _open(columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, columns, figsize=(5.2 * columns, 3.8), squeeze=False, layout="constrained"
    )
    return figure, axes[0]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot
    from PIL import Image

    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(PALETTE)
    small.save(path, optimize=True)


def draw_bars(path: Path, rows: Rows) -> None:
    """Figure 2: cost as a part of the centralised one."""
    figure, (axis,) = _open(1)
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    for number, (name, colour) in enumerate(COLOURS.items()):
        heights = [100 - row["% fewer than central"] for row in rows if row["algorithm"] == name]
        places = [place + 0.2 * (number - 1.5) for place in range(len(traces))]
        bars = axis.bar(places, heights, 0.18, label=name, color=colour)
        axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.axhline(100 - 92, color="#666666", linestyle=":", linewidth=1)
    axis.text(0.5, 8, "the paper's new algorithm: 8 %", fontsize=8, ha="center", va="bottom")
    axis.set_yscale("log")
    axis.set_xticks(range(len(traces)), traces)
    axis.set_ylabel("cost, % of centralised")
    axis.set_title("Figure 2: messages of re-allocations")
    axis.legend(fontsize=8)
    _save(figure, path)


def draw_sizes(path: Path, rows: Rows) -> None:
    figure, (axis,) = _open(1)
    for name, colour in COLOURS.items():
        mine = [row for row in rows if row["algorithm"] == name]
        axis.plot([r["request"] for r in mine], [r["cost"] for r in mine], "o-", label=name, color=colour)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("mean request (the quota stays the same)")
    axis.set_ylabel("cost until the quota is used")
    axis.set_title("Cost by size of request")
    axis.legend(fontsize=8)
    _save(figure, path)


def draw_remaining(path: Path, curves: Mapping[str, Mapping[str, Sequence[tuple[float, int, int]]]]) -> None:
    """Figure 3: cost so far, by what is left of the quota."""
    figure, axes = _open(len(curves))
    for axis, (trace, found) in zip(axes, curves.items(), strict=True):
        for name, curve in found.items():
            left = [100 * point[0] for point in curve]
            axis.plot(left, [point[2] for point in curve], label=name, color=(COLOURS | EXTRA)[name])
        axis.invert_xaxis()
        axis.set_yscale("log")
        axis.set_xlabel("% of the quota left")
        axis.set_ylabel("cost so far")
        axis.set_title(f"Figure 3: {trace}")
        axis.legend(fontsize=8)
    _save(figure, path)


def draw_responses(path: Path, rows: Rows) -> None:
    """Table II as bars, one panel a network."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = _open(len(networks))
    for axis, network in zip(axes, networks, strict=True):
        here = [row for row in rows if row["network"] == network]
        traces = list(dict.fromkeys(row["trace"] for row in here))
        for number, (name, colour) in enumerate(COLOURS.items()):
            heights = [row["re-allocation ms"] for row in here if row["algorithm"] == name]
            places = [place + 0.2 * (number - 1.5) for place in range(len(traces))]
            bars = axis.bar(places, heights, 0.18, label=name, color=colour)
            axis.bar_label(bars, fmt="%.3g", fontsize=8)
        axis.set_yscale("log")
        axis.set_xticks(range(len(traces)), traces)
        axis.set_ylabel("a re-allocation, ms")
        axis.set_title(f"Table II: {network}")
        axis.legend(fontsize=8)
    _save(figure, path)


def draw_scale(path: Path, rows: Rows) -> None:
    """Figures 4 and 5."""
    figure, axes = _open(2)
    for axis, what, title in zip(
        axes,
        ("cost", "re-allocation ms"),
        ("Figure 4: cost until the quota is used", "Figure 5: a re-allocation, ms"),
        strict=True,
    ):
        for name, colour in COLOURS.items():
            mine = [row for row in rows if row["algorithm"] == name]
            axis.plot([r["nodes"] for r in mine], [r[what] for r in mine], "o-", label=name, color=colour)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("nodes")
        axis.set_title(title)
        axis.legend(fontsize=8)
    _save(figure, path)
