"""Quantities as policies write them, read anew and exactly: "60k/s", "5min", "64MiB", 5_000_000.

Written from the documentation of the policy file, not from the product's reader.
"""

from __future__ import annotations

import re
from fractions import Fraction

SECOND_NS = 1_000_000_000

_PREFIXES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_TIMES_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "min": 60 * SECOND_NS,
    "h": 3_600 * SECOND_NS,
    "d": 86_400 * SECOND_NS,
}
_QUANTITY = re.compile(r"\s*([0-9_]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class QuantityError(ValueError):
    """A text that is no quantity: the policy was not one that a run could have applied."""


def read_count(value: object) -> Fraction:
    """5_000_000, "5M" or "64MiB"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    number, unit = _split(value)
    return number * _factor(unit)


def read_duration_ns(value: object) -> int:
    number, unit = _split(value)
    if unit not in _TIMES_NS:
        raise QuantityError(f"{value!r}: {unit!r} is no unit of time")
    return int(number * _TIMES_NS[unit])


def read_rate(value: object) -> Fraction:
    """Tokens a second: "30k/s", "90/min", "5/10s", "1GiB/s"."""
    if not isinstance(value, str) or "/" not in value:
        raise QuantityError(f"{value!r} is no rate")
    amount, _, time = value.partition("/")
    per_ns = read_duration_ns(time if time[:1].isdigit() else f"1{time}")
    return read_count(amount) * SECOND_NS / per_ns


def tokens_in(rate: Fraction, time_ns: int) -> int:
    """Whole tokens, rounded down: the most that a limit lets through."""
    return int(rate * time_ns / SECOND_NS)


def _split(value: object) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise QuantityError(f"{value!r} is no quantity")
    return Fraction(match[1].replace("_", "")), match[2]


def _factor(unit: str) -> int:
    if unit.endswith("iB") and unit[:-2] in _PREFIXES:
        return int(1024 ** _PREFIXES[unit[:-2]])
    prefix = unit.removesuffix("B")
    if prefix not in _PREFIXES:
        raise QuantityError(f"{unit!r} is no unit")
    return int(1000 ** _PREFIXES[prefix])
