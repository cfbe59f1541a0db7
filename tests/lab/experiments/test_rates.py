"""The rate paper's simulated experiments at a small size: the same code, fewer tenants."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bursar.errors import UsageError
from bursar.rates.scheduler import kernels as scheduler
from bursar.simulate import kernels
from bursar.simulate.cluster import Control, Simulation
from bursar_lab.experiments.rates import controller, qos
from bursar_lab.experiments.rates.qos import FREQUENT, NO_TOKENS, PAPER, SMALL, WATCHFUL, find_intrinsic_error
from bursar_lab.experiments.rates.workload import count_demand, draw_workload

PICTURE_MAX_BYTES = 150_000


@pytest.mark.parametrize(
    "experiment", [qos.one, qos.two, controller.approximation, controller.bqueue, controller.parallel]
)
def test_an_experiment_draws_its_figures_and_tells_its_numbers(experiment, tmp_path):
    numbers = experiment(tmp_path, True)
    first, *others = numbers["table"]
    assert others and all(row.keys() == first.keys() for row in others)
    for figure in numbers["figures"]:
        picture = (tmp_path / figure).read_bytes()
        assert picture.startswith(b"\x89PNG") and 5_000 < len(picture) < PICTURE_MAX_BYTES
    json.dumps(numbers)


def simulate(
    control: Control, seed: int = 3, threads: int = 1, **shape: int
) -> tuple[Simulation, np.ndarray]:
    simulation = Simulation(draw_workload(seed, replace(SMALL, **shape)), control, seed, threads)
    return simulation, simulation.run().served


@pytest.mark.parametrize("control", [PAPER, WATCHFUL, FREQUENT])
def test_reservations_are_met_while_demand_moves(control):
    """Section IV-B, experiment 1; all capacity is reserved, so nothing is there by luck."""
    simulation, served = simulate(control)
    part = served.sum(axis=0) / simulation.workload.reservation
    assert (part >= 0.95).mean() >= 0.995


def test_without_tokens_many_miss():
    simulation, served = simulate(NO_TOKENS)
    part = served.sum(axis=0) / simulation.workload.reservation
    assert (part >= 0.95).mean() < 0.95


@pytest.mark.parametrize("control", [PAPER, FREQUENT])
def test_every_request_is_served_once_or_still_waits(control):
    simulation, served = simulate(control)
    demand = count_demand(simulation.workload).toarray().T
    waiting = simulation._tables[:, :, scheduler.WAITING]
    assert np.abs(simulation._done + waiting - demand).max() <= SMALL.changes + 1
    assert abs(int((simulation._done + waiting).sum()) - int(demand.sum())) <= 0.001 * demand.sum()
    assert (simulation._done == simulation._tables[:, :, scheduler.DISPATCHED]).all()
    assert served.sum() == simulation._done.sum()


def test_servers_are_never_idle_while_requests_wait():
    simulation, served = simulate(PAPER)
    capacity = simulation.shape.servers * simulation.shape.capacity
    assert served.sum() == pytest.approx(capacity, rel=0.005)


def test_one_seed_gives_one_outcome_whatever_the_threads():
    _, alone = simulate(PAPER)
    _, together = simulate(PAPER, threads=3)
    _, other = simulate(PAPER, seed=4)
    assert (alone == together).all()
    assert (alone != other).any()


def test_shorter_intervals_lower_the_error_of_moving_demand():
    """Section IV-B, experiment 2; mean over seeds, few active servers, so that errors show."""
    misses = {control: [] for control in (PAPER, FREQUENT)}
    for seed in range(4):
        workload = draw_workload(seed, replace(SMALL, active=2, changes=2))
        for control, found in misses.items():
            found.append(Simulation(workload, control, seed).run().miss())
    assert np.mean(misses[FREQUENT]) < np.mean(misses[PAPER])


def test_with_one_active_server_some_miss_whatever_is_done():
    still = draw_workload(5, replace(SMALL, active=1, changes=0))
    spread = draw_workload(5, replace(SMALL, active=4, changes=0))
    assert find_intrinsic_error(still) > 0.0
    assert find_intrinsic_error(spread) == 0.0
    assert Simulation(still, PAPER, 5).run().miss() >= find_intrinsic_error(still)


def test_arrivals_come_at_an_even_pace_and_in_order():
    end, pace = np.array([3.0, 1.5]), np.array([10.0, 4.0])
    next_at = np.array([0.05, 0.25])
    tenants, bins = kernels.draw_arrivals(0, 2, np.array([7, 9]), end, pace, next_at, 0.0, 2.0)
    assert (np.diff(bins) >= 0).all()
    assert (tenants == 7).sum() == 20
    assert (tenants == 9).sum() == 5
    assert next_at == pytest.approx([2.05, 1.5])
    expected = np.sort(np.concatenate([0.05 + 0.1 * np.arange(20), 0.25 + 0.25 * np.arange(5)]))
    assert np.abs(bins * 2.0 / kernels.BINS - expected).max() <= 2.0 / kernels.BINS


def test_arrivals_from_before_the_start_are_dropped():
    next_at = np.array([-3.02])
    tenants, bins = kernels.draw_arrivals(
        0, 1, np.array([0]), np.array([9.0]), np.array([10.0]), next_at, 0.0, 1.0
    )
    assert tenants.size == 10 and bins.min() >= 0


def test_a_delay_longer_than_a_part_of_an_interval_is_refused():
    with pytest.raises(UsageError, match="delay"):
        simulate(Control(delay_s=2.0))


def test_timing_takes_the_median_and_leaves_the_first_round_out():
    calls = []
    times = controller.time_all({"a": calls.append, "b": calls.append}, None, 3)
    assert len(calls) == 8 and set(times) == {"a", "b"}
