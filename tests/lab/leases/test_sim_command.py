"""`bursar sim` as people run it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from bursar.sim.campaign import run_campaign
from bursar.sim.scenarios import scenario_names

HERE = pathlib.Path(__file__).parent


def bursar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from bursar.cli import main; main()", "sim", *arguments],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_name_the_scenarios_are_listed() -> None:
    shown = bursar()
    assert shown.stdout.split() == scenario_names()
    assert "lease" in scenario_names()


def test_a_wrong_name_says_which_there_are() -> None:
    shown = bursar("leese")
    assert shown.returncode == 2
    assert "'leese'" in shown.stderr and "lease" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_campaign_that_finds_nothing_says_so() -> None:
    shown = bursar("lease", "--seeds", "12")
    assert shown.returncode == 0
    assert shown.stdout.startswith("lease: 12 seeds, ")
    assert "nothing found" in shown.stdout


def test_a_campaign_prints_the_first_failing_seed_its_replay_and_the_end_of_its_history() -> None:
    shown = bursar("lease_bugs:EarlyScenario", "--seeds", "50")
    assert shown.returncode == 1
    first, why, replay, *history = shown.stdout.splitlines()
    seed = int(first.split()[1])
    assert first == f"seed {seed} fails, after {seed} seeds that do not"
    assert "tokens" in why
    assert replay == f"  replay: bursar sim lease_bugs:EarlyScenario --seed {seed}"
    assert 20 < len(history) < 40

    replayed = bursar(*replay.split()[3:], "--last", "30")
    assert replayed.returncode == 1
    assert replayed.stdout.splitlines() == [line[2:] for line in history[1:]]
    assert "FAILED" in replayed.stderr and "tokens" in replayed.stderr


def test_a_campaign_reports_the_lowest_failing_seed_whatever_the_number_of_workers() -> None:
    def lowest(workers: int) -> int:
        *_, last = run_campaign("lease_bugs:EarlyScenario", 0, 40, workers)
        assert last.failure is not None
        return last.failure.seed

    assert lowest(1) == lowest(2)


def test_a_campaign_runs_each_seed_once() -> None:
    chunks = list(run_campaign("lease", 100, 13, workers=2))
    assert sum(chunk.seeds for chunk in chunks) == 13
    assert all(chunk.failure is None and chunk.events > 0 for chunk in chunks)


def test_a_search_prints_the_states_visited_and_the_shortest_path() -> None:
    shown = bursar("lease_bugs:SmallHasty", "--search")
    assert shown.returncode == 1
    head, *steps = shown.stdout.splitlines()
    assert "states" in head and "at the same time" in head
    assert steps[0].split()[-1] == "begin" and steps[-1].endswith("time passes")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lease", "--search", "--seeds", "3"), "takes no seeds"),
        (("lease", "--seed", "-1"), "'--seed'"),
        (("lease", "--seeds", "many"), "'--seeds'"),
        (("lease_bugs:Nothing",), "has no Nothing"),
        (("lease_bugs:TWICE",), "is no scenario"),
        (("lease_bugs:TwiceScenario", "--search"), "is no small world"),
        (("nowhere:Scenario",), "nowhere"),
    ],
)
def test_wrong_use_is_told_without_a_traceback(arguments: tuple[str, ...], says: str) -> None:
    shown = bursar(*arguments)
    assert shown.returncode == 2
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr
