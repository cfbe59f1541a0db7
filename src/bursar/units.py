"""Quantities as people write them, turned into whole numbers with a known unit.

    "30k/s"    a rate: 30,000 requests a second        "200ms"   a duration: 200,000,000 ns
    "1GiB/s"   a rate: 2^30 bytes a second             "64MiB"   a size: 67,108,864 bytes
    "5M"       a count: 5,000,000

k, M, G, T, P are thousands; KiB, MiB, GiB, TiB, PiB are powers of 1024 and always bytes. Nothing
is ever a float: "0.1/s" is exactly one in ten seconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

import msgspec

from bursar.errors import UsageError

COUNT_MAX = 2**63 - 1
"""The largest count, size or duration anywhere: it fits a signed 64-bit word."""

TEXT_MAX = 64
SECOND_NS = 10**9

THOUSANDS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BYTES = {
    "B": 1,
    **{f"{prefix}B": factor for prefix, factor in THOUSANDS.items() if prefix},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
DURATIONS_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": SECOND_NS,
    "min": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": 86400 * SECOND_NS,
}

NUMBER_PATTERN = r"[0-9]+(_[0-9]+)*(\.[0-9]+)?"
COUNT_PATTERN = rf"{NUMBER_PATTERN} ?[kKMGTP]?"
SIZE_PATTERN = rf"{NUMBER_PATTERN} ?([kKMGTP]?B|[KMGTP]iB)"
DURATION_PATTERN = rf"{NUMBER_PATTERN} ?(ns|us|ms|s|min|h|d)"
PER_PATTERN = rf"/({NUMBER_PATTERN} ?)?(ns|us|ms|s|min|h|d)"

_NUMBER = re.compile(rf"({NUMBER_PATTERN}) ?([^\s0-9]*)")

Unit = Literal["requests", "bytes"]


class Rate(msgspec.Struct, frozen=True):
    """`count` requests (or bytes) in every `per_ns` nanoseconds, exactly.

    One rate has one form: a count a second where that is whole, else the smallest whole number
    of seconds ("90/min" is 3 in 2 s). Make one with `read_rate` or `Rate.of`.
    """

    count: int
    per_ns: int = SECOND_NS
    unit: Unit = "requests"

    @classmethod
    def of(cls, per_second: Fraction | int, unit: Unit = "requests") -> Rate:
        exact = Fraction(per_second)
        return cls(exact.numerator, exact.denominator * SECOND_NS, unit)

    @property
    def per_second(self) -> Fraction:
        return Fraction(self.count * SECOND_NS, self.per_ns)

    def per(self, period_ns: int) -> int:
        """Whole tokens in a period, rounded down: a limit is never exceeded by rounding."""
        return self.count * period_ns // self.per_ns

    def __lt__(self, other: Rate) -> bool:
        return self.count * other.per_ns < other.count * self.per_ns

    def __le__(self, other: Rate) -> bool:
        return self.count * other.per_ns <= other.count * self.per_ns

    def __gt__(self, other: Rate) -> bool:
        return other < self

    def __ge__(self, other: Rate) -> bool:
        return other <= self

    def __str__(self) -> str:
        write = write_size if self.unit == "bytes" else write_count
        for unit in ("s", "min", "h", "d"):
            if DURATIONS_NS[unit] % self.per_ns == 0:
                return f"{write(self.count * DURATIONS_NS[unit] // self.per_ns)}/{unit}"
        return f"{write(self.count)}/{write_duration(self.per_ns)}"


ZERO_RATE = Rate(0)


def read_rate(text: str) -> Rate:
    """Read "30k/s", "1GiB/s", "2.5/min" or "5/10s". Raises UsageError."""
    amount, slash, time = text.partition("/")
    if not slash or not time:
        raise UsageError(f'"{_short(text)}" does not say in what time')
    number, unit = _split(amount, text)
    time_number, time_unit = _split(time, text) if time[0].isdecimal() else (Fraction(1), time)
    per_ns = time_number * _factor(time_unit, DURATIONS_NS, text, "unit of time")
    if per_ns <= 0:
        raise UsageError(f'"{_short(text)}" is a rate over no time')
    in_bytes = unit in BYTES
    factor = BYTES[unit] if in_bytes else _factor(unit, THOUSANDS, text, "unit of count or size")
    per_second = number * factor * SECOND_NS / per_ns
    if per_second > COUNT_MAX:
        raise UsageError(f'"{_short(text)}" is too fast to count')
    return Rate.of(per_second, "bytes" if in_bytes else "requests")


def read_duration_ns(text: str) -> int:
    """Read "200ms", "1.5h" or "7d" as nanoseconds. Raises UsageError."""
    number, unit = _split(text, text)
    return _whole(number * _factor(unit, DURATIONS_NS, text, "unit of time"), text)


def read_size_bytes(text: str) -> int:
    """Read "64MiB", "10GB" or "512B" as bytes. Raises UsageError."""
    number, unit = _split(text, text)
    return _whole(number * _factor(unit, BYTES, text, "unit of size"), text)


def read_count(text: str) -> int:
    """Read "5M", "1_000" or "2.5k" as a whole number. Raises UsageError."""
    number, unit = _split(text, text)
    return _whole(number * _factor(unit, THOUSANDS, text, "unit of count"), text)


def write_count(count: int) -> str:
    """The shortest exact form: 30000 is "30k", 30001 stays "30001"."""
    return _write(count, [(factor, prefix) for prefix, factor in THOUSANDS.items() if prefix in "kMGTP"])


def write_size(size_bytes: int) -> str:
    """The shortest exact form: 1073741824 is "1GiB", 1500 is "1500B"."""
    forms = [(1024**power, f"{prefix}iB") for power, prefix in enumerate("KMGTP", start=1)]
    return _write(size_bytes, forms, "B")


def write_duration(duration_ns: int) -> str:
    """The shortest exact form: 200000000 is "200ms", 90 s is "90s"."""
    return _write(duration_ns, [(factor, unit) for unit, factor in DURATIONS_NS.items()], "ns")


def _write(value: int, forms: list[tuple[int, str]], plain: str = "") -> str:
    for factor, suffix in reversed(forms):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return f"{value}{plain}"


def _split(part: str, text: str) -> tuple[Fraction, str]:
    """The number and the unit of one part of `text`; the whole text is what errors quote."""
    if len(text) > TEXT_MAX:
        raise UsageError(f'"{_short(text)}" is longer than {TEXT_MAX} characters')
    match = _NUMBER.fullmatch(part)
    if match is None:
        if part.startswith("-"):
            raise UsageError(f'"{_short(text)}" is negative')
        raise UsageError(f'"{_short(text)}" is not a number with a unit')
    return Fraction(match[1].replace("_", "")), match[4]


def _factor(unit: str, factors: dict[str, int], text: str, meaning: str) -> int:
    if unit in factors:
        return factors[unit]
    if not unit:
        raise UsageError(f'"{_short(text)}" has no {meaning}')
    raise UsageError(f'"{_short(text)}": "{_short(unit)}" is not a {meaning}')


def _whole(value: Fraction, text: str) -> int:
    if value.denominator != 1:
        raise UsageError(f'"{_short(text)}" is not a whole number of the smallest unit')
    if value > COUNT_MAX:
        raise UsageError(f'"{_short(text)}" is more than {COUNT_MAX}')
    return int(value)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
