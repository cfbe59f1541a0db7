"""Rows of statistics that are made when they are read.

A struct for each of 10,000 tenants takes tens of milliseconds, in which nobody is granted anything.
So a kind hands out its table unmade, and the door makes it a few rows at a time (`freeze`):

    tenants=Rows(self._policy.tenants, self._read_tenant)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

RowT = TypeVar("RowT", covariant=True)
StructT = TypeVar("StructT", bound=msgspec.Struct)

PORTION = 250
"""Rows that are made before others have their turn."""


class Rows(Mapping[str, RowT]):
    """`read(name)` for each of `names`, when it is asked for. `read` may raise KeyError: gone since."""

    __slots__ = ("_names", "_read")

    def __init__(self, names: Collection[str], read: Callable[[str], RowT]) -> None:
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> RowT:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def freeze_at_once(statistics: StructT) -> StructT:
    """The same with every row made."""
    steps = _freeze(statistics)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            frozen: StructT = end.value
            return frozen


async def freeze(statistics: StructT) -> StructT:
    """The same with every row made, each as it was when its turn came."""
    steps = _freeze(statistics)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            frozen: StructT = end.value
            return frozen
        await asyncio.sleep(0)


def _freeze(value: Any) -> Generator[None, None, Any]:
    if isinstance(value, Rows | dict):
        return (yield from _freeze_table(value))
    if not isinstance(value, msgspec.Struct):
        return value
    changed: dict[str, Any] = {}
    for field in find_deep(type(value)):
        held = getattr(value, field)
        made = yield from _freeze(held)
        if made is not held:
            changed[field] = made
    return msgspec.structs.replace(value, **changed) if changed else value


def _freeze_table(table: Mapping[str, Any]) -> Generator[None, None, dict[str, Any]]:
    made: dict[str, Any] = {}
    for number, name in enumerate(table, start=1):
        try:
            row = table[name]
        except KeyError:
            continue
        deep = isinstance(row, msgspec.Struct) and find_deep(type(row))
        made[name] = (yield from _freeze(row)) if deep else row
        if number % PORTION == 0:
            yield
    return made


@cache
def find_deep(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct in which there may be rows: those that are not plain numbers or texts."""
    hints = get_type_hints(struct)
    return tuple(field for field, hint in hints.items() if not set(get_args(hint) or (hint,)) <= PLAIN)


PLAIN = {int, float, bool, str, type(None)}
