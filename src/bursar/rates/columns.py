"""Columns of whole numbers, as they travel: thousands of tenants in a few strings of bytes.

A column is one byte, which says how wide its numbers are, and the numbers, as narrow as the largest allows.
What comes in is checked before anything is made of it: whoever sent it may be anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.rates.messages import UNBOUNDED, Allowance, Allowances, Row, Rows

Whole = npt.NDArray[np.int64]

UNNAMED = -2
"""As a level: this tenant has its part."""

_NO_BOUND = -1
"""As UNBOUNDED travels, so that the column need not be wide for it."""

_KINDS = tuple(np.dtype(kind) for kind in ("<i1", "<i2", "<i4", "<i8"))
_LARGEST = tuple(int(np.iinfo(kind).max) for kind in _KINDS)

COUNT_MAX = 2**53
"""The most that anything can have been counted to."""

COLUMNS = 7
"""Of a row, beside the tenant."""

EMPTY: Whole = np.zeros(0, np.int64)


def pack(values: Whole) -> bytes:
    """Numbers from UNNAMED to UNBOUNDED."""
    if not values.size:
        return b""
    most = int(values.max())
    if most >= UNBOUNDED:
        values = np.where(values >= UNBOUNDED, _NO_BOUND, values)
        most = int(values.max())
    width = next(k for k, largest in enumerate(_LARGEST) if most <= largest)
    return _WIDTHS[width] + values.astype(_KINDS[width]).tobytes()


_WIDTHS = tuple(bytes([width]) for width in range(len(_KINDS)))


def count(data: bytes) -> int:
    """How many numbers a column has."""
    if not data:
        return 0
    if data[0] >= len(_KINDS):
        raise ValueError("not a column")
    return (len(data) - 1) // _KINDS[data[0]].itemsize


def unpack(data: bytes, size: int, least: int = 0) -> Whole:
    """The numbers again, so many and none below `least`; ValueError if that is not what there is."""
    if not data and size == 0:
        return EMPTY
    values = _view(data, size).astype(np.int64)
    if int(values.min()) < 0:
        values[values == _NO_BOUND] = UNBOUNDED
        if int(values.min()) < least:
            raise ValueError("a number that cannot be")
    return values


def _view(data: bytes, size: int) -> npt.NDArray[np.signedinteger[Any]]:
    """The numbers as they are, unchecked."""
    if count(data) != size:
        raise ValueError(f"a column of {count(data)}, not of {size}")
    return np.frombuffer(data, _KINDS[data[0]], offset=1)


class Seen(NamedTuple):
    """What a report says of the tenants of these numbers: see `Row`."""

    numbers: Whole
    allowance: Whole
    dispatched: Whole
    pending: Whole
    arrived: Whole
    backlogged: Whole
    front: Whole
    front_ns: Whole

    def list_asking(self) -> Whole:
        """Who wants anything."""
        return self.numbers[(self.pending > 0) | (self.arrived > 0)]

    def keep(self, chosen: npt.NDArray[np.bool_]) -> Seen:
        return Seen(*(column[chosen] for column in self))


NOTHING_SEEN = Seen(*([EMPTY] * (COLUMNS + 1)))


def read_columns(rows: Rows) -> tuple[Whole, list[Whole]]:
    """The numbers of those that have one, and the columns of all."""
    if len(rows.columns) != COLUMNS:
        raise ValueError(f"{len(rows.columns)} columns")
    numbers = unpack(rows.numbers, count(rows.numbers))
    size = numbers.size + len(rows.names)
    if size == 0:
        return numbers, [EMPTY] * COLUMNS
    table = np.empty((COLUMNS - 1, size), np.int64)
    for column, data in zip(table, rows.columns[1:], strict=True):
        column[:] = _view(data, size)
    if int(table.min()) < 0 or int(table.max()) > COUNT_MAX:
        raise ValueError("a number that cannot be")
    return numbers, [unpack(rows.columns[0], size), *table]


def make_rows(rows: Iterable[Row], whole: bool = True) -> Rows:
    """As columns, by name."""
    listed = list(rows)
    table = np.array([(*_get_numbers(row),) for row in listed], np.int64).reshape(-1, COLUMNS)
    names = tuple(row.tenant for row in listed)
    return Rows(0, whole, b"", names, tuple(pack(table[:, k]) for k in range(COLUMNS)))


def _get_numbers(row: Row) -> tuple[int, ...]:
    return (
        min(row.allowance, UNBOUNDED),
        row.dispatched,
        row.pending,
        row.arrived,
        int(row.backlogged),
        row.front,
        row.front_ns,
    )


def list_rows(names: Iterable[str], seen: Seen) -> list[Row]:
    """One by one, for whoever has few of them; `names` in the order of `seen`."""
    columns = zip(names, *(column.tolist() for column in seen[1:]), strict=True)
    return [Row(name, a, d, p, r, bool(b), f, t) for name, a, d, p, r, b, f, t in columns]


def make_allowances(rows: Iterable[Allowance]) -> Allowances:
    """Of these tenants and no others, by name."""
    listed = list(rows)
    table = np.array([(r.allowance, r.priority, r.pace) for r in listed], np.int64).reshape(-1, 3)
    none = pack(np.zeros(len(listed), np.int64))
    columns = [pack(table[:, k]) for k in range(3)]
    names = tuple(row.tenant for row in listed)
    return Allowances(1, 0, names, none, none, pack(np.arange(len(listed))), *columns)
