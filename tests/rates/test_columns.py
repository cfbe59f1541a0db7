"""Tenants by columns: the same numbers as one by one, however large; and nothing that cannot be."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bursar.estimate import extrapolate
from bursar.rates.allotment import Allotment, read_allowances
from bursar.rates.cells import extrapolate_all
from bursar.rates.columns import UNNAMED, make_allowances, make_rows, pack, read_columns, unpack
from bursar.rates.granting import count_bounds
from bursar.rates.ledger import Ledger
from bursar.rates.messages import UNBOUNDED, Allowance, Allowances, Grant, Part, Row
from bursar.rates.parts import count_part
from bursar.rates.roll import Roll, renew
from bursar.rates.terms import Terms
from bursar.rates.views import Held, Sent, ServerView, scale
from bursar.world import SECOND_NS


@pytest.mark.parametrize(
    "values",
    [[], [0], [127, 128], [UNNAMED, 0, 40_000], [UNBOUNDED, 3], [2**31, 5], [2**53], [UNBOUNDED, UNNAMED]],
)
def test_a_column_comes_out_as_it_went_in(values: list[int]) -> None:
    data = pack(np.array(values, np.int64))
    assert unpack(data, len(values), UNNAMED).tolist() == values


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00ab", b"\x07abcdefgh", b"\x03abcdefg", b"\x00\x80", b"\x01\x00"]
)
def test_what_is_no_column_of_one_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data, 1)


def test_sums_and_products_are_exact_where_64_bits_do_not_hold_them() -> None:
    ledger = Ledger({})
    roll, held = ledger.roll, ledger.hold("s", {"a": 7, "b": UNBOUNDED})
    assert count_bounds(roll, [held] * 8).tolist() == [56, UNBOUNDED]
    assert count_bounds(roll, []).tolist() == [0, 0]
    counts = [0, 5, 2**53]
    left_ns, whole_ns = 700_000_001, SECOND_NS
    assert scale(np.array(counts), left_ns, whole_ns).tolist() == [c * left_ns // whole_ns for c in counts]


def test_arrivals_go_on_in_a_column_as_they_do_one_by_one() -> None:
    counts = [0, 1, 3, 1_000_003, 2**53]
    for seen_ns, left_ns in ((199_999_999, 640_000_001), (0, 5), (5, 0)):
        found = extrapolate_all(np.array(counts), seen_ns, left_ns).tolist()
        assert found == [min(extrapolate(count, seen_ns, left_ns), 2**53) for count in counts]


TERMS = {
    "all": Terms(0, None),
    "odd": Terms(0, 101),
    "few": Terms(0, 7),
    "bound": Terms(0, 10, servers=("s", "t"), groups=(("z", ("s", "t")),)),
    "elsewhere": Terms(0, 10, servers=("t",), groups=(("y", ("t",)),)),
}


@pytest.mark.parametrize("part", [Part(0, 3), Part(2, 3), Part(1, 3, 1, 2), Part(0, 0)])
def test_parts_are_counted_by_columns_as_they_are_one_by_one(part: Part) -> None:
    roll = Roll(1, TERMS)
    names = [*TERMS, "unknown"]
    roll.number_all(names)
    one_by_one = [count_part(name, TERMS.get(name), "s", part) for name in names]
    assert roll.count_parts("s", part).tolist() == one_by_one
    roll.opened = False
    assert not roll.count_parts("s", part).any(), "parts of limits that are not known"


def test_whoever_is_not_named_counts_with_its_part() -> None:
    roll = Roll(1, TERMS)
    roll.number("odd")
    held = Held("s", np.array([3]), Part(0, 2))
    roll.number_all(TERMS)
    expected = {name: count_part(name, terms, "s", Part(0, 2)) for name, terms in TERMS.items()} | {"odd": 3}
    assert dict(zip(roll.names, held.count_all(roll).tolist(), strict=True)) == expected


def test_a_bound_rises_with_what_is_sent_and_falls_with_what_is_acknowledged() -> None:
    ledger = Ledger({"a": Terms(0, 30), "b": Terms(0, None)})
    roll = ledger.roll
    report: object = None
    view = ServerView("s", 1, 0, 0, report)  # type: ignore[arg-type]
    view.acknowledged = ledger.hold("s", {"a": 4, "b": UNBOUNDED})
    view.unacknowledged.append(Sent(1, Held("s", np.array([9, 0])), 2))
    assert view.count_all(roll).tolist() == [9, UNBOUNDED]
    view.acknowledge(roll, 1, [("a", 11)])
    assert view.count_all(roll).tolist() == [11, 0]
    assert view.known == 2


def test_a_new_roll_keeps_the_names_that_are_needed() -> None:
    roll = Roll(1, TERMS)
    roll.number_all(TERMS)
    renewed, numbers = renew(roll, np.array([False, True, False, True, False]), 2, TERMS)
    assert renewed.names == ["odd", "bound"] and numbers.tolist() == [-1, 0, -1, 1, -1]
    assert renewed.limits.tolist() == [101, 10] and list(renewed.bound) == [1]


def test_rows_that_cannot_be_are_not_read() -> None:
    roll = Roll(3, TERMS)
    roll.number_all(["odd", "few"])
    good = make_rows([Row("odd", 5, 1, 0, 2, True)])
    assert roll.read(good) is not None
    change = msgspec.structs.replace
    numbered = change(good, roll=3, names=(), numbers=pack(np.array([1])))
    seen = roll.read(numbered)
    assert seen is not None and seen.numbers.tolist() == [1] and seen.allowance.tolist() == [5]
    bad = [
        change(numbered, roll=2),
        change(numbered, numbers=pack(np.array([2]))),
        change(numbered, numbers=b"\x09"),
        change(good, columns=good.columns[1:]),
        change(good, names=("odd", "few")),
        change(good, columns=(*good.columns[:6], pack(np.array([2**60])))),
    ]
    assert [roll.read(each) for each in bad] == [None] * len(bad)


def make_grant(rows: Allowances, epoch: int = 1) -> Grant:
    return Grant(epoch, 1, 1, 1, 0, 0, rows)


def test_an_allotment_knows_names_that_it_was_told_before() -> None:
    allotment = Allotment()
    assert allotment.take(make_grant(make_allowances([Allowance("a", 5, 2, 1), Allowance("b", 6, 0, 3)])))
    assert allotment.find("a") == Allowance("a", 5, 2, 1)
    levels, paces, none = pack(np.array([4, UNNAMED, UNBOUNDED])), pack(np.array([1, 0, 0])), b""
    later = Allowances(1, 1, ("b", "c"), levels, paces, none, none, none, none)
    assert allotment.take(make_grant(later))
    assert allotment.find("a") == Allowance("a", 4, 0, 1)
    assert allotment.find("b") is None and allotment.find("d") is None
    assert list(allotment.list_named()) == [("a", 4), ("c", UNBOUNDED)]
    allotment.clear()
    assert allotment.find("a") is None and allotment.find_number("c") == 2


def test_whoever_is_not_named_has_nothing_of_the_first_that_is() -> None:
    """A server would take no grant in which somebody has more of a priority part than it has."""
    allotment = Allotment()
    assert allotment.take(make_grant(make_allowances([Allowance("a", 5, 2, 1), Allowance("b", 6, 0, 3)])))
    columns = allotment.read(np.array([-1, 1, 7, 0]))
    assert [column.tolist() for column in columns] == [[UNNAMED, 6, UNNAMED, 5], [0, 0, 0, 2], [0, 3, 0, 1]]


def test_a_grant_that_cannot_be_read_changes_nothing() -> None:
    allotment = Allotment()
    told = make_allowances([Allowance("a", 5, 2, 1)])
    assert allotment.take(make_grant(told))
    change = msgspec.structs.replace
    bad = [
        make_grant(change(told, known=1, names=()), epoch=2),
        make_grant(change(told, known=1, names=(), roll=2)),
        make_grant(change(told, known=2)),
        make_grant(change(told, levels=b"")),
        make_grant(change(told, numbers=pack(np.array([1])))),
        make_grant(change(told, allowances=pack(np.array([-1])))),
    ]
    for grant in bad[:5]:
        assert not allotment.take(grant)
        assert allotment.find("a") == Allowance("a", 5, 2, 1)
    with pytest.raises(ValueError):
        read_allowances(bad[4].rows)


def test_rows_by_name_are_what_they_were_made_of() -> None:
    numbers, columns = read_columns(make_rows([Row("a", UNBOUNDED, 1, 2, 3, True, 4, 5)]))
    assert numbers.size == 0
    assert [column.tolist() for column in columns] == [[UNBOUNDED], [1], [2], [3], [1], [4], [5]]
