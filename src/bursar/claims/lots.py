"""Counted names, and the lots that instances have of them: the book, with no other state behind it.

A *lot* is a node of the store: so many units of one counted name, at one instance or at none. A grant deletes
lots of its instance and leaves what it does not need in a new one; the end of a task makes a lot of what it
had. So instances that grant write nodes of their own and never race for one version, and a lot that moves is
deleted and made in one transaction.

Invariant: the units of all lots, and those of all tasks that are RUNNING or DONE, are together as many as the
node of the name says (capacity and `owed`: what a cut capacity has still to take back). Each transaction
keeps it by itself: what it deletes is what it makes. A lot's name is never used again, so that whoever saw
it once and acts late finds it there or acts not at all. What this book remembers may be stale.

Who may take lots of another: see `plan_gathering`. It is manners, not safety.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from bursar.claims.layout import Layout
from bursar.claims.model import Task
from bursar.decoding import is_number
from bursar.errors import FormatError
from bursar.world import Create, Delete, Operation, Set

LOTS_A_GRANT = 3
"""A grant takes at most so many lots of a name; where what it needs is in more pieces, they are put together
first."""

LOTS_MOVED = 16
LOTS_KEPT = 6
"""So many are moved at once; an instance that has more puts them together."""

GONE_KEPT = 4096
NOBODY = ""
"""Whose lots are that lie at no instance."""


class Lot(NamedTuple):
    units: int
    id: str
    owner: str = NOBODY

    @property
    def node(self) -> str:
        return f"{self.units}~{self.id}~{self.owner}"


class Want(NamedTuple):
    """An instance lacks so many units for the first of its tasks that waits for nothing else. `late`: that
    one has aged, or the instance has gone without for long; `since` orders tasks. It names itself."""

    units: int
    since: int
    late: bool
    owner: str

    @property
    def node(self) -> str:
        return f"{self.units}~{self.since}~{self.late:d}~{self.owner}"

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Less is older."""
        return not self.late, self.since, self.owner


class Count(NamedTuple):
    """What the node of a counted name says. `owed`: units beyond the capacity that are still about."""

    capacity: int
    owed: int = 0

    def encode(self) -> bytes:
        return b"%d %d" % self


def digest_owner(node: str) -> str:
    return blake2b(node.encode(), digest_size=8).hexdigest()


def read_lot(path: str, node: str) -> Lot:
    units, _, rest = node.partition("~")
    id, mark, owner = rest.partition("~")
    if not mark or not is_number(units):
        raise FormatError(f"{path}/{node} is no lot that this version reads; another program's data?")
    return Lot(int(units), id, owner)


def read_want(path: str, node: str) -> Want:
    parts = node.split("~")
    if len(parts) != 4 or not all(map(is_number, parts[:2])):
        raise FormatError(f"{path}/{node} is nothing that this version reads; another program's data?")
    return Want(int(parts[0]), int(parts[1]), parts[2] == "1", parts[3])


def read_count(path: str, data: bytes) -> Count:
    try:
        capacity, owed = map(int, data.split())
    except ValueError as error:
        raise FormatError(f"{path} holds no capacity: {data[:40]!r}; another program's data?") from error
    return Count(capacity, owed)


@dataclass(slots=True)
class Purse:
    """What a transaction does with lots: `taken` go, `left` of their units make new ones, `made` are made."""

    taken: list[tuple[str, Lot]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    made: list[tuple[str, Lot]] = field(default_factory=list)
    closing: list[Operation] | None = None


@dataclass(slots=True)
class Kept:
    """Lots of one name here. `made`: when each came to be known, by the number of what happened here."""

    idle: dict[Lot, int] = field(default_factory=dict)
    flying: dict[Lot, None] = field(default_factory=dict)
    gone: dict[Lot, None] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """What one grant may take: not all, where they are in more pieces than that."""
        if len(self.idle) <= LOTS_A_GRANT:
            return self.all_units
        return sum(sorted((lot.units for lot in self.idle), reverse=True)[:LOTS_A_GRANT])

    @property
    def all_units(self) -> int:
        return sum(lot.units for lot in self.idle)


class LotBook:
    """Lots of this instance, as far as it knows of them.

    owner   this instance's mark on its lots; nobody's while it only reads and writes for others
    doubted names of which what is known may be wrong
    paid    how many units were granted of each name, ever"""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.owner = NOBODY
        self.kept: dict[str, Kept] = {}
        self.doubted: dict[str, None] = {}
        self.paid: dict[str, int] = {}
        self._happened = 0

    def forget(self) -> None:
        self.kept.clear()
        self.doubted.clear()

    def _of(self, name: str) -> Kept:
        kept = self.kept.get(name)
        if kept is None:
            kept = self.kept[name] = Kept()
        return kept

    def count_free(self, name: str, purse: Purse | None = None) -> int:
        """Units that can be granted here now, in this transaction."""
        left = 0 if purse is None else purse.left.get(name, 0)
        kept = self.kept.get(name)
        return left + (kept.units if kept is not None else 0)

    def is_in_pieces(self, name: str, units: int) -> bool:
        """Whether there is enough here, though not for one grant."""
        kept = self.kept.get(name)
        return kept is not None and kept.units < units <= kept.all_units

    def idle(self, name: str) -> list[Lot]:
        kept = self.kept.get(name)
        return list(kept.idle) if kept is not None else []

    # What transactions do

    def covers(self, purse: Purse, task: Task) -> bool:
        return all(self.count_free(name, purse) >= units for name, units in task.counts)

    def pay(self, operations: list[Operation], purse: Purse, task: Task) -> None:
        """Give the task its units. What is left of the lots is made a lot when the transaction is closed."""
        for name, units in task.counts:
            lacking = units - purse.left.get(name, 0)
            if lacking > 0:
                self._take(operations, purse, name, lacking)
            purse.left[name] = purse.left.get(name, 0) - units
            assert purse.left[name] >= 0, f"{task.id} was given {name} that is not there"
            self.paid[name] = self.paid.get(name, 0) + units

    def _take(self, operations: list[Operation], purse: Purse, name: str, lacking: int) -> None:
        """The smallest lot that is enough; else the largest, one after the other."""
        kept = self._of(name)
        while lacking > 0:
            by_size = sorted(kept.idle)
            lot = next((lot for lot in by_size if lot.units >= lacking), by_size[-1])
            self._fly(operations, purse, name, lot)
            purse.left[name] = purse.left.get(name, 0) + lot.units
            lacking -= lot.units

    def _fly(self, operations: list[Operation], purse: Purse, name: str, lot: Lot) -> None:
        kept = self._of(name)
        kept.idle.pop(lot, None)
        kept.flying[lot] = None
        purse.taken.append((name, lot))
        operations.append(Delete(f"{self.layout.lots(name)}/{lot.node}"))

    def close(self, purse: Purse, id: str) -> list[Operation]:
        """What is left of the lots that were taken, as a lot each. `id` is never used again."""
        if purse.closing is None:
            purse.closing = []
            for name, units in purse.left.items():
                if units:
                    self._make(purse.closing, purse, name, Lot(units, id, self.owner))
        return purse.closing

    def give_back(self, operations: list[Operation], purse: Purse, task: Task, *, forced: bool) -> None:
        """A task that is over has nothing any more. What was taken by force lies at nobody: whoever did
        that may not be one of the instances."""
        owner = NOBODY if forced else self.owner
        for name, units in task.counts:
            self._make(operations, purse, name, Lot(units, f"{task.id}.{task.attempt}b", owner))

    def _make(self, operations: list[Operation], purse: Purse, name: str, lot: Lot) -> None:
        purse.made.append((name, lot))
        operations.append(self._creation(name, lot))

    def _creation(self, name: str, lot: Lot) -> Operation:
        return Create(f"{self.layout.lots(name)}/{lot.node}")

    # What became of them

    def confirm(self, purse: Purse) -> None:
        """The store did it."""
        self._happened += 1
        for name, lot in purse.taken:
            kept = self._of(name)
            kept.flying.pop(lot, None)
            kept.gone[lot] = None
            while len(kept.gone) > GONE_KEPT:
                del kept.gone[next(iter(kept.gone))]
        for name, lot in purse.made:
            if lot.owner == self.owner != NOBODY:
                self._of(name).idle[lot] = self._happened

    def doubt(self, purse: Purse) -> None:
        """It did not happen, and one of these lots may be the reason."""
        for name, lot in purse.taken:
            self._of(name).flying.pop(lot, None)
            self.doubted[name] = None

    def suspect(self, task: Task) -> None:
        """Its end made lots, perhaps: nobody has heard."""
        for name, _ in task.counts:
            self.doubted[name] = None

    @property
    def happened(self) -> int:
        """A number for this moment: what is read from now on has all that was confirmed before."""
        return self._happened

    def see(self, name: str, lots: Iterable[Lot], since: int) -> None:
        """What the store had, at the moment `since` or later."""
        kept, there = self._of(name), {lot: None for lot in lots if lot.owner == self.owner != NOBODY}
        for lot in [lot for lot, made in kept.idle.items() if lot not in there and made <= since]:
            del kept.idle[lot]
        for lot in there:
            if lot not in kept.idle and lot not in kept.flying and lot not in kept.gone:
                kept.idle[lot] = since
        self.doubted.pop(name, None)

    # Lots that move

    def gather(self, name: str, wanted: Sequence[tuple[Lot, int]], id: str) -> tuple[list[Operation], Purse]:
        """Take so many units of each of these lots for this instance; the rest of one stays where it is."""
        purse = Purse()
        operations: list[Operation] = []
        for number, (lot, units) in enumerate(wanted):
            self._fly(operations, purse, name, lot)
            if units < lot.units:
                self._make(operations, purse, name, Lot(lot.units - units, f"{id}.{number}", lot.owner))
        total = sum(units for _, units in wanted)
        self._make(operations, purse, name, Lot(total, id, self.owner))
        return operations, purse

    def put(self, name: str, lots: Sequence[Lot], id: str, owner: str) -> tuple[list[Operation], Purse]:
        """Make one lot of several of this instance's, at itself or at nobody."""
        purse = Purse()
        operations: list[Operation] = []
        for lot in lots:
            self._fly(operations, purse, name, lot)
        self._make(operations, purse, name, Lot(sum(lot.units for lot in lots), id, owner))
        return operations, purse

    # Capacity

    def set_up(self, name: str, capacity: int) -> list[Operation]:
        """A name that was never counted here: all of it lies at nobody."""
        folders = [Create(self.layout.lots(name)), Create(self.layout.wants(name))]
        first = Lot(capacity, "0")
        return [
            Create(self.layout.count(name), Count(capacity).encode()),
            *folders,
            self._creation(name, first),
        ]

    def resize(self, name: str, found: Count, version: int, capacity: int) -> list[Operation]:
        """Another capacity. What is more is there at once; what is less is owed, and goes as it comes in."""
        owed = found.owed + found.capacity - capacity
        after = Count(capacity, max(0, owed))
        operations: list[Operation] = [Set(self.layout.count(name), after.encode(), version)]
        if owed < 0:
            operations.append(self._creation(name, Lot(-owed, f"c{version}")))
        return operations

    def pay_owed(
        self, name: str, lots: Sequence[Lot], found: Count, version: int, id: str
    ) -> tuple[list[Operation], Purse]:
        """Lots of this instance go for good, as far as units are owed."""
        purse = Purse()
        operations: list[Operation] = []
        units = 0
        for lot in lots:
            if units < found.owed:
                self._fly(operations, purse, name, lot)
                units += lot.units
        gone = min(units, found.owed)
        if units > gone:
            self._make(operations, purse, name, Lot(units - gone, id, self.owner))
        after = Count(found.capacity, found.owed - gone)
        operations.append(Set(self.layout.count(name), after.encode(), version))
        return operations, purse


def plan_gathering(
    lots: Sequence[Lot],
    wants: Mapping[str, Want],
    mine: Want,
    ahead: int,
    living: Collection[str],
    most: int = LOTS_MOVED,
) -> list[tuple[Lot, int]]:
    """Which lots of others an instance takes for its want, and how much of each.

    Whoever wants nothing, or came later, gives: what lies at nobody or at a dead instance goes first, then
    what lies idle, then what others wait with. An older want is left what it lacks if that is there, or if
    it is late. Only one that is late takes less than it needs: so parts come together at one place, and
    until then whoever needs fewer uses them. `ahead`: what all that waits here could use; `most`: how many
    lots at once."""
    at: dict[str, int] = {}
    for lot in lots:
        at[lot.owner] = at.get(lot.owner, 0) + lot.units
    everything = sum(at.values())
    first = {
        owner
        for owner, want in wants.items()
        if owner != mine.owner
        and want.rank < mine.rank
        and (want.late or want.units <= everything - at.get(owner, 0))
    }
    reach = [lot for lot in lots if lot.owner != mine.owner and lot.owner not in first]
    reach.sort(key=lambda lot: (lot.owner in wants, lot.owner in living, -lot.units, lot.id))
    total = sum(lot.units for lot in reach)
    budget = total - sum(wants[owner].units for owner in first)
    if mine.units <= 0 or (budget < mine.units and (first or not mine.late)):
        return []
    others = sum(1 for owner in wants if owner != mine.owner)
    left = min(total, max(mine.units, min(ahead, budget // (1 + others))))
    taken: list[tuple[Lot, int]] = []
    for lot in reach[:most]:
        if left > 0:
            taken.append((lot, min(left, lot.units)))
            left -= lot.units
    return taken


def find_beyond(task: Task, capacities: Mapping[str, int]) -> str:
    """What it needs more of than there is, as a sentence; nothing if that could be granted."""
    for name, units in task.counts:
        most = capacities.get(name, 0)
        if units > most:
            return f"{units} of {name} are wanted at once, and there are {most} in all: ask for fewer"
    return ""
