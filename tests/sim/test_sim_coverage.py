"""What scenarios exercise is recorded truly, changes nothing of a run, and leaves out no key of a policy."""

from __future__ import annotations

import functools
import json
import random

import pytest
from typer.testing import CliRunner

from bursar.cli import make_app
from bursar.policy import kinds
from bursar.policy.shapes import Flag
from bursar.policy.tables import Key, Record
from bursar.policy.values import KINDS
from bursar.sim.coverage import FAULTS, SCENARIOS, Coverage, cover, list_missed, record_seed
from bursar.sim.drawing import PLAIN, draw_terms
from bursar.sim.recording import Recorder
from bursar.sim.scenarios import make_scenario, run_seed, scenario_names
from bursar.sim.simulation import Simulation
from bursar.sim.terms import list_keys, read_defaults

DRAWN_SEEDS = 60

UNDRAWN = {
    "claim.history": "a minute at least, which is longer than a run: tests/claims/test_sweeping.py",
    "claim.dead_history": "the same",
    "claim.tracker": "the simulator has no HTTP: tests/runtime/test_http_tracker.py",
    "rate.servers.backend": "where requests go is no part of deciding: a run sends none",
    "rate.servers.zone": "each server has one or none has: a scenario of its own is about zones",
    'rate.servers."*"': "only a fleet has it, whose texts operators draw as they go",
    "share.capacity": "a share inside a program takes no estimate: every policy writes one",
    "share.enforce": "the simulator has no kernel to enforce in",
    "share.device": "the same: it says whose disk a kernel limits",
    "share.job_nodes": "the same: it says whose jobs a Lustre server holds back",
    "pool.nodes": "each node is a pool as the others are; where reservations go is checked for any words",
    "pool.words": "the simulator has words of its own",
    "quota.without_bursar": "it has one value",
    "quota.mode": "each scenario is about one of them",
    "quota.window": "each scenario is about one of them",
    "quota.tenant.overdraft": "a policy takes one only where `over` uses it: a scenario of its own has it",
    "quota.zone": "virtual time runs for seconds: where days begin is checked by their dates",
    "quota.tenant.from": "the same: anchors are checked by their dates",
    "quota.history": "virtual time runs for seconds, and the shortest is a day",
    "claim.without_bursar": "it has one value",
}
"""Keys that no scenario draws when it begins, and why."""


@functools.cache
def draw_policies(kind: str) -> Coverage:
    """The policies that the first seeds of a kind's own scenario run with, without running them."""
    recorder = Recorder()
    for seed in range(DRAWN_SEEDS):
        scenario = make_scenario(kind)
        Simulation(kind, scenario, seed, keep=1).loop.close()
        held = getattr(scenario, "policies", None)
        recorder.note_policy(held.first if held is not None else scenario.policy)  # type: ignore[attr-defined]
    return Coverage(values=recorder.values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_the_schema_is_drawn_or_named_with_a_reason(kind: str) -> None:
    missed = [".".join(name) for name in draw_policies(kind).list_keys_missed()]
    assert [key for key in missed if key not in UNDRAWN] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_also_has_its_default(kind: str) -> None:
    """What is proved is what is shipped."""
    missed = [".".join(name) for name in draw_policies(kind).list_defaults_missed()]
    assert [key for key in missed if key not in UNDRAWN] == []


def test_a_new_key_of_the_schema_that_nothing_draws_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {**kinds.RATE.keys, "colour": kinds.RATE.keys["drift_ppm"]}
    monkeypatch.setitem(kinds.RECORDS, "rate", Record(described, "rate"))
    assert "colour" in list_keys("rate")
    read_defaults.cache_clear()
    found = Coverage(values={("rate", "period"): {"400000000"}})
    assert ("rate", "colour") in found.list_keys_missed()
    read_defaults.cache_clear()


def test_a_new_flag_is_drawn_without_anybody_saying_so() -> None:
    record = Record({"new": Key(Flag(), "whatever it is for", False)})
    drawn = [draw_terms(random.Random(seed), record, {}) for seed in range(30)]
    assert {str(terms) for terms in drawn} == {"{}", "{'new': True}", "{'new': False}"}


def test_a_good_part_of_the_seeds_runs_at_default_settings() -> None:
    plain = 0
    for seed in range(DRAWN_SEEDS):
        scenario = make_scenario("rate")
        Simulation("rate", scenario, seed, keep=1).loop.close()
        policy = scenario.policy  # type: ignore[attr-defined]
        drawn = policy.period_ns, policy.drift_ppm, policy.pacing, policy.shadow
        plain += drawn == (10**9, 1000, True, False)
    assert plain >= DRAWN_SEEDS * PLAIN * 0.7


def test_recording_changes_nothing_of_a_run() -> None:
    plain = run_seed("quota", 3).history
    recorder = Recorder()
    with recorder.recording():
        recorded = run_seed("quota", 3).history
    assert recorded == plain == run_seed("quota", 3).history
    assert recorder.done["quota", "acquire"] > 10


def test_what_is_recorded_is_what_was_done() -> None:
    found = record_seed("claim", 1)
    assert found.seeds == 1 and not found.failures
    assert found.done["claim", "claim"] > 5 and found.done["claim", "submit"] > 5
    assert ("claim", "force_release") in found.offered
    assert not any(kind == "rate" for kind, _ in found.done)
    assert set(found.struck) <= set(FAULTS)


def test_a_fault_counts_where_it_struck_and_not_where_it_might() -> None:
    """A target alone has no network: nothing of it may count."""
    found = record_seed("share", 2)
    assert not {"loss", "duplicate", "cuts", "store_lost"} & set(found.struck)


def test_every_scenario_that_comes_with_bursar_is_covered() -> None:
    listed = {name for names in SCENARIOS.values() for name in names}
    assert [name for name in scenario_names() if name not in listed and name != "lease"] == []


def test_the_command_prints_what_is_exercised_and_what_none_does() -> None:
    told = CliRunner().invoke(make_app(), ["sim", "coverage", "fleet", "--seeds", "2"])
    assert told.exit_code == 0, told.output
    assert "fleet: 2 seeds" in told.output and "fleet.apply" in told.output
    assert "exercised by none:" in told.output and "disk_slow" in told.output.partition("by none")[2]
    found = CliRunner().invoke(make_app(), ["sim", "coverage", "fleet", "--seeds", "2", "--json"])
    said = json.loads(found.output)
    assert said["kinds"]["fleet"]["verbs"]["fleet.apply"] > 0
    assert said["none"]["faults"] and "fleet.apply" not in said["none"]["verbs"]


def test_a_kind_that_is_none_is_a_mistake() -> None:
    told = CliRunner().invoke(make_app(), ["sim", "coverage", "colour"])
    assert told.exit_code != 0
    assert CliRunner().invoke(make_app(), ["sim", "rate", "quota"]).exit_code != 0


def test_several_processes_find_what_one_does() -> None:
    one, two = cover("fleet", 6, workers=1), cover("fleet", 6, workers=2)
    assert one["fleet"].done == two["fleet"].done and list_missed(one) == list_missed(two)
