"""The bugs that storms are tried by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from bursar.errors import UsageError
from bursar_lab.cli.storm import _find_bugs
from bursar_lab.storm import trials
from bursar_lab.storm.plan import Ability, Plan
from bursar_lab.storm.planted import BUGS, list_command

LAYERS = {"door", "lot", "session", "journal", "store", "book", "courier", "metrics", "HTTP", "rights"}
ABILITY = Ability(namespaces=False, mounts=False, clocks=False, http=True, tokens=True, left_out=[])
PLANT_ALL = "from bursar_lab.storm.planted import BUGS\nfor bug in BUGS.values(): bug.plant()"


def test_there_is_one_in_each_layer() -> None:
    assert sorted(bug.layer for bug in BUGS.values()) == sorted(LAYERS)
    assert all(bug.plant.__doc__ and "\n\n" in bug.plant.__doc__ for bug in BUGS.values())


def test_each_finds_what_it_replaces() -> None:
    """In a process of its own, which nobody else uses afterwards."""
    done = subprocess.run([sys.executable, "-c", PLANT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_processes_are_started_as_ever_unless_a_bug_is_planted() -> None:
    assert list_command("", "bursar", "serve")[1:] == ["-m", "bursar", "serve"]
    planted = list_command("lot-without-end", "bursar", "serve")
    assert planted[1:] == ["-m", "bursar_lab.storm.planted", "lot-without-end", "serve"]


def test_a_bug_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match="there is no bug 'typo'"):
        _find_bugs("typo")


LATE = [("answers", "acquire took 252 ms, and may take 250 ms")]
"""Broken too, and not by the bug."""


class FakeStorm:
    """A storm that takes no time. `wrong` says which seeds of planted storms go wrong."""

    wrong: ClassVar[set[int]] = set()
    run_: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, plan: Plan, folder: Path, command: str, tell: object) -> None:
        self.plan = plan
        self.missed = ["found"] if plan.planted and plan.seed in self.wrong else []

    def run(self) -> None:
        self.run_.append((self.plan.planted, self.plan.seed))


def test_storms_go_on_until_one_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS["revoked-goes-on"]
    told: list[str] = []
    tried = trials.Trials(tmp_path, ABILITY, 1, 20.0, told.append)
    with_rights = [plan.seed for plan, _ in zip(tried._draw_plans(bug), range(3), strict=False)]
    monkeypatch.setattr(trials, "Storm", FakeStorm)
    monkeypatch.setattr(trials, "judge_all", lambda folder, missed: [("rights", "found")] if missed else LATE)
    monkeypatch.setattr(FakeStorm, "run_", [])
    monkeypatch.setattr(FakeStorm, "wrong", {with_rights[2]})
    (trial,) = tried.run([bug])
    assert FakeStorm.run_ == [("", 1), *((bug.name, seed) for seed in with_rights)]
    assert trial.storms == 3 and trial.wrong == "found"
    assert "without a bug: acquire took" in told[0]
    assert "| rights | `revoked-goes-on` | rate | sqlite | 3 |" in trials.write_table([trial])[2]
