"""What docs/simulator.md shows is true."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from bursar.cli import make_app
from bursar.sim.scenarios.claim.small import SmallClaims
from bursar.sim.simulation import Simulation

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "simulator.md"
COMMANDS = re.findall(r"^\$ bursar (sim[^#\n]*)", PAGE.read_text(), re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_has_its_examples() -> None:
    assert len(COMMANDS) == 6
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_works(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer seeds, and one departure instead of two, which take long."""
    monkeypatch.setattr(SmallClaims, "departures", 1)
    words = command.replace("--seeds 1000", "--seeds 4").split()
    assert CliRunner().invoke(make_app(), words).exit_code == 0


def test_the_lines_of_history_on_the_page_are_those_of_the_seed() -> None:
    shown = PAGE.read_text().split("```text\n")[1].split("```")[0].splitlines()
    history = (PAGE.parents[1] / "tests" / "lab" / "leases" / "seed_7.txt").read_text().splitlines()
    assert [line for line in shown if line not in history] == []


def test_the_example_scenario_runs() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAMS[0], names)
    for seed in range(10):
        Simulation("spending", names["SCENARIO"](), seed).run()


def test_the_example_search_finds_nothing() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAMS[1], names)
    assert names["found"].states > 100
