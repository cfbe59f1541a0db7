"""Reservations that cannot be met are named, with what would do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.rates.plan import Question, apply, plan


def test_what_fits_is_feasible() -> None:
    made = plan(Question({"a": 10, "b": 10}, {"x": 12, "y": 8}, {}))
    assert made.feasible and (made.reserved, made.capacity) == (20, 20)


def test_a_tenant_on_a_full_server_is_named_with_the_server() -> None:
    made = plan(Question({"a": 10, "b": 10}, {"x": 12, "y": 3}, {"x": ["a"]}))
    (shortage,) = made.shortages
    assert dict(shortage.tenants) == {"x": 12} and dict(shortage.servers) == {"a": 10}
    assert shortage.missing == 2
    changes = {change.what: change for (change,) in shortage.remedies}
    assert changes["placement"].server == "b"
    assert changes["capacity"].value == 12 and changes["reservation"].value == 10


def test_groups_that_share_nothing_are_told_apart() -> None:
    where = {"x": ["a"], "y": ["b"]}
    made = plan(Question({"a": 1, "b": 1, "c": 9}, {"x": 2, "y": 3, "z": 1}, where))
    assert [(set(s.tenants), set(s.servers), s.missing) for s in made.shortages] == [
        ({"x"}, {"a"}, 1),
        ({"y"}, {"b"}, 2),
    ]


def test_no_placement_is_offered_where_everything_is_full() -> None:
    made = plan(Question({"a": 5, "b": 5}, {"x": 6, "y": 5}, {"x": ["a"], "y": ["b"]}))
    (shortage,) = made.shortages
    assert [change.what for (change,) in shortage.remedies] == ["capacity", "reservation"]


def test_where_one_change_is_not_enough_several_add_up_to_what_is_missing() -> None:
    where = {"x": ["a"], "y": ["b"], "z": ["a", "b"]}
    (shortage,) = plan(Question({"a": 0, "b": 0}, {"x": 1, "y": 1, "z": 1}, where)).shortages
    for remedy in shortage.remedies:
        assert len(remedy) > 1
        grown = sum(abs((change.value or 0) - (change.before or 0)) for change in remedy)
        assert grown == shortage.missing == 3


def test_nobody_who_reserves_is_feasible_and_no_server_is_a_mistake() -> None:
    assert plan(Question({"a": 1}, {}, {})).feasible
    with pytest.raises(UsageError, match="no server"):
        Question({}, {"x": 1}, {})


QUESTIONS = st.builds(
    lambda capacity, rows: Question(
        {f"s{k}": value for k, value in enumerate(capacity)},
        {f"t{k}": row[0] for k, row in enumerate(rows)},
        {
            f"t{k}": [f"s{j}" for j in sorted(row[1]) if j < len(capacity)] or ["s0"]
            for k, row in enumerate(rows)
        },
    ),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 3), min_size=1)), min_size=1, max_size=5),
)


def is_feasible(question: Question) -> bool:
    """Hall's condition, tried for every set of tenants: an independent judge."""
    tenants = list(question.reservation)
    for size in range(1, len(tenants) + 1):
        for group in itertools.combinations(tenants, size):
            servers = set().union(*(question.servers.get(t) or question.capacity for t in group))
            if sum(question.reservation[t] for t in group) > sum(question.capacity[s] for s in servers):
                return False
    return True


@settings(max_examples=150, deadline=None)
@given(QUESTIONS)
def test_the_plan_agrees_with_halls_condition_and_its_remedies_are_enough(question: Question) -> None:
    made = plan(question)
    assert made.feasible == is_feasible(question)
    for shortage in made.shortages:
        assert shortage.missing > 0
        assert {change.what for remedy in shortage.remedies for change in remedy} >= {
            "capacity",
            "reservation",
        }
        for remedy in shortage.remedies:
            changed = apply(question, remedy)
            kept = {name: changed.reservation[name] for name in shortage.tenants}
            alone = Question(changed.capacity, {n: v for n, v in kept.items() if v}, changed.servers)
            assert is_feasible(alone)


def test_many_tenants_are_planned_at_once() -> None:
    rng = np.random.default_rng(3)
    capacity = {f"s{k}": 1000 for k in range(64)}
    reservation = {f"t{k}": int(v) for k, v in enumerate(rng.integers(1, 10, 10_000))}
    where = {name: [f"s{k}" for k in rng.choice(64, 3, replace=False)] for name in reservation}
    where["t0"], reservation["t0"] = ["s7"], 5000
    made = plan(Question(capacity, reservation, where))
    assert "t0" in made.shortages[0].tenants and "s7" in made.shortages[0].servers
