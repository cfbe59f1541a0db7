from __future__ import annotations

from bursar.claims.queue import conflict_order, release_order
from bursar.claims.requirements import Mode
from bursar_lab.experiments.claims.simulation import run_lock_server, run_queue
from bursar_lab.experiments.claims.statistics import anova, fit_line, tukey
from bursar_lab.experiments.claims.workloads import draw_hierarchy, draw_rectangles, draw_shared


def test_rectangles_use_every_resource_at_every_moment() -> None:
    """Section 5.2.1: the area of the tasks is that of the optimal schedule."""
    for seed in range(10):
        jobs, optimal = draw_rectangles(seed, 3)
        assert sum(job.duration * len(job.needs) for job in jobs) == 100 * optimal
        assert all(1 <= job.duration <= 20 for job in jobs)
        assert all(mode is Mode.EXCLUSIVE for job in jobs for _, mode in job.needs)


def test_hierarchies_share_what_is_above() -> None:
    """Section 5.3.1."""
    for job in draw_hierarchy(1, 50):
        modes = dict(job.needs)
        exclusive = [name for name, mode in modes.items() if mode is Mode.EXCLUSIVE]
        assert 1 <= len(exclusive) <= 5
        assert modes["r00000"] is Mode.SHARED
        for name in exclusive:
            assert f"r{(int(name[1:]) - 1) // 10:05d}" in modes


def test_tasks_that_share_everything_run_together() -> None:
    """Section 5.4.1."""
    assert run_queue(draw_shared(200, 10), conflict_order) == 10.0


def test_the_orders_beat_the_lock_server() -> None:
    jobs = draw_hierarchy(0, 200)
    lock = run_lock_server(jobs)
    assert run_queue(jobs, conflict_order) < lock
    assert run_queue(jobs, release_order) < lock


def test_statistics_find_what_is_there() -> None:
    rows = [
        {"design": design, "size": size, "seconds": size + 10 * (design == "slow") + number / 10}
        for design in ("fast", "slow")
        for size in (1, 2)
        for number in range(5)
    ]
    lines = {line["source"]: line for line in anova(rows, "seconds", ("design", "size"))}
    assert lines["design"]["p"] < 0.001
    (pair,) = tukey(rows, "seconds", "design")
    assert pair["significant"] and abs(pair["difference"] - 10) < 0.01
    line = fit_line([0, 1, 2], [5, 7, 9])
    assert (round(line["slope"], 6), round(line["intercept"], 6), round(line["r2"], 6)) == (2, 5, 1)
