"""The shapes of tables and lists: fixed keys (`Record`), names that the user chose (`Named`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.policy.shapes import INVALID, Place, Schema, Shape, describe
from bursar.policy.values import suggest
from bursar.world import NAME_MAX_BYTES

REQUIRED = object()
"""The default of a key that must be written."""


@dataclass(frozen=True)
class List:
    """A list of `shape`, without repetition, as a tuple."""

    shape: Shape
    remedy: str
    least: int = 0

    def read(self, value: Any, place: Place) -> Any:
        if not isinstance(value, list):
            return place.complain(f"{describe(value)} is not a list", self.remedy)
        found = tuple(self.shape.read(item, place) for item in value)
        if INVALID in found:
            return INVALID
        if len(found) < self.least:
            return place.complain("the list is empty", self.remedy)
        if len(set(found)) < len(found):
            return place.complain("the list has the same item twice", self.remedy)
        return found

    def schema(self) -> Schema:
        return {"type": "array", "items": self.shape.schema(), "minItems": self.least, "uniqueItems": True}


@dataclass(frozen=True)
class Key:
    """A key of a table: its shape, what it is for, and its default *as one would write it*.

    A default of None means that the key may be left out, with nothing in its place. `advice` says
    how to add a key that is missed, where its example on one line would not do."""

    shape: Shape
    purpose: str
    default: Any = None
    example: Any = None
    advice: str = ""


@dataclass(frozen=True)
class Record:
    """A table of known keys. Read as a dict with a value for each of them."""

    keys: Mapping[str, Key]
    called: str = "table"
    known_elsewhere: Mapping[str, str] = field(default_factory=dict)

    def read(self, value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            listed = ", ".join(self.keys)
            return place.complain(f"{describe(value)} is not a {self.called}", f"write a table with {listed}")
        for name in value:
            if name not in self.keys:
                self._complain_unknown(name, place)
        return {name: self._read_key(name, key, value, place) for name, key in self.keys.items()}

    def _read_key(self, name: str, key: Key, value: dict[str, Any], place: Place) -> Any:
        if name in value:
            return key.shape.read(value[name], place.at(name))
        if key.default is REQUIRED:
            return place.complain(
                f'"{name}" is missing', key.advice or f"add {name} = {write_toml(key.example)}"
            )
        return None if key.default is None else key.shape.read(key.default, place.at(name))

    def _complain_unknown(self, name: str, place: Place) -> None:
        if name in self.known_elsewhere:
            place.at(name).complain("it does not belong here", self.known_elsewhere[name])
            return
        hint = suggest(name, self.keys)
        listed = ", ".join(self.keys)
        remedy = hint[2:] if "did you mean" in hint else f"remove it; a {self.called} takes {listed}"
        place.at(name).complain("unknown key", remedy)

    def schema(self) -> Schema:
        required = [name for name, key in self.keys.items() if key.default is REQUIRED]
        return {
            "type": "object",
            "properties": {name: describe_key(key) for name, key in self.keys.items()},
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }


def describe_key(key: Key) -> Schema:
    found = {**key.shape.schema(), "description": key.purpose}
    if key.default not in (None, REQUIRED):
        found["default"] = key.default
    if key.example is not None:
        found["examples"] = [key.example]
    return found


@dataclass(frozen=True)
class Named:
    """A table of names chosen by the user, each with a value of `shape`. At most `most` of them.

    `check` says what is wrong with a name, or None."""

    shape: Shape
    called: str
    check: Callable[[str], str | None]
    pattern: str
    most: int
    example: str
    may_be_empty: bool = False

    def read(self, value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            return place.complain(
                f"{describe(value)} is not a table of {self.called}s",
                f"write a table of lines such as {self.example}",
            )
        if not value and not self.may_be_empty:
            return place.complain(f"there is no {self.called}", f"add one: {self.example}")
        if len(value) > self.most:
            remedy = f"keep to {self.most} {self.called}s in one table"
            return place.complain(f"it has {len(value)} {self.called}s", remedy)
        return {name: self._read_one(name, item, place.at(name)) for name, item in value.items()}

    def _read_one(self, name: str, value: Any, place: Place) -> Any:
        wrong = self.check(name)
        if wrong:
            place.complain(wrong, f"choose another name, as in {self.example}")
        return self.shape.read(value, place)

    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": {"pattern": self.pattern, "maxLength": NAME_MAX_BYTES},
            "additionalProperties": self.shape.schema(),
            "maxProperties": self.most,
            **({} if self.may_be_empty else {"minProperties": 1}),
        }


@dataclass(frozen=True)
class Either:
    """`table` if the value is a table, else `plain`."""

    plain: Shape
    table: Shape

    def read(self, value: Any, place: Place) -> Any:
        return (self.table if isinstance(value, dict) else self.plain).read(value, place)

    def schema(self) -> Schema:
        return {"anyOf": [self.plain.schema(), self.table.schema()]}


def write_toml(value: Any) -> str:
    """A value as TOML on one line, for remedies."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {write_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Iterable):
        return "[" + ", ".join(map(write_toml, value)) + "]"
    return f"{value:_}" if isinstance(value, int) else str(value)
