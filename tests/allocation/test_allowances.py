"""Allowances: what is reserved comes first, the rest of the limit goes where it can be used."""

from __future__ import annotations

import allocation_cases as cases
import numpy as np
import pytest
from scipy.sparse import csr_array

from bursar.allocation.allowances import UNLIMITED, allocate_allowances
from bursar.errors import UsageError


def test_allowances_sum_to_the_lesser_of_limit_and_demand():
    for seed in range(0, 2000, 20):
        problem = cases.draw_problem(seed)
        rng = np.random.default_rng(seed)
        totals = np.asarray(problem.demand.sum(axis=1)).ravel()
        limit = np.minimum((totals * rng.uniform(0, 1.5, totals.size)).astype(np.int64), 2**53)
        result = allocate_allowances(problem.demand, problem.capacity, problem.reservation, limit)
        allowance, priority = result.allowance.toarray(), result.priority.toarray()
        assert (allowance.sum(axis=1) == np.minimum(limit, totals)).all(), f"seed {seed}"
        expected = np.minimum(np.minimum(problem.reservation, limit), totals)
        assert (priority.sum(axis=1) == expected).all(), f"seed {seed}"
        assert (priority <= allowance).all()
        assert (allowance <= problem.demand.toarray()).all()


def test_the_rest_of_the_limit_goes_where_capacity_is_left():
    demand = np.array([[100, 100], [100, 0]])
    result = allocate_allowances(demand, [100, 100], [0, 100], [80, 100])
    assert result.priority.tolist() == [[0, 0], [100, 0]]
    assert result.allowance.tolist() == [[0, 80], [100, 0]]


def test_what_fits_no_server_follows_the_demand():
    demand = np.array([[60, 30], [100, 100]])
    result = allocate_allowances(demand, [0, 0], [0, 0], [45, 200])
    assert result.allowance.tolist() == [[30, 15], [100, 100]]
    assert result.rest.effective == 0


def test_a_tenant_without_a_limit_may_use_all_it_asks_for_everywhere():
    demand = np.array([[60, 0], [100, 100]])
    for limit in ([UNLIMITED, 50], np.array([np.inf, 50.0])):
        result = allocate_allowances(demand, [100, 100], [30, 20], limit)
        assert result.unlimited.tolist() == [True, False]
        assert result.allowance[0].tolist() == [UNLIMITED, UNLIMITED]
        assert result.allowance[1].sum() == 50
        assert result.priority.sum(axis=1).tolist() == [30, 20]
    sparse = allocate_allowances(csr_array(demand), [100, 100], [30, 20], limit)
    assert sparse.allowance.toarray()[0].tolist() == [UNLIMITED, 0]


def test_a_reservation_counts_only_up_to_what_the_limit_leaves():
    result = allocate_allowances(np.array([[50, 50]]), [100, 100], [80], [30])
    assert result.priority.sum() == result.allowance.sum() == 30


def test_a_warm_start_with_nothing_changed_keeps_every_allowance():
    problem = cases.draw_large(0)
    limit = problem.reservation * 3 // 2
    parts = (problem.demand, problem.capacity, problem.reservation, limit)
    first = allocate_allowances(*parts)
    again = allocate_allowances(*parts, previous=first)
    assert (first.allowance != again.allowance).nnz == 0
    assert (first.priority != again.priority).nnz == 0


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ([5], r"limit has shape \(1,\)"),
        ([5, -1], r"limit\[1\] is -1"),
        ([5, 2**53 + 1], r"limit\[1\] is"),
        ([5, np.nan], "limit at 1 is nan"),
        ([5, 0.5], "limit at 1 is 0.5"),
    ],
)
def test_bad_limits_get_a_clear_error(limit, says):
    with pytest.raises(UsageError, match=says):
        allocate_allowances(np.array([[5, 5], [5, 5]]), [5, 5], [5, 5], limit)
