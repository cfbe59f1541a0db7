"""What a storm does is drawn by its seed, before it begins."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from bursar_lab.storm.operations import draw_operations
from bursar_lab.storm.plan import (
    APART_S,
    DOWN,
    ENGINE,
    LOSING,
    NETWORK,
    OUTAGE_S,
    REST_S,
    ROUGH_S,
    SPOILING,
    Ability,
    Plan,
    draw_plan,
    read_plan,
)

EVERYTHING = Ability(namespaces=True, mounts=True, clocks=True, http=True, tokens=True, left_out=[])
LITTLE = Ability(
    namespaces=False, mounts=False, clocks=False, http=False, tokens=False, left_out=["cut: no root"]
)
SEEDS = range(20)


def draw(seed: int, kind: str = "all", seconds: float = 120.0, ability: Ability = EVERYTHING) -> Plan:
    return draw_plan(kind, seed, seconds, "zookeeper", 3, "defaults", ability)


def test_a_seed_is_one_plan_and_another_seed_another() -> None:
    assert draw(7) == draw(7)
    assert draw(7).faults != draw(8).faults
    assert draw(7).changes != draw(8).changes


def test_a_plan_survives_being_written_and_read(tmp_path: Path) -> None:
    draw(7).write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == draw(7)


@pytest.mark.parametrize("seconds", [21.0, 60.0, 600.0])
def test_all_is_healed_before_the_quiet_end(seconds: float) -> None:
    for seed in SEEDS:
        plan = draw(seed, seconds=seconds)
        assert plan.faults, seed
        assert all(item["at"] + item["for"] <= plan.quiet_s for item in plan.faults), seed
        assert plan.quiet_s < seconds


def test_nobody_is_the_target_of_two_faults_at_once() -> None:
    for seed in SEEDS:
        busy: dict[str, float] = {}
        for item in draw(seed).faults:
            for target in item["targets"]:
                assert busy.get(target, 0.0) <= item["at"], (seed, item)
                busy[target] = item["at"] + item["for"]


def test_every_fault_is_drawn_where_everything_can_be_done() -> None:
    drawn = {item["fault"] for seed in SEEDS for item in draw(seed, seconds=600.0).faults}
    others = {"pause", "clock", "client_kill", "client_pause", "worker_kill"}
    assert {*DOWN, *NETWORK, *ENGINE, *others} <= drawn
    ways = {item["mute"] for seed in SEEDS for item in draw(seed).faults if item["fault"] == "one_way"}
    assert ways == {True, False}


def test_what_a_machine_cannot_do_is_left_out_and_named() -> None:
    for seed in SEEDS:
        plan = draw(seed, ability=LITTLE)
        assert not {item["fault"] for item in plan.faults} & {*NETWORK, "disk_full", "clock"}
        assert {client["via"] for client in plan.clients} == {"async", "sync"}
        assert not plan.tokens
    assert plan.left_out == ["cut: no root"]


def test_a_client_without_a_token_and_one_with_little_come_where_there_are_rights() -> None:
    plans = [draw(seed) for seed in SEEDS]
    with_rights = [plan for plan in plans if plan.tokens]
    assert 0 < len(with_rights) < len(plans)
    for plan in with_rights:
        assert {client["token"] for client in plan.clients} == {"usual", "narrow", "brief", ""}
        assert "revoke" in [item["do"] for item in plan.changes]


def test_a_spare_node_that_joins_leaves_again() -> None:
    for seed in SEEDS:
        moves = [item["do"] for item in draw(seed, "rate").changes if item["do"] in ("join", "leave")]
        assert moves == ["join", "leave"] * (len(moves) // 2), seed


def test_a_spare_node_with_a_ledger_is_there_at_the_end() -> None:
    for seed in SEEDS:
        moves = [item["do"] for item in draw(seed, "quota").changes if item["do"] in ("join", "leave")]
        assert moves == (["join", "leave"] * len(moves))[: len(moves)] and len(moves) % 2 == bool(moves), seed


def test_operations_are_the_same_in_every_run_and_due_in_order() -> None:
    first = draw_operations("7/c1", "all", 20.0, 30.0)
    assert first == draw_operations("7/c1", "all", 20.0, 30.0)
    assert first != draw_operations("7/c2", "all", 20.0, 30.0)
    assert [item["at_ms"] for item in first] == sorted(item["at_ms"] for item in first)
    assert {"acquire", "claim", "submit", "try_acquire", "acquire_all"} == {item["do"] for item in first}


def test_keys_are_used_once_by_each_operation() -> None:
    keys = [item["key"] for item in draw_operations("7/c1", "quota", 20.0, 60.0) if "key" in item]
    assert keys and len(set(keys)) == len(keys)


def test_a_long_storm_has_calm_stretches() -> None:
    whole, rough_s = ROUGH_S + REST_S, ROUGH_S
    for seed in SEEDS:
        plan = draw(seed, seconds=600.0)
        for item in plan.faults:
            if item["for"] > ROUGH_S:
                continue  # the engine is away for minutes
            begun_s = item["at"] % whole
            assert begun_s <= rough_s and begun_s + item["for"] <= rough_s + 0.01, (seed, item)
        assert all(item["at"] % whole <= rough_s for item in plan.changes if item["do"] == "apply"), seed


def test_a_long_storm_has_the_engine_away_once_for_minutes_and_not_ill_besides() -> None:
    for seed in SEEDS:
        faults = draw(seed, seconds=600.0).faults
        (outage,) = [item for item in faults if item["for"] > ROUGH_S]
        assert outage["fault"] == "engine_away" and outage["for"] >= OUTAGE_S[0], seed
        until_s = outage["at"] + outage["for"]
        others = [item for item in faults if item["targets"] == ["engine"] and item is not outage]
        assert all(item["at"] > until_s or item["at"] + item["for"] < outage["at"] for item in others), seed


def test_ledgers_that_are_lost_are_lost_apart() -> None:
    for seed in SEEDS:
        times = [item["at"] for item in draw(seed, seconds=600.0).faults if item["fault"] in LOSING]
        assert all(later - at_s >= APART_S for at_s, later in pairwise(times)), seed


def test_some_storms_spoil_no_disk_so_that_the_books_can_be_judged() -> None:
    spoilt = [
        bool({item["fault"] for item in draw(seed, seconds=600.0).faults} & {*SPOILING}) for seed in SEEDS
    ]
    assert 0 < sum(spoilt) < len(spoilt)


def test_clocks_drift_within_what_is_allowed_and_not_on_sqlite() -> None:
    drifts = draw(7).drifts
    assert set(drifts) <= {*draw(7).nodes} and sorted(drifts.values()) == [-900, 900]
    assert draw_plan("rate", 7, 60.0, "sqlite", 3, "defaults", EVERYTHING).drifts == {}
    assert draw(7, ability=LITTLE).drifts == {}
