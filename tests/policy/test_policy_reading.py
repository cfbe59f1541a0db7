"""Files that are not a policy: bounded, and answered with everything that is wrong."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bursar.errors import PolicyError
from bursar.policy import build, load, parse, reading
from bursar.policy.outline import DEPTH_MAX, find_lines, find_too_deep
from bursar.policy.reading import FILE_MAX_BYTES, PROBLEMS_MAX

GOOD = '[resource.x]\nkind = "claim"\n'


def problems_of(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse(text)
    return [problem.what for problem in caught.value.problems]


def test_a_file_of_100_mb_is_refused_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    with file.open("wb") as large:
        large.truncate(100_000_000)
    with pytest.raises(PolicyError, match="100000000 bytes, more than 16MiB; nothing of it was read"):
        load(file)


def test_what_is_not_a_file_of_bytes_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody ever writes to it
    for path in ("/dev/zero", str(pipe)):
        with pytest.raises(PolicyError, match="not a file of bytes"):
            load(path)


def test_a_text_beyond_the_bound_is_refused_like_a_file() -> None:
    assert "more than 16MiB" in problems_of("#" * (FILE_MAX_BYTES + 1))[0]
    assert parse(GOOD + "#" * (FILE_MAX_BYTES - len(GOOD))).resource("x")


def test_what_cannot_be_opened_is_a_policy_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, "nul\0.toml"):
        with pytest.raises(PolicyError, match="cannot be read"):
            load(path)


def test_bytes_that_are_not_utf_8_are_named_by_offset_and_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b"# one\n# caf\xe9\n")
    with pytest.raises(PolicyError, match=r"line 2, .*byte 11 \(0xe9\) is not UTF-8"):
        load(file)


def test_a_byte_order_mark_and_crlf_are_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "windows.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(file).resource("x").kind == "claim"


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 10_000 + "]" * 10_000,
        "x = " + "{ a = " * 10_000 + "1" + "}" * 10_000,
        "x = " + "[{a=" * 10_000,
        "[" + ".".join("a" * 10_000) + "]",
        ".".join("a" * 10_000) + " = 1",
        "x = { " + ".".join("a" * 10_000) + " = 1 }",
        "x = [\n" * 10_000,
        '"""\n""" = 1\nx = ' + "[" * 10_000,
    ],
)
def test_ten_thousand_levels_are_a_problem_not_a_recursion(text: str) -> None:
    assert f"nested more than {DEPTH_MAX} deep" in problems_of(text)[0]


def test_brackets_in_texts_and_comments_are_not_levels() -> None:
    brackets = "[{" * 1000
    texts = [f"x = '{brackets}' # {brackets}", f'y = """\n\\"{brackets}\n"""', f"z = '''{brackets}'''"]
    text = "\n".join([f"# {brackets}", *texts, ""])
    assert find_too_deep(text) is None
    assert find_lines(text + "end = 1") == {("x",): 2, ("y",): 3, ("z",): 6, ("end",): 7}


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 400_000, 'x = """' + '\\"""' * 200_000, "'" * 900_000, 'x = "' + "\\" * 900_000],
)
def test_unclosed_texts_cost_linear_time(text: str) -> None:
    problems_of(text)  # a quadratic scan would not come back for hours


def test_the_line_is_that_of_the_key_or_of_its_nearest_table() -> None:
    text = """
    resource.a = { kind = "rat" }
    [resource."b.c"]
    kind = "claim"
    colours = [
        "red",
    ]
    [resource.'d'] # comment
    kind = "claim"
    paths = 1
    """
    with pytest.raises(PolicyError) as caught:
        parse(text)
    found = {problem.path: problem.line for problem in caught.value.problems}
    assert found == {"resource.a.kind": 2, 'resource."b.c".colours': 5, "resource.d.paths": 10}


def test_all_problems_come_at_once_and_in_order() -> None:
    with pytest.raises(PolicyError) as caught:
        parse('stoer = 1\n[resource.x]\nkind = "claim"\npaths = 2\naging = "1m"\n[daemon]\nlisten = 7070')
    lines = [problem.line for problem in caught.value.problems]
    assert lines == [1, 4, 5, 7]


def test_a_flood_of_problems_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD + "".join(f"k{number} = 1\n" for number in range(1000))
    found = problems_of(text)
    assert len(found) == PROBLEMS_MAX + 1
    assert found[-1] == f"{1000 - PROBLEMS_MAX} more problems of this sort"


def test_too_many_tenants_are_one_problem() -> None:
    rows = "".join(f"t{number:05d}={{}}\n" for number in range(100_001))
    found = problems_of(f"[resource.a]\nkind='share'\n[resource.a.tenant]\n{rows}")
    assert found == ["it has 100001 tenants"]


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 100_000, "-" + "9" * 400, "9223372036854775808"])
def test_a_number_beyond_all_bounds_is_a_problem(number: str) -> None:
    found = problems_of(f"[resource.q]\nkind='quota'\ntenant = {{ a = {{ limit = {number} }} }}")
    assert len(found) == 1 and len(found[0]) < 100


def test_a_limit_that_is_exactly_the_most_is_fine() -> None:
    text = "[resource.q]\nkind='quota'\ntenant = { a = { limit = 9223372036854775807 } }"
    assert parse(text).resource("q").tenant("a").limit == 2**63 - 1


def test_a_table_that_was_never_a_file_is_read_alike() -> None:
    assert build(tomllib.loads(GOOD)).resource("x").kind == "claim"
    with pytest.raises(PolicyError) as caught:
        build({"resource": {"x": {"kind": "claim", "paths": "yes"}}}, "table")
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [("resource.x.paths", None)]


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
KEYS = ["kind", "servers", "tenant", "capacity", "limit", "interval", "without_bursar", "costs", "words"]


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["rate", "share", "pool", "quota", "claim"]),
    st.dictionaries(st.sampled_from(KEYS), TREES),
    st.dictionaries(st.text(), TREES),
    TREES,
)
def test_whatever_the_table_the_outcome_is_a_policy_or_its_problems(
    kind: str, keys: dict[str, Any], tenants: dict[str, Any], daemon: Any
) -> None:
    table = {"resource": {"x": {"kind": kind, "tenant": tenants, **keys}}, "daemon": daemon}
    try:
        build(table)
    except PolicyError as error:
        assert error.problems


@settings(max_examples=250, deadline=None)
@given(st.text(alphabet=st.sampled_from("[]{}=.,'\"#\n\\ ab1-\r\t\0\x0b\u00e9")) | st.text())
@example("'''a''''b")
@example('"""a"""""')
@example("[[a]]\n[a]")
@example("a = 2026-02-30")
@example("[resource.x]\nkind = 'claim'\n[resource.x.y]\n[resource]\nx = 1")
def test_whatever_the_text_the_outcome_is_a_policy_or_its_problems(text: str) -> None:
    try:
        parse(text)
    except PolicyError as error:
        assert error.problems


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1), st.integers(0, 9), min_size=1))
def test_every_key_is_found_on_its_line(table: dict[str, int]) -> None:
    escaped = {name: "".join(f"\\u{ord(letter):04x}" for letter in name) for name in table}
    text = "".join(f'"{escaped[name]}" = {value}\n' for name, value in table.items())
    assert list(tomllib.loads(text)) == list(table)
    assert find_lines(text) == {(name,): line for line, name in enumerate(table, start=1)}


def test_the_bound_on_files_is_checked_on_what_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that grows after its size was seen is cut off at the bound all the same."""
    file = tmp_path / "growing.toml"
    file.write_bytes(b"#" * (FILE_MAX_BYTES + 5))
    small = os.stat(__file__)
    monkeypatch.setattr(reading.os, "fstat", lambda _: small)
    with pytest.raises(PolicyError, match="more than 16MiB"):
        load(file)
