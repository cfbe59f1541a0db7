"""The live experiments at small sizes, on real processes and real backends (section IV-E)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bursar.policy import parse
from bursar.policy.values import RatePolicy
from bursar.units import read_rate
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live import files, static
from bursar_lab.experiments.rates_live.cluster import Outcome, Talk, run_plan
from bursar_lab.experiments.rates_live.measures import Findings, find_feasible, measure
from bursar_lab.experiments.rates_live.plan import Flow, Plan, draw_moves
from bursar_lab.experiments.rates_live.tally import Tally, add_up

RATE = 200.0
SERVERS = ("s1", "s2")


def small_plan(**changes: object) -> Plan:
    plan = Plan(
        servers=SERVERS,
        rate=100.0,
        period_s=1.0,
        intervals=5,
        terms={"a": (60, 90), "b": (100, None)},
        flows=(Flow("a", "s1", 0.0, 9.0), Flow("b", "s1", 0.0, 9.0), Flow("b", "s2", 0.0, 9.0)),
        duration_s=2.0,
    )
    return msgspec.structs.replace(plan, **changes)


def make_outcome(plan: Plan, openings: dict[int, int], told: dict[int, list[int]]) -> Outcome:
    tally = Tally(plan)
    tally.seen = openings
    tally.periods = {period: np.array(row) for period, row in told.items()}
    talk = Talk(rounds=50, messages=900, talking_s=0.2)
    return Outcome(plan, 0, 10 * SECOND_NS, tally, talk, cpu_s=2.0, backend_counted=0)


@pytest.mark.needs("memcached")
def test_limits_are_kept_and_reservations_met_by_daemons_and_clients() -> None:
    """Experiment 3, by `bursar serve` and clients of the public API."""
    limited = static.make_plan(RATE, 5.0, limited=True, controlled=True, records=200)
    outcome = run_plan(limited)
    found = measure(outcome)
    assert len(found.periods) >= 2
    assert found.over_limit == 0
    assert found.met_part >= 0.75, f"a busy machine may miss some: {found.served}"
    assert outcome.talk.rounds >= 5 and outcome.talk.messages > 4 * outcome.talk.rounds
    assert 0 < outcome.communication < 0.5
    told = sum(row.sum() for row in outcome.tally.periods.values())
    assert outcome.backend_counted <= told
    assert outcome.slices.sum() == told


def test_reservations_are_met_on_file_reads(tmp_path: Path) -> None:
    """Experiment 5."""
    plan = files.make_plan(100.0, 2.0, 2, tenants=10, file_bytes=1 << 22, servers=SERVERS)
    found = measure(run_plan(plan, file=tmp_path / "data"))
    assert found.periods
    assert found.over_limit == 0
    assert found.met[found.feasible].mean() >= 0.8
    assert (tmp_path / "data").stat().st_size == 1 << 22


def test_met_and_over_are_counted_by_tenant_and_period() -> None:
    openings = {k: k * SECOND_NS for k in range(1, 5)}
    served = {1: [60, 100], 2: [59, 99], 3: [91, 98]}
    found = measure(make_outcome(small_plan(duration_s=4.0), openings, served))
    assert found.periods == [1, 2, 3]
    assert found.met.tolist() == [[True, True], [False, True], [True, False]]
    assert found.over_limit == 1
    assert found.within_limit_part == pytest.approx(5 / 6)
    assert found.feasible.all()


def test_what_nobody_could_meet_is_told_apart() -> None:
    """b wants 100 and is on one server of 100 a second for half of the period only, with a there."""
    flows = (Flow("a", "s1", 0.0, 9.0), Flow("b", "s1", 0.0, 0.5), Flow("b", "s2", 0.0, 0.25))
    feasible = find_feasible(make_outcome(small_plan(flows=flows), {}, {}), 0)
    assert feasible.tolist() == [True, False]
    flows = (Flow("a", "s1", 0.0, 9.0), Flow("b", "s1", 0.0, 0.4), Flow("b", "s2", 0.0, 0.6))
    assert find_feasible(make_outcome(small_plan(flows=flows), {}, {}), 0).tolist() == [True, True]


def test_findings_of_one_missed_reservation() -> None:
    found = Findings(
        periods=[1],
        served=np.array([[99, 98]]),
        reservation=np.array([100, 100]),
        limit=np.array([200, 200]),
        feasible=np.array([[True, False]]),
    )
    assert found.met.tolist() == [[True, False]]
    assert (found.infeasible, found.missed_feasible) == (1, 0)


def test_what_clients_were_told_is_added_up() -> None:
    plan = small_plan()
    one, other = Tally(plan), Tally(plan)
    for tally, period in ((one, 1), (one, 2), (other, 2)):
        tally.count("b", period)
    other.fail("refused")
    total = add_up(plan, [json.loads(json.dumps(tally.describe())) for tally in (one, other)])
    assert {period: row.tolist() for period, row in total.periods.items()} == {1: [0, 1], 2: [0, 2]}
    assert total.seen == {1: one.seen[1], 2: one.seen[2]}
    assert total.failed == {"refused": 1}
    assert total.slices.sum() == 3


def test_the_policy_of_a_plan_says_what_it_promises() -> None:
    rate = parse(small_plan(paced=False).write_policy()).resources["live"]
    assert isinstance(rate, RatePolicy)
    assert (rate.period_ns, rate.interval_ns, rate.pacing) == (SECOND_NS, SECOND_NS // 5, False)
    assert rate.tenants["a"].limit == read_rate("90/s")
    assert rate.tenants["b"].reservation == read_rate("100/s") and rate.tenants["b"].limit is None
    free = parse(small_plan(controlled=False).write_policy()).resources["live"]
    assert isinstance(free, RatePolicy) and free.pacing
    assert all(terms.limit is None and not terms.reservation.count for terms in free.tenants.values())


def test_moves_choose_two_to_six_servers_each_time() -> None:
    servers = tuple(f"s{k}" for k in range(8))
    flows = draw_moves(random.Random(1), iter(["a", "b"]), servers, ends_s=10.0, every_s=2.0)
    starts = {(flow.tenant, flow.begins_s) for flow in flows}
    assert len(starts) == 2 * (5 + 1)
    for tenant, begins_s in starts:
        assert 2 <= sum((flow.tenant, flow.begins_s) == (tenant, begins_s) for flow in flows) <= 6
    assert max(flow.ends_s for flow in flows) == 10.0
