from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.claims.layout import Layout, node_name
from bursar.claims.requirements import Mode, Template, conflicts, parse
from bursar.errors import BursarError, UsageError
from bursar.stores.bounds import check_path


def text(requirements: object) -> str:
    return ", ".join(map(str, requirements))  # type: ignore[call-overload]


def test_names_are_sorted_and_the_exclusive_mode_counts() -> None:
    assert text(parse("b:S, a:E")) == "a:E, b:S"
    assert text(parse(["a:S", "a:E", "a:S"])) == "a:E"
    assert text(parse("a")) == "a:E"


def test_a_path_takes_what_is_above_it_shared() -> None:
    """Section 3.2.1: vm-1.powerOn."""
    assert text(parse("dc-1/cluster-1/host-1/vm-1:E", paths=True)) == (
        "dc-1:S, dc-1/cluster-1:S, dc-1/cluster-1/host-1:S, dc-1/cluster-1/host-1/vm-1:E"
    )
    assert text(parse("dc-1/x:E")) == "dc-1/x:E"


def test_parts_of_one_thing_do_not_conflict_and_the_whole_conflicts_with_each() -> None:
    """Section 6.2.4: powering on beside renaming."""
    power, name, whole = parse("vm-1#power:E"), parse("vm-1#name:E"), parse("vm-1:E")
    assert text(power) == "vm-1:S, vm-1#power:E"
    assert not conflicts(power, name)
    assert conflicts(power, whole) and conflicts(whole, name)
    assert conflicts(power, power)


def test_a_template_looks_names_up() -> None:
    inventory = {("host", "vm-1"): "host-1", ("cluster", "host-1"): "cluster-1"}
    template = Template("{cluster(host(vm))}:S, {host(vm)}:S, {vm}:E")
    filled = template.fill(lambda relation, name: inventory[relation, name], vm="vm-1")
    assert filled == "cluster-1:S, host-1:S, vm-1:E"
    with pytest.raises(UsageError, match="vm="):
        template.fill(lambda relation, name: name)
    with pytest.raises(UsageError, match="template term"):
        Template("{host(}:E")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "use printable"),
        ([], "at least one name"),
        ("a:X", "shared"),
        ("a\0:E", "printable"),
        ("x" * 10_000 + ":E", "10000 bytes"),
        ("a//b:E", "segment"),
        ("#a:E", "segment"),
        ("a#b#c:E", "segment"),
        ([f"n{number}:E" for number in range(100_000)], "more than 1000 names"),
        ([7], "text such as"),
    ],
)
def test_requirements_that_make_no_sense_are_refused(bad: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(bad)  # type: ignore[arg-type]


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_and_what_is_read_fits_the_store(name: str) -> None:
    try:
        requirements = parse(name, paths=True)
    except BursarError:
        return
    for found, _ in requirements:
        check_path(Layout("x").name(found))


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_different_names_have_different_nodes(one: str, other: str) -> None:
    try:
        parse(one), parse(other)
    except BursarError:
        return
    assert (node_name(one) == node_name(other)) == (one == other)


def test_modes_are_written_as_the_thesis_does() -> None:
    assert [str(mode) for mode in Mode] == ["S", "E"]
