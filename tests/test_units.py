"""Quantities as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.units import (
    COUNT_MAX,
    SECOND_NS,
    Rate,
    read_count,
    read_duration_ns,
    read_rate,
    read_size_bytes,
    write_count,
    write_duration,
    write_size,
)


@pytest.mark.parametrize(
    ("text", "count", "per_s"),
    [
        ("30k/s", 30_000, 1),
        ("30K/s", 30_000, 1),
        ("1_000/s", 1000, 1),
        ("1.5k/s", 1500, 1),
        ("60/min", 1, 1),
        ("90/min", 3, 2),
        ("1/h", 1, 3600),
        ("0.1/s", 1, 10),
        ("5/10s", 1, 2),
        ("5/ms", 5000, 1),
        ("24/d", 1, 3600),
        ("0/s", 0, 1),
        ("2 M/s", 2_000_000, 1),
    ],
)
def test_a_rate_is_exact_and_has_one_form(text: str, count: int, per_s: int) -> None:
    assert read_rate(text) == Rate(count, per_s * SECOND_NS, "requests")


def test_a_rate_of_bytes_says_so() -> None:
    assert read_rate("1GiB/s") == Rate(2**30, SECOND_NS, "bytes")
    assert read_rate("1GB/s") == Rate(10**9, SECOND_NS, "bytes")
    assert read_rate("512B/s").unit == "bytes"


def test_tokens_in_a_period_are_rounded_down() -> None:
    assert read_rate("1k/s").per(SECOND_NS // 3) == 333
    assert read_rate("1/min").per(59 * SECOND_NS) == 0
    assert read_rate("1/min").per(60 * SECOND_NS) == 1


def test_rates_compare_exactly() -> None:
    assert read_rate("59k/min") < read_rate("1k/s")
    assert read_rate("60k/min") == read_rate("1k/s")
    assert read_rate("3/s") >= read_rate("3/s") > read_rate("2999999999/1000000000s")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("30k/fortnight", '"fortnight" is not a unit of time'),
        ("30k", "does not say in what time"),
        ("30k/", "does not say in what time"),
        ("-5/s", "is negative"),
        ("5/0s", "over no time"),
        ("fast", "does not say in what time"),
        ("x/s", "is not a number with a unit"),
        ("5Mbit/s", '"Mbit" is not a unit of count or size'),
        ("5m/s", '"m" is not a unit of count or size'),
        ("1e3/s", "is not a number with a unit"),
        ("٣/s", "is not a number with a unit"),
        ("5/s ", '"s " is not a unit of time'),
        ("9" * 70 + "/s", "longer than 64"),
        ("9P/ns", "too fast"),
        ("5/ ", "is not a unit of time"),
    ],
)
def test_what_is_not_a_rate_is_named(text: str, wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rate(text)
    assert wrong in str(caught.value)


def test_durations_are_whole_nanoseconds() -> None:
    assert read_duration_ns("200ms") == 200_000_000
    assert read_duration_ns("1.5h") == 5400 * SECOND_NS
    assert read_duration_ns("7d") == 7 * 86400 * SECOND_NS
    for text in ("200", "1m", "0.5ns", "-1s", "1 fortnight", "300000d", ""):
        with pytest.raises(UsageError):
            read_duration_ns(text)


def test_sizes_and_counts_do_not_mix() -> None:
    assert read_size_bytes("64MiB") == 64 * 2**20
    assert read_size_bytes("1.5 kB") == 1500
    assert read_count("5M") == 5_000_000
    for read, text in (
        (read_size_bytes, "5M"),
        (read_count, "5MB"),
        (read_count, "1.5"),
        (read_count, "10000P"),
    ):
        with pytest.raises(UsageError):
            read(text)


@given(st.integers(0, COUNT_MAX))
def test_what_is_written_is_read_back(value: int) -> None:
    assert read_count(write_count(value)) == value
    assert read_size_bytes(write_size(value)) == value
    assert read_duration_ns(write_duration(value)) == value


@given(st.fractions(0, 10**12, max_denominator=10**6), st.sampled_from(["requests", "bytes"]))
def test_a_rate_that_is_written_is_read_back(per_second: Fraction, unit: str) -> None:
    rate = Rate.of(per_second, unit)  # type: ignore[arg-type]
    assert rate.per_second == per_second
    assert read_rate(str(rate)) == rate


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_rate, read_count, read_size_bytes, read_duration_ns):
        try:
            assert read(text) is not None
        except UsageError as error:
            assert len(str(error)) < 200
