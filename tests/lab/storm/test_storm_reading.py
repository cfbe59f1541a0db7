"""The checker's own readers, beside examples from the documentation; and stretches of time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storm_tale import Tale

from bursar_lab.storm.checker.changes import Change, find_possible
from bursar_lab.storm.checker.policies import read_policy
from bursar_lab.storm.checker.quantities import (
    QuantityError,
    read_count,
    read_duration_ns,
    read_rate,
    tokens_in,
)
from bursar_lab.storm.checker.spans import Spans
from bursar_lab.storm.checker.windows import find_fullest

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=9
)


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("30k/s", 30_000),
        ("60_000/s", 60_000),
        ("90/min", Fraction(3, 2)),
        ("5/10s", Fraction(1, 2)),
        ("1GiB/s", 2**30),
        ("1.5GB/s", 1_500_000_000),
        ("2.5/min", Fraction(1, 24)),
        ("0.1/s", Fraction(1, 10)),
    ],
)
def test_rates(text: str, per_second: Fraction) -> None:
    assert read_rate(text) == per_second


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [("200ms", 200_000_000), ("1.5h", 5_400 * 10**9), ("7d", 604_800 * 10**9), ("5min", 300 * 10**9)],
)
def test_durations(text: str, duration_ns: int) -> None:
    assert read_duration_ns(text) == duration_ns


@pytest.mark.parametrize(
    ("value", "count"),
    [(5_000_000, 5_000_000), ("5M", 5_000_000), ("2.5k", 2500), ("64MiB", 2**26), ("10GB", 10**10)],
)
def test_counts(value: object, count: int) -> None:
    assert read_count(value) == count


@pytest.mark.parametrize("text", ["", "fast", "3/fortnight", "-1/s", "3", True, None])
def test_what_is_no_rate(text: object) -> None:
    with pytest.raises(QuantityError):
        read_rate(text)


def test_a_limit_is_never_passed_by_rounding() -> None:
    assert tokens_in(read_rate("5/10s"), 10**9 * 19) == 9


def test_defaults_are_those_of_the_documentation() -> None:
    policy = read_policy(
        '[resource.a]\nkind = "rate"\nservers = { x = "auto" }\n[resource.b]\nkind = "quota"'
    )
    rate, quota = policy.resources["a"], policy.resources["b"]
    assert (rate.period_ns, rate.without_bursar, rate.shadow, rate.servers) == (
        10**9,
        "keep",
        False,
        {"x": None},
    )
    assert (quota.without_bursar, quota.window) == ("refuse", "none")


def test_the_nearest_template_counts() -> None:
    table = 'kind = "rate"\nservers = { x = "9/s" }\n[resource.a.tenant]\n'
    terms = '"*" = { limit = "1/s" }\n"acme/*" = { limit = "2/s" }\n"acme/eu/*" = { limit = "3/s" }'
    resource = read_policy(f"[resource.a]\n{table}{terms}").resources["a"]
    found = {
        name: resource.template(name) for name in ("acme", "acme/x", "acme/eu", "acme/eu/x", "acme/eu/x/y")
    }
    assert [terms.limit for terms in found.values() if terms] == [1, 2, 2, 3, 3]


@given(SPANS, st.integers(0, 70), st.integers(0, 9))
def test_stretches_agree_with_counting_moments(spans: list[tuple[int, int]], start: int, length: int) -> None:
    merged = Spans(spans)
    moments = {at for since, until in spans for at in range(since, until)}
    assert merged.total == len(moments)
    assert merged.overlap(start, start + length) == len(moments & set(range(start, start + length)))
    touches = any(since <= start + length and start <= until for since, until in spans)
    assert merged.touch(start, start + length) == touches


CHANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.booleans()), max_size=6)


@given(CHANGES, st.integers(0, 60), st.integers(0, 9))
def test_a_value_is_possible_unless_a_later_one_was_surely_in_force(
    rows: list[tuple[int, int, bool]], since: int, length: int
) -> None:
    changes = [Change(at, at + took, sure, number) for number, (at, took, sure) in enumerate(sorted(rows))]
    expected = [
        change.value
        for change in changes
        if change.at <= since + length
        and not any(other.sure and other.at > change.end and other.end <= since for other in changes)
    ]
    assert find_possible(changes, since, since + length) == expected


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=12),
    st.sampled_from([100, 200]),
)
def test_the_fullest_stretch_agrees_with_a_plain_search(
    rows: list[tuple[int, int, int]], length: int
) -> None:
    tale = Tale('[resource.d]\nkind = "share"\ncapacity = "1/s"\ntenant = { acme = {} }')
    for at, took, amount in rows:
        tale.ask(at / 100, "d", amount=amount, took=took / 100)
    grants = tale.history().grants
    length_ns, first = length * 10**7, min(grant.at for grant in grants)
    starts = range(first - length_ns, max(grant.at for grant in grants) + 1, length_ns // 10)
    plain = max(
        sum(grant.used for grant in grants if start <= grant.at and grant.end <= start + length_ns)
        for start in starts
    )
    fullest = find_fullest(grants, length_ns)
    assert fullest.tokens == plain == sum(grant.used for grant in fullest.grants)
