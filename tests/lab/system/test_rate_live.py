"""A rate resource of real processes: the leading controller and a server killed (-9) under load."""

from __future__ import annotations

import numpy as np
import pytest

from bursar_lab.experiments.rates_live.cluster import run_plan
from bursar_lab.experiments.rates_live.failover import LATE_S, judge, kill_both, make_plan


@pytest.mark.needs("memcached")
def test_limits_hold_exactly_and_reservations_from_the_first_period_after_the_take_over() -> None:
    """Limits by what was really sent to memcached, counted in files that outlive the killed. The
    other reservations hold from the first period that the new leader opened, which is within the
    session timeout and a period, and hold again without the server that is gone."""
    outcome = run_plan(make_plan(rate=200.0), controllers=2, during=kill_both)
    found = judge(outcome)
    assert found["limits_hold"], found["table"]
    assert len(found["epochs"]) == 2, "the second controller took over"
    assert found["opened_after_kill_s"] <= found["bound_s"] + LATE_S, found["table"]
    assert found["reservations_missed"] == 0, found["table"]
    charged = int(outcome.charged.sum())
    # Every request charged is sent, but for those in flight at the kill and at the end.
    in_flight = len(outcome.plan.flows) * outcome.plan.outstanding
    assert charged - 2 * in_flight <= outcome.backend_counted <= charged
    assert np.all(outcome.charged[:1] == 0), "periods are numbered from 1"
