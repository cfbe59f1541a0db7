"""`allocate`: exact, near the proportional split, and clear about bad input."""

from __future__ import annotations

import allocation_cases as cases
import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, csr_matrix

from bursar.allocation.reservations import allocate
from bursar.errors import UsageError
from bursar_lab.experiments.instances import Instance, draw_instance
from bursar_lab.experiments.reference import split_in_proportion

SEEDS = range(2000)
SOME_SEEDS = range(0, 2000, 25)
RED_BLUE = Instance(csr_array([[150, 50], [50, 50]]), np.array([100, 100]), np.array([100, 100]))
RED_BLUE_GREEN = Instance(
    csr_array([[150, 50, 0], [0, 150, 50], [50, 0, 50]]), np.array([100] * 3), np.array([100] * 3)
)


# --- exactness ---------------------------------------------------------------------------------


def test_effective_capacity_is_the_maximum_flow_on_2000_random_problems():
    for seed in SEEDS:
        problem = cases.draw_problem(seed)
        try:
            cases.validate(problem, cases.solve_sparse(problem))
        except AssertionError as error:
            raise AssertionError(f"{error}; replay: cases.draw_problem({seed})") from error


@pytest.mark.parametrize("number", range(20))
def test_effective_capacity_is_the_maximum_flow_on_large_problems(number):
    problem = cases.draw_large(number)
    maximum = cases.find_maximum(problem)
    for solve in cases.FAST:
        cases.validate(problem, solve(problem), maximum)


@pytest.mark.parametrize("solve", cases.FAST[1:] + cases.SLOW, ids=lambda solve: solve.__name__)
def test_every_way_of_solving_passes_the_same_validator(solve):
    for seed in SOME_SEEDS:
        problem = cases.draw_problem(seed)
        try:
            cases.validate(problem, solve(problem))
        except AssertionError as error:
            raise AssertionError(f"{error}; replay: {solve.__name__}(cases.draw_problem({seed}))") from error


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: cases.Answer(a.tokens - np.eye(*a.tokens.shape, dtype=np.int64), a.effective),
        lambda a: cases.Answer(a.tokens + np.eye(*a.tokens.shape, dtype=np.int64), a.effective),
        lambda a: cases.Answer(a.tokens + np.array([[-50, 50], [50, -50]]), a.effective),
        lambda a: cases.Answer(a.tokens, a.effective - 1),
        lambda a: cases.Answer(split_in_proportion(RED_BLUE.demand.toarray(), RED_BLUE.reservation), 175),
    ],
    ids=["lost token", "made token", "strong excess", "wrong Phi", "not optimal"],
)
def test_the_validator_refuses_wrong_answers(spoil):
    answer = cases.solve_sparse(RED_BLUE)
    cases.validate(RED_BLUE, answer)
    with pytest.raises(AssertionError):
        cases.validate(RED_BLUE, spoil(answer))


# --- the paper's examples ----------------------------------------------------------------------


def test_section_3_b_example_2_a_direct_transfer_meets_both_reservations():
    result = allocate(RED_BLUE.demand, RED_BLUE.capacity, RED_BLUE.reservation)
    assert result.tokens.toarray().tolist() == [[50, 50], [50, 50]]
    assert result.effective == 200
    assert result.cut is None
    assert not result.shortfall.any()


def test_section_3_b_example_3_a_broker_passes_the_excess_on():
    problem = RED_BLUE_GREEN
    result = allocate(problem.demand, problem.capacity, problem.reservation)
    assert result.tokens.toarray().tolist() == [[50, 50, 0], [0, 50, 50], [50, 0, 50]]
    assert result.effective == 300
    assert not result.overloaded.any()


def test_section_4_b_intrinsic_error_two_tenants_on_one_server_of_three():
    demand = np.array([[200, 0, 0], [200, 0, 0]])
    result = allocate(demand, [100, 100, 100], [100, 100])
    assert result.effective == 100
    assert result.overloaded.tolist() == [100, 0, 0]
    assert result.shortfall.tolist() == [50, 50]
    cut = result.cut
    assert cut is not None
    assert (cut.tenants.tolist(), cut.servers.tolist()) == ([0, 1], [0])
    assert (cut.required, cut.capacity) == (200, 100)


# --- near the split ----------------------------------------------------------------------------


def test_without_excess_the_tokens_are_the_proportional_split():
    problem = draw_instance(3, tenants=500, reserved=0.5)
    tokens = allocate(problem.demand, problem.capacity, problem.reservation).tokens.toarray()
    demand = problem.demand.toarray()
    shares = demand * (problem.reservation / np.maximum(demand.sum(axis=1), 1))[:, None]
    assert np.abs(tokens - shares).max() < 1.0 + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_only_weak_excess_moves(seed):
    problem = draw_instance(seed, tenants=2000, multiple=1.5)
    result = allocate(problem.demand, problem.capacity, problem.reservation)
    roomy = allocate(problem.demand, np.full(64, 10**9), problem.reservation)
    excess = np.maximum(np.asarray(roomy.tokens.sum(axis=0)).ravel() - problem.capacity, 0).sum()
    moved = np.abs(result.tokens - roomy.tokens).sum() // 2
    assert excess > 0
    assert moved <= 1.1 * excess


def test_rounding_favours_no_server():
    tenants, servers = 20_000, 10
    demand = np.ones((tenants, servers), np.int64)
    load = allocate(demand, np.full(servers, tenants), np.ones(tenants, np.int64)).tokens.sum(axis=0)
    assert np.abs(load - tenants / servers).max() < 0.02 * tenants / servers


# --- warm start --------------------------------------------------------------------------------


def test_a_warm_start_with_nothing_changed_keeps_every_token():
    problem = draw_instance(5, tenants=3000)
    first = allocate(problem.demand, problem.capacity, problem.reservation)
    again = allocate(problem.demand, problem.capacity, problem.reservation, previous=first)
    assert (first.tokens != again.tokens).nnz == 0


def test_warm_starts_stay_exact_and_near_the_split_over_many_intervals():
    problem = draw_instance(6, tenants=1000, servers=16, multiple=1.5)
    previous = None
    for interval in range(20):
        problem = cases.change_some(problem, interval, 0.1)
        cold = allocate(problem.demand, problem.capacity, problem.reservation)
        warm = allocate(problem.demand, problem.capacity, problem.reservation, previous=previous)
        previous = warm
        assert warm.effective == cold.effective == cases.find_maximum(problem)
        split = allocate(problem.demand, np.full(16, 10**9), problem.reservation).tokens
        strayed = np.abs(warm.tokens - split).sum(), np.abs(cold.tokens - split).sum()
        assert strayed[0] <= 3 * strayed[1] + 0.01 * split.sum(), f"interval {interval}: {strayed}"


def test_a_warm_start_notices_demand_changed_in_place():
    problem = draw_instance(8, tenants=400)
    previous = allocate(problem.demand, problem.capacity, problem.reservation)
    kept = previous.tokens.toarray()
    problem.demand.data[:] = problem.demand.data[::-1].copy()
    result = allocate(problem.demand, problem.capacity, problem.reservation, previous=previous)
    cases.validate(problem, cases.Answer(result.tokens.toarray(), result.effective))
    assert (previous.tokens.toarray() == kept).all()


def test_the_answer_is_the_callers_to_change_and_changes_nothing_of_the_question():
    problem = draw_instance(9, tenants=400)
    demand = problem.demand.copy()
    result = allocate(problem.demand, problem.capacity, problem.reservation)
    assert (problem.demand != demand).nnz == 0
    problem.demand.data[::3] = 0
    problem.demand.eliminate_zeros()
    tokens = np.asarray(result.tokens.sum(axis=1)).ravel()
    assert (tokens == result.granted).all()


# --- what the result says ----------------------------------------------------------------------


def test_the_cut_proves_what_is_missing():
    for seed in SOME_SEEDS:
        problem = cases.draw_problem(seed)
        cases.validate_cut(problem, allocate(problem.demand, problem.capacity, problem.reservation))


def test_the_cut_of_a_large_infeasible_problem_proves_what_is_missing():
    problem = draw_instance(1)
    result = allocate(problem.demand, problem.capacity, problem.reservation)
    assert result.cut is not None
    cases.validate_cut(problem, result)


def test_shortfall_is_what_serving_in_turn_leaves_unserved():
    for seed in SOME_SEEDS:
        problem = cases.draw_problem(seed)
        result = allocate(problem.demand, problem.capacity, problem.reservation)
        cases.validate_shortfall(problem, result)
        assert result.shortfall.sum() == result.overloaded.sum()


def test_shortfall_spares_those_who_hold_little():
    result = allocate(np.array([[10], [100], [200]]), [130], [10, 100, 200])
    assert result.shortfall.tolist() == [0, 40, 140]


# --- forms -------------------------------------------------------------------------------------


def test_the_answer_has_the_form_of_the_demand():
    problem = RED_BLUE_GREEN
    for form in (csr_array, csr_matrix):
        tokens = allocate(form(problem.demand), problem.capacity, problem.reservation).tokens
        assert isinstance(tokens, form)
        assert tokens.indices.tolist() == problem.demand.indices.tolist()
    dense = allocate(problem.demand.toarray(), problem.capacity, problem.reservation).tokens
    assert isinstance(dense, np.ndarray)
    assert dense.dtype == np.int64


def test_unsorted_and_repeated_cells_count_as_their_sum():
    demand = csr_array((np.array([50, 100, 50, 50, 50]), [1, 0, 0, 1, 0], [0, 3, 5]), shape=(2, 2))
    result = allocate(demand, RED_BLUE.capacity, RED_BLUE.reservation)
    assert result.tokens.toarray().tolist() == [[50, 50], [50, 50]]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float32", "float64", "bool"])
def test_whole_numbers_of_any_type_will_do(dtype):
    demand = np.array([[1, 1, 0], [0, 1, 1]], dtype=dtype)
    result = allocate(demand, np.array([1, 1, 1], dtype), np.array([1, 2], "float64"))
    assert result.effective == 3
    assert result.tokens.dtype == np.int64


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (4, 3)])
def test_nothing_to_allocate_is_an_answer_too(shape):
    for demand in (np.zeros(shape, np.int64), csr_array(shape, dtype=np.int64)):
        result = allocate(demand, np.ones(shape[1], np.int64), np.ones(shape[0], np.int64))
        assert result.effective == 0
        assert result.tokens.shape == shape
        assert result.shortfall.tolist() == [0] * shape[0]


def test_amounts_up_to_two_to_the_53_stay_whole():
    most = 2**53
    demand = np.array([[most, most - 1, 1], [most, 0, 7]])
    result = allocate(demand, [most, most, 3], [most, most])
    assert result.tokens.sum(axis=1).tolist() == [most, most]
    assert (result.tokens <= demand).all()
    assert result.effective == 2 * most


# --- bad input ---------------------------------------------------------------------------------

FINE = np.array([[5, 5], [5, 5]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"demand": [1, 2]}, "demand has 1 dimensions"),
        ({"demand": [[5, -1], [5, 5]]}, "tenant 0 on server 1 is -1"),
        ({"demand": csr_array([[5, 5], [5, -3]])}, "tenant 1 on server 1 is -3"),
        ({"demand": [[5, np.nan], [5, 5]]}, r"demand at \(0, 1\) is nan"),
        ({"demand": [[5, np.inf], [5, 5]]}, r"demand at \(0, 1\) is inf"),
        ({"demand": [[5, 2.5], [5, 5]]}, r"demand at \(0, 1\) is 2.5"),
        ({"demand": csr_array([[5, 2.5], [5, 5]])}, "demand at 1 is 2.5"),
        ({"demand": [[5, 2**53 + 1], [5, 5]]}, "pass whole numbers from 0 to 2"),
        ({"demand": np.array([[5, 2**63], [5, 5]], "uint64")}, "pass whole numbers from 0 to 2"),
        ({"demand": [["5", "x"], ["1", "2"]]}, "demand holds <U1"),
        ({"demand": coo_array(FINE)}, r"pass demand.tocsr\(\)"),
        ({"capacity": [1, 2, 3]}, r"capacity has shape \(3,\): pass one number for each of 2 servers"),
        ({"capacity": [[1, 2]]}, "capacity has shape"),
        ({"capacity": [1, -2]}, r"capacity\[1\] is -2"),
        ({"capacity": [1, 2.5]}, "capacity at 1 is 2.5"),
        ({"capacity": [np.nan, 2]}, "capacity at 0 is nan"),
        ({"reservation": [1]}, "one number for each of 2 tenants"),
        ({"reservation": [1, 2**53 + 2]}, r"reservation\[1\] is"),
        ({"reservation": [-7, 2]}, r"reservation\[0\] is -7"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1000}, "threads is 1000"),
        ({"top": 0}, "top is 0"),
        ({"previous": allocate(np.ones((3, 2)), [1, 1], [1, 1, 1])}, "previous is for"),
    ],
)
def test_bad_input_gets_an_error_that_names_the_place_and_the_remedy(change, says):
    arguments = {"demand": FINE, "capacity": [5, 5], "reservation": [5, 5], **change}
    with pytest.raises(UsageError, match=says):
        allocate(**arguments)


def test_totals_beyond_counting_are_an_error_not_a_wrong_answer():
    row = np.full((1, 1000), 2**53)
    with pytest.raises(UsageError, match="add up to more than"):
        allocate(row, np.full(1000, 2**53), [5])
    column = np.full((1000, 1), 2**53)
    for threads in (1, 4):
        with pytest.raises(UsageError, match="add up to more than"):
            allocate(column, [5], np.full(1000, 2**53), threads=threads)


def test_a_broken_csr_array_is_refused_before_it_is_followed():
    for spoil in ("indices", "indptr"):
        demand = csr_array(FINE.copy())
        getattr(demand, spoil)[1] = 99
        with pytest.raises(UsageError):
            allocate(demand, [5, 5], [5, 5])
