"""Rows of a snapshot that are made when they are read.

A struct for each of 10,000 tenants takes tens of milliseconds, in which nobody is granted anything.
So a kind hands out its table unmade, and whoever reads it (metrics, a watch over the figures) does so
a few rows at a time:

    tenants=Rows(self._policy.tenants, self._read_tenant)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

RowT = TypeVar("RowT", covariant=True)


class Rows(Mapping[str, RowT]):
    """`read(name)` for each of `names`, at the time of asking. A row is frozen, the table is not:
    `read` raises KeyError for a name that has gone since."""

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

    def __repr__(self) -> str:
        return f"Rows({len(self)} names)"


def to_plain(statistics: Any) -> Any:
    """Any snapshot as plain values (dicts, lists, numbers, texts), all its rows read now."""
    return msgspec.to_builtins(statistics, enc_hook=_read_all)


def _read_all(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: row for name in value if (row := value.get(name)) is not None}
    if hasattr(value, "item"):  # a number of NumPy's
        return value.item()
    raise NotImplementedError(f"statistics are numbers, texts, structs and tables, not {type(value)}")
