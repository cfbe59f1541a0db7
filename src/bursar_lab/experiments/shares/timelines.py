"""Sections IV-D, IV-E, IV-F and IV-H, run again: simulated and on the real storage target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bursar_lab.experiments.shares.figures import draw_bars, draw_lines, draw_records, draw_timelines
from bursar_lab.experiments.shares.measures import (
    Check,
    achieved,
    burst_times,
    finished_s,
    mean_bandwidths,
    mean_burst,
    served,
    share_error,
    takeover_intervals,
)
from bursar_lab.experiments.shares.real import Run, run_real
from bursar_lab.experiments.shares.simulated import run_simulated
from bursar_lab.experiments.shares.workloads import (
    BURSTS,
    MIB,
    SMALL_BURSTS,
    Workload,
    make_allocation,
    make_recompensation,
    make_redistribution,
)

Findings = dict[str, Any]
Runs = dict[str, Run]

MODES: dict[str, dict[str, Any]] = {
    "No BW": {"mode": "none"},
    "Static BW": {"mode": "static"},
    "bursar": {"mode": "share"},
}
AS_PRINTED: dict[str, Any] = {"mode": "share", "eager": False, "needed_first": False}
"""The paper's own rules: an idle thread waits, and tokens go by the distribution factor alone."""

WARM_S = 1.0


def run_modes(runner: Callable[..., Run], workload: Workload, *, printed: bool = False) -> Runs:
    modes = {**MODES, "as printed": AS_PRINTED} if printed else MODES
    return {name: runner(workload, **options) for name, options in modes.items()}


def report(name: str, workload: Workload, scaled: str, checks: list[Check], **numbers: Any) -> Findings:
    rows = [asdict(check) for check in checks]
    lines = [
        f"{name}: device {workload.rate_bytes // MIB} MiB/s; {scaled}",
        *(f"  {'yes' if check.holds else 'NO '}  {check.claim}: {check.seen}" for check in checks),
    ]
    return {
        "experiment": name,
        "device_mib": workload.rate_bytes / MIB,
        "scaled": scaled,
        "checks": rows,
        "table": "\n".join([*lines, *numbers.pop("lines", [])]),
        "ok": all(check.holds for check in checks),
        **numbers,
    }


def table_lines(title: str, rows: Mapping[str, Mapping[str, float]], unit: str) -> list[str]:
    """A plain table: one row a mode, one column a tenant."""
    columns = list(next(iter(rows.values())))
    head = f"  {title:<26}" + "".join(f"{column:>9}" for column in columns) + f"  {unit}"
    body = [
        f"  {name:<26}" + "".join(f"{values[column]:>9.2f}" for column in columns)
        for name, values in rows.items()
    ]
    return ["", head, *body]


def allocation(out: Path, quick: bool) -> Findings:
    """IV-D: priorities 10:10:30:50, and tenants that finish (figures 3 and 4)."""
    size_mib = 16 if quick else 64
    workload = make_allocation(size_mib)
    rows = {"simulated": run_modes(run_simulated, workload), "real": run_modes(run_real, workload)}
    figures = [
        draw_timelines(out / "shares-figure-3.png", "IV-D: bandwidth by priority 10:10:30:50", rows),
        draw_bars(
            out / "shares-figure-4.png",
            "IV-D: what each tenant achieved (real storage target)",
            {mode: achieved(run) for mode, run in rows["real"].items()},
            "MiB/s until done",
        ),
    ]
    checks = [check for kind, runs in rows.items() for check in check_allocation(kind, runs, workload)]
    lines = []
    for kind, runs in rows.items():
        lines += table_lines(f"achieved, {kind}", {m: achieved(r) for m, r in runs.items()}, "MiB/s")
    return report(
        "shares-allocation",
        workload,
        f"the paper's 1 GB files are {size_mib} MiB here, 16 a tenant as there",
        checks,
        achieved={kind: {m: achieved(r) for m, r in runs.items()} for kind, runs in rows.items()},
        figures=figures,
        lines=lines,
        paper="higher priority gets more, the rest takes over, the total is the highest of the three",
    )


def check_allocation(kind: str, runs: Runs, workload: Workload) -> list[Check]:
    ours = runs["bursar"]
    first = min(finished_s(ours, name) for name in workload.weights)
    means = mean_bandwidths(ours, WARM_S, first - 0.2)
    error = share_error(means, workload.weights)
    parts = ":".join(f"{100 * means[name] / sum(means.values()):.1f}" for name in sorted(means))
    finishers = sorted(workload.weights, key=lambda name: finished_s(ours, name))[:2]
    takeovers = {name: takeover_intervals(ours, name) for name in finishers}
    total = achieved(ours)["all"] / achieved(runs["No BW"])["all"]
    return [
        Check(
            f"{kind}: while all four run, within 10 % of 10:10:30:50",
            f"{parts}, off by {100 * error:.1f} %",
            error <= 0.1,
        ),
        Check(
            f"{kind}: the rest takes over within 3 intervals",
            ", ".join(f"{count} after {name}" for name, count in takeovers.items()),
            all(count is not None and count <= 3 for count in takeovers.values()),
        ),
        Check(f"{kind}: total at least 95 % of No BW", f"{100 * total:.1f} %", total >= 0.95),
    ]


def redistribution(out: Path, quick: bool) -> Findings:
    """IV-E: bursts of high priority against a continuous tenant of low (figures 5 and 6)."""
    workload = make_redistribution(3 if quick else 10, 4.0 if quick else 1.0)
    rows = {
        "simulated": run_modes(run_simulated, workload, printed=True),
        "real": run_modes(run_real, workload, printed=not quick),
    }
    shown = {kind: {mode: runs[mode] for mode in MODES} for kind, runs in rows.items()}
    figures = [
        draw_timelines(out / "shares-figure-5.png", "IV-E: bursts against a continuous tenant", shown),
        draw_bars(
            out / "shares-figure-6.png",
            "IV-E: bandwidth of each tenant (real storage target)",
            {mode: served(run, workload.ends_s) for mode, run in shown["real"].items()},
            "MiB/s",
        ),
    ]
    checks = [check for kind, runs in rows.items() for check in check_redistribution(kind, runs, workload)]
    lines = []
    for kind, runs in rows.items():
        bursts = {m: {name: mean_burst(r, name) for name in BURSTS} for m, r in runs.items()}
        lines += table_lines(f"mean burst time, {kind}", bursts, "s")
        lines += table_lines(
            f"bandwidth, {kind}", {m: served(r, workload.ends_s) for m, r in runs.items()}, "MiB/s"
        )
    return report(
        "shares-redistribution",
        workload,
        f"bursts of {', '.join(f'{s} MiB every {e:g} s' for s, e in BURSTS.values())}"
        + (", sizes and times divided by 4" if quick else "")
        + f"; at least {min(len(burst_times(rows['real']['bursar'], n)) for n in BURSTS)} of each",
        checks,
        bursts={
            k: {m: {n: burst_times(r, n) for n in BURSTS} for m, r in rs.items()} for k, rs in rows.items()
        },
        bandwidth={k: {m: served(r, workload.ends_s) for m, r in rs.items()} for k, rs in rows.items()},
        figures=figures,
        lines=lines,
        paper="bursts gain on both baselines; the continuous tenant loses less than under Static BW; "
        "some tokens stay unused",
    )


def check_redistribution(kind: str, runs: Runs, workload: Workload) -> list[Check]:
    checks = []
    for name in BURSTS:
        ours, none, static = (mean_burst(runs[mode], name) for mode in ("bursar", "No BW", "Static BW"))
        checks.append(
            Check(
                f"{kind}: {name} finishes its bursts faster than under No BW and Static BW",
                f"{ours:.2f} s against {none:.2f} and {static:.2f}",
                ours < min(none, static),
            )
        )
    got = {mode: served(run, workload.ends_s) for mode, run in runs.items()}
    loss, static_loss = (1 - got[mode]["job4"] / got["No BW"]["job4"] for mode in ("bursar", "Static BW"))
    checks.append(
        Check(
            f"{kind}: the continuous tenant loses less than under Static BW",
            f"{100 * loss:.0f} % against {100 * static_loss:.0f} % of No BW",
            loss < static_loss,
        )
    )
    if "as printed" in got:
        ours, printed = got["bursar"]["all"], got["as printed"]["all"]
        checks.append(
            Check(
                f"{kind}: nothing is left idle that the paper's rules leave idle",
                f"{ours:.1f} against {printed:.1f} MiB/s as printed: {ours / printed - 1:.1%} won back",
                ours >= 0.99 * printed,
            )
        )
    return checks


def recompensation(out: Path, quick: bool) -> Findings:
    """IV-F: lenders that need their tokens back (figures 7 and 8)."""
    scale = 12.0 if quick else 3.0
    workload = make_recompensation(scale)
    rows = {
        "simulated": run_modes(run_simulated, workload, printed=True),
        "real": run_modes(run_real, workload, printed=not quick),
    }
    starts = {name: delay / scale for name, (_, _, delay) in SMALL_BURSTS.items()}
    figures = [
        draw_records(
            out / "shares-figure-7.png",
            "IV-F: records and demand (real storage target)",
            rows["real"]["bursar"],
            starts,
        ),
        draw_bars(
            out / "shares-figure-8.png",
            "IV-F: bandwidth of each tenant (real storage target)",
            {mode: served(rows["real"][mode], workload.ends_s) for mode in MODES},
            "MiB/s",
        ),
    ]
    checks = [
        check for kind, runs in rows.items() for check in check_recompensation(kind, runs, workload, starts)
    ]
    lines = []
    for kind, runs in rows.items():
        got = {m: served(r, workload.ends_s) for m, r in runs.items()}
        lines += table_lines(f"bandwidth, {kind}", got, "MiB/s")
    return report(
        "shares-recompensation",
        workload,
        f"all times divided by {scale:g}: continuous I/O starts at "
        + ", ".join(f"{at:.1f}" for at in starts.values())
        + f" s, the end is at {workload.ends_s:g} s",
        checks,
        bandwidth={k: {m: served(r, workload.ends_s) for m, r in rs.items()} for k, rs in rows.items()},
        figures=figures,
        lines=lines,
        paper="job 3 lends until its continuous I/O starts and is then paid back; the total is on a par "
        "with No BW, Static BW clearly below",
    )


def check_recompensation(kind: str, runs: Runs, workload: Workload, starts: dict[str, float]) -> list[Check]:
    checks = []
    for name, start in starts.items():
        before, after = record_around(runs["bursar"], name, start, workload.ends_s)
        checks.append(
            Check(
                f"{kind}: the record of {name} falls once its continuous I/O starts",
                f"from {before:.1f} to {after:.1f} MiB",
                before > 0 and after < before,
            )
        )
    got = {mode: served(run, workload.ends_s)["all"] for mode, run in runs.items()}
    ours, static = got["bursar"] / got["No BW"], got["Static BW"] / got["No BW"]
    checks.append(Check(f"{kind}: total at least 95 % of No BW", f"{100 * ours:.1f} %", ours >= 0.95))
    checks.append(Check(f"{kind}: Static BW clearly below", f"{100 * static:.1f} %", static < 0.9))
    return checks


def record_around(run: Run, tenant: str, start_s: float, ends_s: float) -> tuple[float, float]:
    """A tenant's record (MiB) when its continuous I/O starts, and the lowest from then on."""
    at_start = [sample for sample in run.samples if sample.at_s <= start_s + 0.05][-1]
    later = [sample for sample in run.samples if start_s < sample.at_s <= ends_s]
    return at_start.record.get(tenant, 0) / MIB, min(s.record.get(tenant, 0) for s in later) / MIB


INTERVALS_MS = (50, 100, 200, 500, 1000, 2000)
REAL_MS = (50, 100, 200, 500)
"""Short enough beside the real run's shorter times."""

RULES = {"bursar": MODES["bursar"], "as printed": AS_PRINTED}


def frequency(out: Path, quick: bool) -> Findings:
    """IV-H: throughput for several intervals, on the load of IV-F (figure 9)."""
    scale = 12.0 if quick else 6.0
    whole, divided = make_recompensation(1.0), make_recompensation(scale)
    totals: dict[str, dict[int, float]] = {}
    bursts: dict[str, dict[int, float]] = {}
    for name, options in RULES.items():
        runs = {ms: run_simulated(whole, **options, interval_ms=ms) for ms in INTERVALS_MS}
        totals[f"{name}, simulated"] = {ms: served(run, whole.ends_s)["all"] for ms, run in runs.items()}
        bursts[f"{name}, simulated"] = {ms: mean_burst(run, "job2") for ms, run in runs.items()}
        runs = {ms: run_real(divided, **options, interval_ms=ms) for ms in REAL_MS[1 if quick else 0 :]}
        totals[f"{name}, real, times / {scale:g}"] = {
            ms: served(run, divided.ends_s)["all"] for ms, run in runs.items()
        }
    lines = []
    for title, table, unit in (("total", totals, "MiB/s"), ("mean burst of job2", bursts, "s")):
        for name, values in table.items():
            lines += table_lines(title, {name: {f"{ms} ms": v for ms, v in values.items()}}, unit)
    return report(
        "shares-frequency",
        whole,
        f"simulated at the paper's times, real with all times divided by {scale:g}",
        check_frequency(totals, bursts, whole),
        totals={name: {str(ms): v for ms, v in values.items()} for name, values in totals.items()},
        bursts={name: {str(ms): v for ms, v in values.items()} for name, values in bursts.items()},
        figures=[draw_frequency(out, totals)],
        lines=lines,
        paper="shorter intervals give better throughput; 100 ms was chosen",
    )


def draw_frequency(out: Path, totals: Mapping[str, Mapping[int, float]]) -> str:
    return draw_lines(
        out / "shares-figure-9.png",
        "IV-H: total bandwidth by interval",
        "interval, ms",
        "MiB/s",
        INTERVALS_MS,
        {name: [values.get(ms, float("nan")) for ms in INTERVALS_MS] for name, values in totals.items()},
    )


def check_frequency(
    totals: Mapping[str, Mapping[int, float]], bursts: Mapping[str, Mapping[int, float]], workload: Workload
) -> list[Check]:
    printed, ours = totals["as printed, simulated"], totals["bursar, simulated"]
    burst = bursts["bursar, simulated"]
    steps = [printed[ms] for ms in INTERVALS_MS]
    return [
        Check(
            "simulated, as printed: the shorter the interval, the higher the throughput",
            ", ".join(f"{value:.0f}" for value in steps),
            steps == sorted(steps, reverse=True),
        ),
        Check(
            "simulated: bursar keeps the device busy at every interval",
            f"lowest {min(ours.values()):.1f} MiB/s",
            min(ours.values()) >= 0.95 * workload.rate_bytes / MIB,
        ),
        Check(
            "simulated: what a short interval gives bursar is shorter bursts",
            f"{burst[100]:.2f} s at 100 ms, {burst[2000]:.2f} s at 2000 ms",
            burst[100] < burst[2000],
        ),
    ]
