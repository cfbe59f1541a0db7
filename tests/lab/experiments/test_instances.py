"""The problems of section IV have the properties that the section states."""

from __future__ import annotations

import numpy as np
import pytest

from bursar_lab.experiments.instances import choose_servers, draw_instance


def test_section_4_c_r_and_m_are_what_was_asked_for():
    problem = draw_instance(1, reserved=0.9, multiple=1.5)
    totals = np.asarray(problem.demand.sum(axis=1)).ravel()
    assert problem.reservation.sum() == 0.9 * problem.capacity.sum()
    assert np.abs(totals - 1.5 * problem.reservation).max() <= 0.5
    assert (np.diff(problem.demand.indptr) == 8).all()
    assert problem.demand.has_canonical_format


def test_section_4_b_figure_3_a_reservations_span_a_factor_of_100_highest_first():
    reservation = draw_instance(2).reservation
    assert (np.diff(reservation) <= 1).all()
    assert 80 <= reservation[:5].max() / reservation[-5:].min() <= 125


def test_section_4_b_demand_over_a_tenant_s_servers_is_zipf():
    problem = draw_instance(3, tenants=10, capacity=1_000_000)
    row = np.sort(problem.demand.toarray()[0])[::-1][:8]
    assert row / row[0] == pytest.approx(np.arange(1, 9) ** -0.5, abs=1e-3)


def test_section_4_d_exponent_zero_makes_all_reservations_equal():
    reservation = draw_instance(4, exponent=0.0).reservation
    assert reservation.max() - reservation.min() <= 1


@pytest.mark.parametrize(
    ("servers", "active", "heat"), [(64, 8, 0.0), (8, 8, 0.0), (20, 6, 0.8), (1000, 2, 0.0)]
)
def test_active_servers_are_different_and_heat_prefers_the_first(servers, active, heat):
    chosen = choose_servers(np.random.default_rng(5), 3000, servers, active, heat)
    assert chosen.shape == (3000, active)
    assert (np.diff(np.sort(chosen, axis=1), axis=1) > 0).all()
    counts = np.bincount(chosen.ravel(), minlength=servers)
    assert (counts[0] > 1.5 * counts[-1]) == (heat > 0)


def test_one_seed_is_one_problem():
    first, again, other = draw_instance(6), draw_instance(6), draw_instance(7)
    assert (first.demand != again.demand).nnz == 0
    assert (first.demand != other.demand).nnz > 0


def test_uneven_capacities_keep_their_total():
    capacity = draw_instance(8, unevenness=0.7).capacity
    assert capacity.sum() == 64 * 100_000
    assert capacity.max() > 2 * capacity.min()
