"""Targets and bounds by columns: the same numbers as one by one, however large."""

from __future__ import annotations

import numpy as np

from bursar.estimate import extrapolate
from bursar.rates.messages import UNBOUNDED
from bursar.rates.placement import extrapolate_all
from bursar.rates.terms import Terms
from bursar.rates.views import Columns, Held, ServerView, add_up, make_columns, scale
from bursar.world import SECOND_NS


def test_sums_and_products_are_exact_where_64_bits_do_not_hold_them() -> None:
    large = np.array([7, UNBOUNDED], np.int64)
    assert add_up([large] * 8, 2) == [56, 8 * UNBOUNDED]
    assert add_up([np.array([7, 8])] * 3, 2) == [21, 24]
    assert add_up([], 2) == [0, 0]
    counts = [0, 5, 2**53]
    left_ns, whole_ns = 700_000_001, SECOND_NS
    assert scale(np.array(counts), left_ns, whole_ns).tolist() == [c * left_ns // whole_ns for c in counts]


def test_arrivals_go_on_in_a_column_as_they_do_one_by_one() -> None:
    counts = [0, 1, 3, 1_000_003]
    for seen_ns, left_ns in ((199_999_999, 640_000_001), (0, 5), (5, 0)):
        found = extrapolate_all(np.array(counts), seen_ns, left_ns).tolist()
        assert found == [extrapolate(count, seen_ns, left_ns) for count in counts]


def test_columns_are_the_targets_that_they_were_made_of() -> None:
    targets = {"a": (5, 2, 1), "b": (UNBOUNDED, 0, 0)}
    columns = make_columns(targets)
    assert dict(columns) == targets and make_columns(columns) is columns
    assert dict(columns.keep({"b": None})) == {"b": targets["b"]}
    assert dict(make_columns({})) == {}


def test_what_was_granted_counts_by_its_column_as_it_does_by_its_rows() -> None:
    names, terms = ["a", "b"], {"a": Terms(0, 30), "b": Terms(0, None)}
    levels = np.array([4, UNBOUNDED])
    held = Held("s", {"a": 4, "b": UNBOUNDED}, tenants=names, levels=levels)
    plain = Held("s", held.rows)
    for tenants in (names, ["b", "a", "c"]):
        assert held.count_all(tenants, terms).tolist() == plain.count_all(tenants, terms).tolist()
    report: object = None
    view = ServerView("s", 1, 0, 0, report, {}, acknowledged=held)  # type: ignore[arg-type]
    view.sent(1, Held("s", {"a": 9}, tenants=names, levels=np.array([9, 0])))
    assert view.count_all(names, terms).tolist() == [9, UNBOUNDED]
    view.acknowledge(1, [("a", 11)])
    assert view.count_all(names, terms).tolist() == [11, 0]
    assert isinstance(make_columns({"a": (1, 1, 1)}), Columns)
