"""The share paper's experiments, in virtual time: what each section claims holds, and is drawn.

The same checks run on the real storage target in `bursar experiment shares-...`."""

from __future__ import annotations

import pytest

from bursar_lab.benchmarks import shares as benchmark
from bursar_lab.cli.bench import BENCHMARKS
from bursar_lab.cli.experiment import EXPERIMENTS
from bursar_lab.cli.findings import find_function
from bursar_lab.experiments.shares import figures
from bursar_lab.experiments.shares.measures import bandwidths, burst_times, finished_s, mean_burst, served
from bursar_lab.experiments.shares.simulated import run_simulated
from bursar_lab.experiments.shares.timelines import (
    INTERVALS_MS,
    RULES,
    check_allocation,
    check_frequency,
    check_recompensation,
    check_redistribution,
    run_modes,
)
from bursar_lab.experiments.shares.workloads import (
    MIB,
    SMALL_BURSTS,
    Workload,
    make_allocation,
    make_recompensation,
    make_redistribution,
)
from bursar_lab.storage.tenant import Stream

FIGURE_MAX_BYTES = 150_000


def show(checks):
    return "\n".join(f"{check.holds} {check.claim}: {check.seen}" for check in checks)


@pytest.fixture(scope="module")
def allocation():
    workload = make_allocation(32)
    return workload, run_modes(run_simulated, workload)


def test_section_iv_d_holds_in_virtual_time(allocation):
    workload, runs = allocation
    checks = check_allocation("simulated", runs, workload)
    assert all(check.holds for check in checks), show(checks)


def test_section_iv_e_holds_in_virtual_time_and_idle_tokens_are_won_back():
    workload = make_redistribution(4)
    runs = run_modes(run_simulated, workload, printed=True)
    checks = check_redistribution("simulated", runs, workload)
    assert all(check.holds for check in checks), show(checks)
    ours, printed = (served(runs[mode], workload.ends_s)["all"] for mode in ("bursar", "as printed"))
    assert printed < 0.97 * ours, "the printed rules leave tokens unused here"


def test_section_iv_f_holds_in_virtual_time():
    scale = 6.0
    workload = make_recompensation(scale)
    starts = {name: delay / scale for name, (_, _, delay) in SMALL_BURSTS.items()}
    checks = check_recompensation("simulated", run_modes(run_simulated, workload), workload, starts)
    assert all(check.holds for check in checks), show(checks)


def test_section_iv_h_holds_in_virtual_time():
    workload = make_recompensation(1.0)
    totals, bursts = {}, {}
    for name, options in RULES.items():
        runs = {ms: run_simulated(workload, **options, interval_ms=ms) for ms in INTERVALS_MS}
        totals[f"{name}, simulated"] = {ms: served(run, 120.0)["all"] for ms, run in runs.items()}
        bursts[f"{name}, simulated"] = {ms: mean_burst(run, "job2") for ms, run in runs.items()}
    checks = check_frequency(totals, bursts, workload)
    assert all(check.holds for check in checks), show(checks)


def test_a_run_in_virtual_time_is_the_same_each_time(allocation):
    workload, runs = allocation
    again = run_simulated(workload, "share")
    assert again.samples == runs["bursar"].samples


def test_a_lone_tenant_reaches_the_whole_device():
    streams = [Stream(burst_bytes=100 * MIB)] * 4
    workload = Workload("one", {"a": 1, "b": 99}, {"a": streams}, 100.0, 100 * MIB)
    run = run_simulated(workload, "share")
    assert finished_s(run, "a") == pytest.approx(4.0, rel=0.02)


def test_bursts_are_measured_to_their_last_stream():
    streams = [Stream(burst_bytes=20 * MIB, bursts=3, every_s=1.0)] * 2
    workload = Workload("bursts", {"a": 1}, {"a": streams}, 100.0, 100 * MIB)
    run = run_simulated(workload, "none")
    assert burst_times(run, "a") == pytest.approx([0.4, 0.4, 0.4], rel=0.05)
    _, series = bandwidths(run)
    assert max(series["a"]) == pytest.approx(100, rel=0.15)


def test_figures_are_drawn_and_small(allocation, tmp_path):
    _, runs = allocation
    names = [
        figures.draw_timelines(tmp_path / "3.png", "timelines", {"simulated": runs}),
        figures.draw_bars(
            tmp_path / "4.png", "bars", {mode: served(run, 5.0) for mode, run in runs.items()}, "MiB/s"
        ),
        figures.draw_records(tmp_path / "7.png", "records", runs["bursar"], {"job1": 2.0}),
        figures.draw_lines(tmp_path / "9.png", "lines", "x", "y", [1, 10], {"a": [1.0, 2.0]}),
    ]
    for name in names:
        path = tmp_path / name
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < FIGURE_MAX_BYTES


def test_every_command_of_the_share_is_there():
    names = [name for name in EXPERIMENTS if name.startswith("shares-")]
    assert len(names) == 8
    for name in names:
        assert callable(find_function(name, EXPERIMENTS, "experiment"))
    assert find_function("shares", BENCHMARKS, "benchmark") is benchmark.run


def test_the_benchmark_measures_the_plain_loop_on_the_same_tenants():
    row = benchmark.measure_tenants(50, rounds=1)
    assert row["plain"] > 0 and row["allocation"] > 0 and row["interval"] > 0
