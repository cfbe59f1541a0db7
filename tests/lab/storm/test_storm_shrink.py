"""A storm is made smaller while it still goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bursar.errors import UsageError
from bursar_lab.storm.plan import Ability, Plan, draw_plan
from bursar_lab.storm.shrink import reduce_plan, shrink

ABILITY = Ability(namespaces=False, mounts=False, clocks=False, http=False, tokens=False, left_out=[])


def draw() -> Plan:
    return draw_plan("quota", 3, 300.0, "sqlite", 3, "defaults", ABILITY)


class Tries:
    """Stands in for runs: says which plans go wrong, and counts."""

    def __init__(self, runs: int = 1000) -> None:
        self.left = runs
        self.fault = draw().faults[5]

    def __call__(self, plan: Plan) -> bool:
        self.left -= 1
        return self.fault in plan.faults and any(client["name"] == "c2" for client in plan.clients)


def test_only_what_is_needed_is_left() -> None:
    tries = Tries()
    small = reduce_plan(draw(), tries, lambda: tries.left > 0)
    assert small.faults == [tries.fault]
    assert small.changes == []
    assert [client["name"] for client in small.clients] == ["c2"]
    ((low, high),) = small.clients[0]["keep"]
    assert high - low == 1


def test_it_ends_when_its_runs_are_used_up() -> None:
    tries = Tries(runs=7)
    small = reduce_plan(draw(), tries, lambda: tries.left > 0)
    assert tries.left == 0
    assert tries.fault in small.faults


def test_what_never_goes_wrong_again_stays_as_it_is() -> None:
    assert reduce_plan(draw(), lambda plan: False, lambda: True) == draw()


def test_a_folder_without_a_broken_promise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no broken promise"):
        shrink(tmp_path, tmp_path / "small", 1, print)
