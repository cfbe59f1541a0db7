"""What the last grant says of every tenant, as whoever took it knows it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bursar.rates.columns import EMPTY, UNNAMED, count, unpack
from bursar.rates.messages import Allowance, Allowances, Grant

Whole = npt.NDArray[np.int64]


class Allotment:
    """Allowances, priority parts and paces by number in the leader's roll (`rates.roll`). A tenant that has
    no number, or is UNNAMED, has its part."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.allowances = self.priorities = self.paces = EMPTY
        self._key = (0, 0)
        self._index: dict[str, int] = {}

    @property
    def roll(self) -> int:
        """Which list the numbers are of, of the leader that has granted last."""
        return self._key[1]

    def is_of(self, epoch: int) -> bool:
        """Whether the leader of that epoch knows these numbers."""
        return self._key[0] == epoch and self._key[1] > 0

    def take(self, grant: Grant) -> bool:
        """Whether the grant can be read here; then it counts."""
        rows = grant.rows
        key = (grant.epoch, rows.roll)
        if rows.known and (key != self._key or rows.known > len(self.names)):
            return False
        try:
            columns = read_allowances(rows)
        except ValueError:
            return False
        self._learn(key, rows)
        self.allowances, self.priorities, self.paces = columns
        return True

    def _learn(self, key: tuple[int, int], rows: Allowances) -> None:
        if not rows.known:
            self._key, self.names, self._index = key, [], {}
        new = rows.names[len(self.names) - rows.known :]
        self._index.update(zip(new, range(len(self.names), len(self.names) + len(new)), strict=True))
        self.names.extend(new)

    def clear(self) -> None:
        """Everybody has its part."""
        self.allowances = self.priorities = self.paces = EMPTY

    def find_number(self, tenant: str) -> int:
        """-1: it has none."""
        return self._index.get(tenant, -1)

    def find(self, tenant: str) -> Allowance | None:
        """None for a tenant that has its part."""
        number = self._index.get(tenant, -1)
        if not 0 <= number < self.allowances.size or self.allowances[number] == UNNAMED:
            return None
        columns = (self.allowances, self.priorities, self.paces)
        return Allowance(tenant, *(int(column[number]) for column in columns))

    def list_named(self) -> Iterator[tuple[str, int]]:
        """Whoever has not just its part, and its allowance."""
        for number in np.flatnonzero(self.allowances != UNNAMED).tolist():
            yield self.names[number], int(self.allowances[number])

    def read(self, numbers: Whole) -> tuple[Whole, Whole, Whole]:
        """The columns of these; -1 is nobody's number. Of whoever has its part the allowance is UNNAMED, and
        the others are 0."""
        absent = (numbers < 0) | (numbers >= self.allowances.size)
        if not self.allowances.size:
            nothing = np.zeros(numbers.size, np.int64)
            return np.full(numbers.size, UNNAMED, np.int64), nothing, nothing
        found = np.where(absent, 0, numbers)
        allowances = np.where(absent, UNNAMED, self.allowances[found])
        none = allowances == UNNAMED
        return allowances, np.where(none, 0, self.priorities[found]), np.where(none, 0, self.paces[found])


def read_allowances(rows: Allowances) -> tuple[Whole, Whole, Whole]:
    """By number: allowances, priority parts and paces. ValueError if that is not what there is."""
    names, size = rows.known + len(rows.names), count(rows.numbers)
    levels, paces = unpack(rows.levels, names, UNNAMED), unpack(rows.paces, names)
    priorities = np.zeros(names, np.int64)
    numbers = unpack(rows.numbers, size)
    if int(numbers.max(initial=-1)) >= names:
        raise ValueError(f"a number beyond {names}")
    levels[numbers] = unpack(rows.allowances, size)
    priorities[numbers] = unpack(rows.priorities, size)
    paces[numbers] = unpack(rows.row_paces, size)
    return levels, priorities, paces
