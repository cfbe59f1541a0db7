"""The shapes a value in a policy file may have: how each is read, and its JSON Schema.

A shape is said once and serves twice, so that `bursar check` and an editor's schema cannot drift
apart. `read` turns what TOML gave into the value that bursar uses; what it cannot read it reports
to the `Place` and gives back as INVALID, so that one reading finds every mistake of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple, Protocol

from bursar import units
from bursar.errors import UsageError
from bursar.policy.values import suggest

Path = tuple[str, ...]
Schema = dict[str, Any]


class _Invalid:
    """Stands for a value that could not be read; its problem has been reported."""

    def __bool__(self) -> bool:
        return False


INVALID = _Invalid()


class Complaint(NamedTuple):
    path: Path
    what: str
    remedy: str


class Place:
    """A place in the file (its key path) and the list where its problems are put."""

    def __init__(self, complaints: list[Complaint], path: Path = ()) -> None:
        self.complaints = complaints
        self.path = path

    def at(self, *keys: str) -> Place:
        return Place(self.complaints, self.path + keys)

    def complain(self, what: str, remedy: str) -> Any:
        self.complaints.append(Complaint(self.path, what, remedy))
        return INVALID


class Shape(Protocol):
    def read(self, value: Any, place: Place) -> Any: ...

    def schema(self) -> Schema: ...


def describe(value: Any) -> str:
    """A value in few words, however large or deep it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{value if len(value) <= 40 else value[:37] + "..."}"'
    if isinstance(value, int):
        return f"the number {value}" if abs(value) <= units.COUNT_MAX else "a number beyond 2^63"
    names = {float: "a number with a fraction", dict: "a table", list: "a list"}
    return names.get(type(value), "a date or time")


@dataclass(frozen=True)
class Text:
    """A text that `check` accepts: it returns None, or what is wrong."""

    remedy: str
    check: Callable[[str], str | None] = lambda _: None
    pattern: str | None = None

    def read(self, value: Any, place: Place) -> Any:
        if not isinstance(value, str):
            return place.complain(f"{describe(value)} is not a text", self.remedy)
        wrong = "it is empty" if not value.strip() else self.check(value)
        return place.complain(wrong, self.remedy) if wrong else value

    def schema(self) -> Schema:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {"minLength": 1})}


@dataclass(frozen=True)
class Day:
    """A date, written as such in TOML, or as a text where there are no dates."""

    def read(self, value: Any, place: Place) -> Any:
        remedy = "write a date: 2026-03-17"
        if isinstance(value, str):
            try:
                value = date.fromisoformat(value)
            except ValueError:
                return place.complain(f"{describe(value)} is no date", remedy)
        if not isinstance(value, date) or isinstance(value, datetime):
            return place.complain(f"{describe(value)} is not a date", remedy)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}


@dataclass(frozen=True)
class Choice:
    options: Sequence[str]

    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, str) and value in self.options:
            return value
        hint = suggest(value, self.options) if isinstance(value, str) else ""
        wrong = f"{describe(value)} is not one of its values"
        listed = ", ".join(f'"{option}"' for option in self.options)
        return place.complain(wrong + (hint if "did you mean" in hint else ""), f"write one of {listed}")

    def schema(self) -> Schema:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Flag:
    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, bool):
            return value
        return place.complain(f"{describe(value)} is neither true nor false", "write true or false, unquoted")

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def read(self, value: Any, place: Place) -> Any:
        most = f" to {self.most}" if self.most < units.COUNT_MAX else " up"
        remedy = f"write a whole number from {self.least}{most}"
        if isinstance(value, bool) or not isinstance(value, int):
            return place.complain(f"{describe(value)} is not a whole number", remedy)
        if not self.least <= value <= self.most:
            wrong = "negative" if value < 0 else "too small" if value < self.least else "too large"
            return place.complain(f"{describe(value)} is {wrong}", remedy)
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Amount:
    """A count as a number or a text ("5M"), or a size in bytes ("64MiB"). At least `least`."""

    least: int = 0

    def read(self, value: Any, place: Place) -> Any:
        remedy = 'write a whole number, such as 5_000_000, "5M" or, for bytes, "64MiB"'
        if isinstance(value, str):
            try:
                read = units.read_size_bytes if value.endswith("B") else units.read_count
                value = read(value)
            except UsageError as error:
                return place.complain(str(error), remedy)
        found = Whole(self.least, units.COUNT_MAX)
        return found.read(value, place)

    def schema(self) -> Schema:
        either = rf"^({units.COUNT_PATTERN}|{units.SIZE_PATTERN})$"
        return {"anyOf": [Whole(self.least, units.COUNT_MAX).schema(), {"type": "string", "pattern": either}]}


@dataclass(frozen=True)
class Span:
    """A duration ("200ms") within bounds, as nanoseconds."""

    least_ns: int
    most_ns: int

    def read(self, value: Any, place: Place) -> Any:
        least, most = units.write_duration(self.least_ns), units.write_duration(self.most_ns)
        example = "200ms" if self.least_ns <= 200_000_000 <= self.most_ns else least
        remedy = (
            f'write a duration from "{least}" to "{most}" (ns, us, ms, s, min, h, d), such as "{example}"'
        )
        if not isinstance(value, str):
            return place.complain(f"{describe(value)} is not a duration with its unit", remedy)
        try:
            duration_ns = units.read_duration_ns(value)
        except UsageError as error:
            return place.complain(str(error), remedy)
        if not self.least_ns <= duration_ns <= self.most_ns:
            return place.complain(f'"{value}" is outside {least} to {most}', remedy)
        return duration_ns

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{units.DURATION_PATTERN}$"}


@dataclass(frozen=True)
class Speed:
    """A rate ("30k/s"; with `sizes` also "1GiB/s"), at least one with `positive`."""

    sizes: bool = False
    positive: bool = False

    def read(self, value: Any, place: Place) -> Any:
        sizes = ', or a size and a time: "64MiB/s" (KiB, MiB, GiB, TiB)' if self.sizes else ""
        remedy = f'write a count and a time: "30k/s" (k, M, G, T; us, ms, s, min, h, d){sizes}'
        if not isinstance(value, str):
            return self._complain_number(value, remedy, place)
        try:
            rate = units.read_rate(value)
        except UsageError as error:
            return place.complain(str(error), remedy)
        if rate.unit == "bytes" and not self.sizes:
            return place.complain(f'"{value}" counts bytes, and here requests are counted', remedy)
        if self.positive and rate.count == 0:
            return place.complain(f'"{value}" is nothing at all', remedy)
        return rate

    def _complain_number(self, value: Any, remedy: str, place: Place) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return place.complain(f"{describe(value)} is not a rate", remedy)
        if value < 0:
            return place.complain(f"{describe(value)} is negative", remedy)
        if isinstance(value, int) and value <= units.COUNT_MAX:
            remedy = remedy.replace("30k/s", f"{units.write_count(value)}/s")
        return place.complain(f"{describe(value)} does not say in what time", remedy)

    def schema(self) -> Schema:
        amount = f"({units.COUNT_PATTERN}|{units.SIZE_PATTERN})" if self.sizes else units.COUNT_PATTERN
        return {"type": "string", "pattern": f"^{amount}{units.PER_PATTERN}$"}


@dataclass(frozen=True)
class Auto:
    """`shape`, or one word ("auto" unless told), which is read as `found`."""

    shape: Shape
    found: Any = None
    word: str = "auto"

    def read(self, value: Any, place: Place) -> Any:
        return self.found if value == self.word else self.shape.read(value, place)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": self.word}, self.shape.schema()]}


def is_read(*values: Any) -> bool:
    """True if all of these are there and right, so that they can be compared."""
    return not any(value is INVALID or value is None for value in values)
