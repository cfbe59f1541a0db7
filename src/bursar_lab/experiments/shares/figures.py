"""The paper's figures 3 to 9, drawn from runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bursar_lab.experiments.shares.measures import bandwidths, tenants_of
from bursar_lab.experiments.shares.real import Run
from bursar_lab.experiments.shares.workloads import MIB

COLOURS = ("#4477aa", "#66ccee", "#228833", "#ee6677", "#aa3377", "#bbbbbb")
DPI = 80
PALETTE = 256
POINTS = 80
"""A line of a timeline has about so many: more would be noise, and large files."""


def _open(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")


def _save(figure: Any, path: Path) -> str:
    from matplotlib import pyplot
    from PIL import Image

    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    # A few colours are enough, and make a third of the size: these go into the repository.
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(PALETTE)
    small.save(path, optimize=True)
    return path.name


def draw_timelines(path: Path, title: str, rows: Mapping[str, Mapping[str, Run]]) -> str:
    """Figures 3 and 5: bandwidth over time, one column a mode, one row a kind of run."""
    columns = len(next(iter(rows.values())))
    figure, axes = _open(len(rows), columns, 4.2 * columns, 2.6 * len(rows))
    top = 1.15 * max(run.config.rate_bytes for runs in rows.values() for run in runs.values()) / MIB
    for row, (kind, runs) in enumerate(rows.items()):
        for column, (mode, run) in enumerate(runs.items()):
            axis = axes[row][column]
            times, series = bandwidths(run, max(3, len(run.samples) // POINTS))
            for number, name in enumerate(tenants_of(run)):
                # Thinner on top: lines that coincide show both.
                axis.plot(
                    times, series[name], label=name, color=COLOURS[number], linewidth=2.4 - 0.4 * number
                )
            total = [sum(values) for values in zip(*series.values(), strict=True)]
            axis.plot(times, total, label="all", color="black", linewidth=0.8, linestyle=":")
            axis.set_ylim(0, top)
            axis.set_title(f"{mode} ({kind})", fontsize=10)
            axis.grid(alpha=0.25)
            if column == 0:
                axis.set_ylabel("MiB/s")
            if row == len(rows) - 1:
                axis.set_xlabel("seconds")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def draw_bars(path: Path, title: str, achieved: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Figures 4, 6 and 8: (a) what each tenant got in each mode, (b) what bursar changed."""
    modes = list(achieved)
    names = list(next(iter(achieved.values())))
    figure, ((left, right),) = _open(1, 2, 10.0, 3.2)
    width = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        places = [place + number * width for place in range(len(names))]
        left.bar(places, [achieved[mode][name] for name in names], width, label=mode, color=COLOURS[number])
    left.set_xticks([place + width * (len(modes) - 1) / 2 for place in range(len(names))], names)
    left.set_ylabel(unit)
    left.set_title("(a) by tenant", fontsize=10)
    left.legend(fontsize=8)
    ours = achieved["bursar"]
    others = [mode for mode in modes if mode in ("No BW", "Static BW")]
    for number, mode in enumerate(others):
        changes = [100 * (ours[name] / max(1e-9, achieved[mode][name]) - 1) for name in names]
        places = [place + number * 0.4 for place in range(len(names))]
        right.bar(places, changes, 0.4, label=f"against {mode}", color=COLOURS[modes.index(mode)])
    right.set_xticks([place + 0.2 for place in range(len(names))], names)
    right.axhline(0, color="black", linewidth=0.8)
    right.set_ylabel("change in %")
    right.set_title("(b) bursar's gain or loss", fontsize=10)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.3 * (high - low))
    right.legend(fontsize=8, loc="upper left")
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def draw_records(path: Path, title: str, run: Run, starts: Mapping[str, float]) -> str:
    """Figure 7: each tenant's record and demand over time."""
    names = tenants_of(run)
    figure, axes = _open(2, 2, 10.0, 5.2)
    samples = [sample for sample in run.samples if sample.at_s >= 0]
    times = [sample.at_s for sample in samples]
    for number, name in enumerate(names):
        axis = axes[number // 2][number % 2]
        records = [sample.record.get(name, 0) / MIB for sample in samples]
        axis.plot(times, records, color=COLOURS[0], linewidth=1.3, label="record")
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_ylabel("record, MiB (lent is up)", color=COLOURS[0], fontsize=8)
        axis.set_title(name, fontsize=10)
        demand = axis.twinx()
        wanted = [sample.demand.get(name, 0) / MIB for sample in samples]
        demand.plot(times, wanted, color=COLOURS[3], linewidth=0.7, alpha=0.8)
        demand.set_ylabel("demand, MiB an interval", color=COLOURS[3], fontsize=8)
        demand.set_ylim(bottom=0)
        if name in starts:
            axis.axvline(starts[name], color=COLOURS[2], linestyle="--", linewidth=1)
        if number >= 2:
            axis.set_xlabel("seconds (dashed: its continuous I/O starts)", fontsize=8)
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def draw_lines(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    xs: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    log_y: bool = False,
) -> str:
    """Figure 9, and the overhead: a few lines over a logarithmic axis."""
    figure, ((axis,),) = _open(1, 1, 6.4, 3.6)
    for number, (name, values) in enumerate(lines.items()):
        axis.plot(xs, values, marker="o", markersize=4, label=name, color=COLOURS[number % len(COLOURS)])
    axis.set_xscale("log")
    axis.set_xticks(xs, [f"{x:g}" for x in xs])
    axis.minorticks_off()
    if log_y:
        axis.set_yscale("log")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def draw_payback(path: Path, at_s: Sequence[float], records: Mapping[str, Sequence[float]]) -> str:
    """What each has lent or owes over time, as figure 7 has it."""
    figure, axes = _open(1, 1, 7, 2.8)
    axis = axes[0][0]
    for number, (name, values) in enumerate(records.items()):
        axis.plot(at_s, values, label=name, color=COLOURS[number])
    axis.set_xlabel("s")
    axis.set_ylabel("record, MiB")
    axis.grid(alpha=0.25)
    axis.legend()
    return _save(figure, path)
