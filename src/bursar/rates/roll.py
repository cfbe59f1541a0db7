"""The tenants that a leader has heard of, by number: what it knows of each stands in columns.

Servers are told the names once, and from then on both speak of numbers. A roll is one leader's, and only
grows; a new one is begun with a period, when most of the tenants in the old one are idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bursar.rates.columns import UNNAMED, Seen, read_columns
from bursar.rates.messages import UNBOUNDED, Part, Rows
from bursar.rates.parts import count_part
from bursar.rates.terms import Terms

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_HASH, _LIMIT, _RESERVATION, _PACE, _FIELDS = range(5)

NO_TERMS = -1
"""As a limit: this tenant has no terms."""

ROOM = 64
"""A roll of no more tenants than that is never begun anew."""


class Roll:
    """Names, and the terms of each: limits (UNBOUNDED for none), reservations and paces.

    bound    the terms of those that may not use every server
    opened   whether the present period was opened with these terms; parts of limits are known only then
    """

    def __init__(self, key: int, terms: Mapping[str, Terms]) -> None:
        """`key` tells the rolls of one leader apart."""
        self.key = key
        self.names: list[str] = []
        self.bound: dict[int, Terms] = {}
        self.opened = True
        self._terms = terms
        self._index: dict[str, int] = {}
        self._table = np.zeros((_FIELDS, 8), np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, tenant: str) -> int | None:
        return self._index.get(tenant)

    def number(self, tenant: str) -> int:
        """The tenant's number, which it gets with this if it had none."""
        number = self._index.get(tenant)
        return self._add(tenant) if number is None else number

    def number_all(self, tenants: Iterable[str]) -> Whole:
        return np.array([self.number(tenant) for tenant in tenants], np.int64)

    def _add(self, tenant: str) -> int:
        number = self._index[tenant] = len(self.names)
        self.names.append(tenant)
        if number == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self._table[_HASH, number] = crc32(tenant.encode())
        self._look_up(number)
        return number

    def _look_up(self, number: int) -> None:
        terms = self._terms.get(self.names[number])
        self.bound.pop(number, None)
        if terms is not None and terms.servers is not None:
            self.bound[number] = terms
        self._table[_LIMIT:, number] = (NO_TERMS, 0, 0) if terms is None else tabulate(terms)

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """What is promised from here on."""
        if terms is self._terms:
            return
        self._terms = terms
        for number in range(len(self.names)):
            self._look_up(number)

    @property
    def limits(self) -> Whole:
        return self._table[_LIMIT, : len(self.names)]

    @property
    def reservations(self) -> Whole:
        return self._table[_RESERVATION, : len(self.names)]

    @property
    def paces(self) -> Whole:
        return self._table[_PACE, : len(self.names)]

    def find_terms(self, numbers: Iterable[int]) -> dict[str, Terms]:
        """By name, of those that have any."""
        names = (self.names[number] for number in numbers)
        return {name: terms for name in names if (terms := self._terms.get(name)) is not None}

    def read(self, rows: Rows) -> Seen | None:
        """What a report says; None if that cannot be known here, whatever the reason."""
        try:
            numbers, columns = read_columns(rows)
        except ValueError:
            return None
        if numbers.size and (rows.roll != self.key or int(numbers.max()) >= len(self.names)):
            return None
        return Seen(np.concatenate([numbers, self.number_all(rows.names)]), *columns)

    def count_parts(self, server: str, part: Part) -> Whole:
        """What each has at the server unasked: `count_part`, of all."""
        if part.of == 0 or not self.opened:
            return np.zeros(len(self.names), np.int64)
        limits, hashes = np.maximum(self.limits, 0), self._table[_HASH, : len(self.names)]
        if part.zones:
            limits = np.where(limits == UNBOUNDED, UNBOUNDED, _split(limits, hashes, part.zone, part.zones))
        parts = np.where(limits == UNBOUNDED, UNBOUNDED, _split(limits, hashes, part.place, part.of))
        for number, terms in self.bound.items():
            parts[number] = count_part(self.names[number], terms, server, part)
        return parts

    def widen(self, levels: Whole) -> Whole:
        """Levels of when there were fewer."""
        if levels.size >= len(self.names):
            return levels
        return np.concatenate([levels, np.full(len(self.names) - levels.size, UNNAMED, np.int64)])


def _split(amounts: Whole, hashes: Whole, place: int, of: int) -> Whole:
    """`parts.split`, of all."""
    whole, rest = np.divmod(amounts, of)
    found: Whole = whole + ((hashes + place) % of < rest)
    return found


def tabulate(terms: Terms) -> tuple[int, int, int]:
    """Limit, reservation and pace, all servers together."""
    limit = UNBOUNDED if terms.limit is None else terms.limit
    pace = (terms.limit or 0) if terms.pace is None else terms.pace
    return limit, terms.reservation, pace


def renew(roll: Roll, kept: Flags, key: int, terms: Mapping[str, Terms]) -> tuple[Roll, Whole]:
    """Another roll, of those that are kept; and their numbers there by their numbers here, -1 for others."""
    renewed = Roll(key, terms)
    numbers = np.full(len(roll), -1, np.int64)
    chosen = np.flatnonzero(kept)
    numbers[chosen] = renewed.number_all(roll.names[number] for number in chosen.tolist())
    return renewed, numbers
