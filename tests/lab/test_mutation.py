"""Mutants: which there are, and that a room's tests are run against each in a copy of the tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bursar.cli import main
from bursar.errors import BursarError, UsageError
from bursar_lab.mutation.campaign import Campaign, find_root
from bursar_lab.mutation.operators import find_mutants
from bursar_lab.mutation.report import read_report, write_report, write_survivors, write_table
from bursar_lab.mutation.rooms import ROOMS
from bursar_lab.mutation.trials import Copy, Room

SOURCE = '''"""A counter of 3."""
from typing import Annotated

LIMIT = 3


class Counter:
    """Counts up to 3."""

    count: Annotated[int, 7] = 0

    def __init__(self, log):
        self.log = log

    def add(self, amount: int = 1) -> bool:
        """Add 1."""
        assert amount < 9
        if self.count + amount > LIMIT or not amount:
            self.log.warning(f"more than {LIMIT}")
            return False
        self.count += amount
        return True
'''
TESTS = """from counter import Counter

def test_it_counts():
    counter = Counter(__import__("logging").getLogger())
    print("ERROR  a line of a log")
    assert counter.add(2) and counter.count == 2 and not counter.add(2)
    counter.add(1)
    assert counter.count == 3
"""
SEED = 91
ROOM = Room("counter", ("src/counter.py",), ("tests/test_counter.py",))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    root, folder = tmp_path / "clone", tmp_path / "copy"
    for path, text in (("src/counter.py", SOURCE), ("tests/test_counter.py", TESTS)):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)
    return Copy(root, folder)


def test_every_mistake_is_a_piece_of_code_in_place_of_another() -> None:
    found = [(m.line, m.before, m.after) for m in find_mutants("src/counter.py", SOURCE)]
    condition = "self.count + amount > LIMIT or not amount"
    assert found == [
        (4, "3", "4"),
        (10, "0", "1"),
        (15, "1", "2"),
        (18, condition, f"not ({condition})"),
        (18, SOURCE[SOURCE.index("if self") : SOURCE.index("        self.count +=")].rstrip(), "pass"),
        (18, condition, "(self.count + amount > LIMIT and (not amount))"),
        (18, condition, "(not amount)"),
        (18, condition, "(self.count + amount > LIMIT)"),
        (18, "self.count + amount > LIMIT", "self.count + amount >= LIMIT"),
        (18, "self.count + amount > LIMIT", "self.count + amount <= LIMIT"),
        (18, "self.count + amount", "self.count - amount"),
        (18, "not amount", "amount"),
        (20, "False", "True"),
        (21, "self.count += amount", "self.count -= amount"),
        (21, "self.count += amount", "pass"),
        (22, "True", "False"),
    ]


def test_every_mutant_of_every_room_is_python() -> None:
    for room in ROOMS.values():
        for path in (find_root() / each for each in (*room.sources, *room.tests)):
            assert path.exists(), path
        text = (find_root() / room.sources[0]).read_text()
        mutants = find_mutants(room.sources[0], text)
        assert len(mutants) > 50
        for mutant in mutants[::40]:
            assert ast.dump(ast.parse(mutant.plant(text))) != ast.dump(ast.parse(text))


def test_a_mutant_is_killed_by_a_test_or_survives_and_survivors_are_tried_again(
    copy: Copy, tmp_path: Path
) -> None:
    told: list[str] = []
    campaign = Campaign(copy, [ROOM], told.append, lambda report: write_report(report, tmp_path / "kept"))
    report = campaign.draw(SEED, 2)
    assert copy.read("src/counter.py") == SOURCE
    assert [trial.killed_by for trial in report.trials] == ["", "tests/test_counter.py::test_it_counts"]
    assert "2/2, 0 min left" in told[-1] and not report.is_good
    assert write_table(report)[-1] == "| all | 16 | 2 | 1 | 0 | 1 | 50 % |"
    assert write_survivors(report.survivors, copy.read) == [
        "src/counter.py:15: off by one",
        "-    def add(self, amount: int = 1) -> bool:",
        "+    def add(self, amount: int = 2) -> bool:",
        "",
    ]
    told.clear()
    assert read_report(tmp_path / "kept") == report == campaign.draw(SEED, 2, report.trials) and not told
    (copy.root / "tests/test_counter.py").write_text(TESTS.replace("counter.add(1)", "counter.add()"))
    again = campaign.try_survivors(report)
    assert again.is_good and [t.mutant for t in again.trials] == [t.mutant for t in report.trials]


def test_tests_that_fail_without_a_mutant_say_nothing(copy: Copy) -> None:
    (copy.root / "tests/test_counter.py").write_text("def test_nothing():\n    assert False\n")
    with pytest.raises(BursarError, match="the tests of counter fail without a mutant"):
        copy.measure(ROOM)


def test_what_cannot_be_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="has no tests"):
        Copy(tmp_path, tmp_path / "copy")
    with pytest.raises(ValueError, match="has changed at line 4"):
        find_mutants("src/counter.py", SOURCE)[0].plant("another text")
    with pytest.raises(SystemExit):
        main(["mutate", "--only", "attic"])
    assert "there is no room 'attic'; there are: rates, shares" in capsys.readouterr().err
