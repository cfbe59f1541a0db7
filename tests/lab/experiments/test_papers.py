"""All experiments of the papers in one go: what was done is not done again."""

from __future__ import annotations

import re
from pathlib import Path

from bursar_lab.cli.experiment import EXPERIMENTS
from bursar_lab.experiments.papers import NOTES, PAPERS, read_notes, run_all

PAGE = Path(__file__).parents[3] / "docs" / "results" / "papers.md"
TWO = {"pools-1a": ("one", 0.5), "pools-1b": ("two", 0.5)}
FIGURES = {"pShift": 8, "AdapTBF": 7, "Haechi": 14, "Quotas": 5, "Tasks": 8}


def test_a_run_goes_on_where_it_was_broken_off_and_says_how_long_it_takes(tmp_path: Path) -> None:
    said: list[str] = []
    first = run_all(tmp_path, True, said.append, dict(list(TWO.items())[:1]))
    assert first["ok"] and (tmp_path / "pools-1a.json").exists()
    before = read_notes(tmp_path)["pools-1a"]
    both = run_all(tmp_path, True, said.append, TWO)
    assert [row["what it asks"] for row in both["table"]] == ["met", "met"]
    assert read_notes(tmp_path)["pools-1a"] == before
    assert [bool(re.search(r"left takes about \d+ s", line)) for line in said] == [True, False, True]


def test_what_ended_without_its_numbers_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "pools-1a.json").write_text("{}")
    failed = run_all(tmp_path, True, str, {"no-such": ("none", 1)})
    assert not failed["ok"] and "no-such" in (tmp_path / "no-such.log").read_text()
    assert not (tmp_path / NOTES).exists()


def test_every_experiment_named_exists_and_has_its_line_on_the_page() -> None:
    page = PAGE.read_text()
    for name in PAPERS:
        assert name in EXPERIMENTS
        assert f"`{name}`" in page, name


def test_the_page_has_all_42_figures() -> None:
    parts = PAGE.read_text().split("\n## ")[1:]
    found = {part.split(":")[0]: len(re.findall(r"^\| \*\*", part, re.MULTILINE)) for part in parts}
    assert {name: found[name] for name in FIGURES} == FIGURES
