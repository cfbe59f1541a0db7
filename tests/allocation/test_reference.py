"""The paper's algorithm as written: its tables, its examples, its two accelerations."""

from __future__ import annotations

import allocation_cases as cases
import numpy as np
import pytest

from bursar.allocation.reservations import allocate
from bursar_lab.experiments.instances import draw_instance
from bursar_lab.experiments.maxflow import solve_with_ortools, solve_with_scipy
from bursar_lab.experiments.reference import Shifter, allocate_as_written, split_in_proportion

HUNDREDS = np.array([100, 100, 100])
TABLE_1 = np.array([[150, 50], [50, 50]])
TABLE_2 = np.array([[150, 50, 0], [0, 150, 50], [50, 0, 50]])


def test_section_3_a_table_1_the_initial_allocation():
    assert split_in_proportion(TABLE_1, HUNDREDS[:2]).tolist() == [[75, 25], [50, 50]]


def test_section_3_a_example_1_one_server_has_25_tokens_too_many():
    with Shifter(TABLE_1, HUNDREDS[:2], HUNDREDS[:2]) as shifter:
        assert shifter.load.tolist() == [125, 75]
        assert shifter.effective == 175


def test_section_3_b_example_2_moves_25_red_tokens_directly():
    with Shifter(TABLE_1, HUNDREDS[:2], HUNDREDS[:2]) as shifter:
        assert shifter.find_path(0, 1) == [0, 1]
        assert shifter.movable[0, 1].tolist() == [25, 0]
        shifter.shift()
        assert shifter.tokens.tolist() == [[50, 50], [50, 50]]
        assert (shifter.effective, shifter.shifts) == (200, 1)


def test_section_3_b_table_2_the_initial_allocation():
    assert split_in_proportion(TABLE_2, HUNDREDS).tolist() == [[75, 25, 0], [0, 75, 25], [50, 0, 50]]


def test_section_3_b_table_3_the_token_movement_map():
    with Shifter(TABLE_2, HUNDREDS, HUNDREDS) as shifter:
        assert shifter.movable[0, 1].tolist() == [25, 0, 0]
        assert shifter.movable[0, 2].tolist() == [0, 0, 0]
        assert shifter.movable[1, 0].tolist() == [25, 0, 0]
        assert shifter.movable[1, 2].tolist() == [0, 25, 0]
        assert shifter.movable[2, 0].tolist() == [0, 0, 0]
        assert shifter.movable[2, 1].tolist() == [0, 25, 0]
        assert shifter.sums.tolist() == [[0, 25, 0], [25, 0, 25], [0, 25, 0]]


def test_section_3_b_example_3_needs_a_broker():
    with Shifter(TABLE_2, HUNDREDS, HUNDREDS) as shifter:
        assert shifter.load.tolist() == [125, 100, 75]
        assert shifter.find_path(0, 1) is None
        assert shifter.find_path(0, 2) == [0, 1, 2]
        shifter.shift()
        assert shifter.tokens.tolist() == [[50, 50, 0], [0, 50, 50], [50, 0, 50]]
        assert shifter.effective == 300


def test_the_map_stays_what_a_new_one_would_be_while_tokens_move():
    problem = draw_instance(2, servers=8, tenants=60, active=3)
    demand = problem.demand.toarray()
    with Shifter(demand, problem.capacity, problem.reservation) as shifter:
        shifter.shift()
        assert shifter.shifts > 0
        movable, sums = shifter.movable.copy(), shifter.sums.copy()
        shifter.make_map()
        assert (movable == shifter.movable).all()
        assert (sums == shifter.sums).all()


def test_section_3_c_threads_change_nothing_but_time():
    problem = draw_instance(3, servers=16, tenants=200, active=4)
    demand = problem.demand.toarray()
    alone = allocate_as_written(demand, problem.capacity, problem.reservation)
    shared = allocate_as_written(demand, problem.capacity, problem.reservation, threads=4)
    assert (alone[0] == shared[0]).all()
    assert alone[1] == shared[1]


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_section_4_d_a_fifth_of_the_tenants_is_enough_and_fewer_remove_less(exponent):
    problem = draw_instance(4, servers=16, tenants=500, active=4, exponent=exponent, multiple=1.5)
    demand = problem.demand.toarray()
    best = allocate(problem.demand, problem.capacity, problem.reservation).effective
    reached = [
        allocate_as_written(demand, problem.capacity, problem.reservation, top=top)[1]
        for top in (1, 5, 25, 150)
    ]
    assert reached == sorted(reached)
    assert reached[0] < best
    assert reached[-1] == best


def test_both_maximum_flow_solvers_agree_with_the_paper_s_algorithm():
    for seed in range(10):
        problem = draw_instance(seed, servers=12, tenants=80, active=3)
        parts = (problem.demand, problem.capacity, problem.reservation)
        flow = solve_with_ortools(*parts)
        other = solve_with_scipy(*parts)
        assert flow.effective == other.effective == flow.tokens.sum() == other.tokens.sum()
        assert (flow.tokens.toarray() <= problem.demand.toarray()).all()
        assert cases.solve_as_written(problem).effective == flow.effective


def test_scipy_s_32_bits_are_refused_not_wrapped():
    problem = draw_instance(1, servers=4, tenants=20, active=2, capacity=2**40)
    with pytest.raises(OverflowError, match="32 bits"):
        solve_with_scipy(problem.demand, problem.capacity, problem.reservation)
