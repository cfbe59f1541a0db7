"""The pool paper's experiments run, and say what the paper says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bursar.pools.capacity import AdaptiveCapacity, FixedCapacity
from bursar_lab.experiments.pools.simulated import CAPACITY, DISTRIBUTIONS, met, one_c, simulate, three

Experiment = Callable[[Path, bool], dict[str, Any]]
FIGURE_MAX_BYTES = 150_000


@pytest.mark.parametrize("experiment", [one_c, three])
def test_an_experiment_draws_its_figures_and_shows_its_point(experiment: Experiment, tmp_path: Path) -> None:
    findings = experiment(tmp_path, True)
    assert findings["ok"] and findings["table"]
    for figure in findings["figures"]:
        assert 5_000 < (tmp_path / figure).stat().st_size < FIGURE_MAX_BYTES


@pytest.mark.parametrize("part", [0.7, 0.9])
def test_zipf_reservations_are_met_with_tokens_and_missed_without(part: float) -> None:
    """Section III-C, experiments 2A and 2C."""
    reservations = DISTRIBUTIONS["Zipf"](part)
    demand = [tokens + int((1 - part) * CAPACITY) for tokens in reservations]
    bare = simulate(reservations, demand, 2)
    paced = simulate(reservations, demand, 4, estimate=FixedCapacity(CAPACITY), paced=True)
    assert met(bare, reservations) <= 0.8
    assert met(paced, reservations) == 1.0
    assert paced.throughput() > 0.97 * bare.throughput()
    assert all(issued <= CAPACITY for issued in paced.issued)


def test_bursars_estimate_finds_a_large_drop_within_three_periods() -> None:
    """Section III-E, beyond three deviations."""
    reservations = DISTRIBUTIONS["Uniform"](0.8)
    after = 0.85 * CAPACITY
    run = simulate(
        reservations,
        [None] * 10,
        6,
        estimate=AdaptiveCapacity(CAPACITY, CAPACITY // 50),
        changed_at_s=2.0,
        changed_to=after,
    )
    assert abs(run.estimates[5] / after - 1) < 0.02, run.estimates
