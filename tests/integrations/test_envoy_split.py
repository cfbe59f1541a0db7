"""Who gets what in a fleet: sums, reservations, weights, against a slow and plain reference."""

from __future__ import annotations

import numpy as np
import pytest

from bursar.apportion import apportion_within
from bursar.integrations.envoy.split import UNLIMITED, Terms, fill, share_out, shortfall, spread


def terms(reservation: list[int], limit: list[int], weight: list[int], capacity: int = UNLIMITED) -> Terms:
    columns = (np.array(values, np.int64) for values in (reservation, limit, weight))
    return Terms(*columns, capacity)


def all_members(demand: np.ndarray) -> np.ndarray:
    return np.ones(demand.shape, bool)


@pytest.mark.parametrize("seed", range(200))
def test_sums_keep_to_limits_and_capacity_and_reservations_are_met(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tenants, envoys = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    limit = rng.integers(1, 2000, tenants)
    limit[rng.random(tenants) < 0.2] = UNLIMITED
    reservation = np.minimum(rng.integers(0, 500, tenants), limit)
    capacity = UNLIMITED if rng.random() < 0.2 else int(rng.integers(1, 5000))
    demand = rng.integers(0, 1500, (tenants, envoys)) * (rng.random((tenants, envoys)) < 0.6)
    member = (rng.random((tenants, envoys)) < 0.8) | (demand > 0)
    given = Terms(reservation, limit, rng.integers(1, 10, tenants), capacity)
    got = share_out(given, demand, member)
    assert (got >= 0).all()
    assert (got[~member] == 0).all()
    assert (got.sum(axis=1) <= limit).all()
    assert got.sum() <= capacity
    wanted = np.minimum(demand.sum(axis=1), limit)
    reserved = np.minimum(reservation, wanted)
    if reserved.sum() <= capacity:
        assert (got.sum(axis=1) >= reserved).all()
        assert (shortfall(given, demand) == 0).all()
    # Nothing idles while somebody is refused, but for a token a tenant lost to rounding.
    refused = np.maximum(wanted - got.sum(axis=1), 0)
    assert min(refused.sum(), capacity - got.sum()) <= tenants


@pytest.mark.parametrize("seed", range(100))
def test_filling_is_that_of_apportion_within_a_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    weights, caps = rng.integers(1, 20, size), rng.integers(0, 300, size)
    total = int(rng.integers(0, 800))
    exact = apportion_within(total, weights.tolist(), caps.tolist())
    assert np.abs(fill(total, weights, caps) - np.array(exact)).max() <= 1


def test_what_is_left_goes_by_weight_to_those_with_demand() -> None:
    demand = np.array([[900, 0], [0, 900], [10, 0]])
    got = share_out(terms([0, 0, 0], [1000, 1000, 1000], [2, 1, 1], 610), demand, all_members(demand))
    assert got.sum(axis=1).tolist() == [400, 200, 10]


def test_a_reservation_comes_before_a_flood() -> None:
    demand = np.array([[100], [10_000]])
    got = share_out(terms([100, 0], [400, 400], [1, 100], 400), demand, all_members(demand))
    assert got[:, 0].tolist() == [100, 300]


def test_reservations_that_do_not_fit_are_named_and_scaled() -> None:
    demand = np.array([[300], [300]])
    given = terms([300, 100], [300, 300], [1, 1], 200)
    assert share_out(given, demand, all_members(demand))[:, 0].tolist() == [150, 50]
    assert shortfall(given, demand).tolist() == [150, 50]


def test_headroom_is_where_there_is_no_demand_yet_too() -> None:
    demand = np.array([[90, 0, 0]])
    got = share_out(terms([0], [300], [1]), demand, all_members(demand))
    assert got.sum() == 300
    assert (got[0] > 20).all() and got[0, 0] > got[0, 1]


def test_spreading_is_exact_and_rounds_towards_the_largest() -> None:
    parts = spread(np.array([10, 7, 5]), np.array([[1, 1, 1], [0, 0, 2], [0, 0, 0]]))
    assert parts.tolist() == [[4, 3, 3], [0, 0, 7], [0, 0, 0]]
