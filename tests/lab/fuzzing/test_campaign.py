"""What stands around the targets: counting lines, choosing what is kept, telling faults from refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bursar.cli import make_app
from bursar.errors import FormatError, UsageError
from bursar_lab.fuzzing import campaign
from bursar_lab.fuzzing.pieces import cut, join, mark, pick, split
from bursar_lab.fuzzing.reached import measure, pick_fewest
from bursar_lab.fuzzing.target import Target, load_targets

PARTS = ("bursar.runtime.frames:Splitter,-partial",)


def feed(data: bytes) -> None:
    from bursar.runtime.frames import Splitter

    if data == b"a fault":
        raise KeyError(data)
    Splitter().feed(data)


def make_target() -> Target:
    return Target("toy", PARTS, feed, lambda: [b"\0\0\0\x06", b"\xff" * 9], (FormatError,))


def test_what_is_no_refusal_of_the_targets_is_a_fault() -> None:
    target = make_target()
    assert target.try_one(b"\xff" * 9) is None
    assert isinstance(target.try_one(b"a fault"), KeyError)


def test_lines_are_those_inside_the_functions_of_a_part_and_are_added_up() -> None:
    some, all_of = measure(make_target(), [b"\0"]), measure(make_target(), [b"\0", b"\xff" * 9])
    assert some.lines == all_of.lines and some.reached < all_of.reached < all_of.lines
    assert 0 < some.percent < all_of.percent < 100
    assert set(all_of.missed()) == all_of.lines - all_of.reached


def test_as_few_inputs_are_kept_as_reach_every_line_and_none_that_is_a_fault() -> None:
    inputs = [b"\0", b"\0\0", b"\xff" * 9, b"\xff" * 8, b"a fault"]
    kept = pick_fewest(make_target(), inputs)
    assert len(kept) < len(inputs) and b"a fault" not in kept
    assert measure(make_target(), kept).reached == measure(make_target(), inputs).reached


def test_inputs_of_several_parts_are_taken_apart_as_they_were_put_together() -> None:
    parts = [b"", b"one", b"x" * 300]
    assert split(join(parts)) == parts
    assert pick(mark(1, b"rest"), ["a", "b"]) == ("b", b"rest")
    assert b"".join(cut(b"abcdefg", 3)) == b"abcdefg"


def test_inputs_of_processes_one_after_another_are_added_up() -> None:
    log = b"#2\tINITED cov: 1\n#700\tNEW cov: 2\n#1000\tDONE\nINFO: #9\n#2\tINITED\n#50\tDONE\n"
    assert campaign._count_inputs(log) == 1050
    assert campaign._count_inputs(b"no module named atheris") == 0


def test_a_target_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(UsageError, match="there is no target polices; there are: policy, wire-frames"):
        load_targets(["polices"])


def test_without_atheris_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "find_spec", lambda name: None)
    told = CliRunner().invoke(make_app(["fuzz"]), ["fuzz", "policy", "--minutes", "0.1"])
    assert isinstance(told.exception, UsageError) and "pip install -e '.[fuzz]'" in str(told.exception)


def test_an_input_is_replayed_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "fault"
    file.write_bytes(b"[resource")
    command = [sys.executable, "-m", "bursar", "fuzz", "policy", "--replay", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "policy takes it, or refuses it as it should" in done.stdout
