"""Names and waiting tasks as the queue sees them: sets of waiting tasks as bits of whole numbers.

Who waits has one bit on one *page*; a name keeps, for each page on which somebody needs it, the bits
of those who need it exclusively, of those who need it shared, and of those who wait at it. So all
that a name keeps from running is one number, and any number of tasks begin to wait at it, or cease
to, in one step.

Pages keep these numbers short: a name that one task needs costs one short number, however many
others wait for other things.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNITS = "\0"
"""Before the name of a place for units: no name that can be claimed begins so."""

PAGE = 2048
"""Tasks of one page."""

Key = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Page:
    """Tasks in the order of their lines. Each that is still `waiting` is in exactly one of `unsettled`,
    `ready`, and the line of one place; those in the line of a place for units are `short` of them, and of
    nothing else."""

    tail: Key
    slots: list[Entry | None] = field(default_factory=list)
    is_in_order: bool = True
    aged: int = 0
    waiting: int = 0
    unsettled: int = 0
    ready: int = 0
    short: int = 0

    def entries(self, mask: int) -> Iterator[Entry]:
        """The tasks of these bits, in order."""
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            entry = self.slots[lowest.bit_length() - 1]
            assert entry is not None, "only bits of those who wait are set"
            yield entry

    def first_aged(self, mask: int) -> Iterator[Entry]:
        """Those of these bits who aged; where the page is in order, only the first of them."""
        mask &= self.aged
        return self.entries(mask & -mask if self.is_in_order else mask)


@dataclass(slots=True)
class Marks:
    """Tasks of one page at one name: who needs it, and who waits at it."""

    exclusive: int = 0
    shared: int = 0
    line: int = 0


@dataclass(slots=True, eq=False)
class Place:
    """A name; or so many units of a counted one (`tank`), which are `closed` to all but those it is open
    to while there are fewer. `work_s`: how long all who wait and need it are expected to take, `exclusive_s`
    those of them that need it exclusively."""

    name: str
    owner: str = ""
    sharers: dict[str, None] = field(default_factory=dict)
    reserved: str = ""
    reserved_since: int = 0
    reserved_exclusive: bool = False
    reserver: Entry | None = None
    marks: dict[Page, Marks] = field(default_factory=dict)
    tank: Tank | None = None
    closed: bool = False
    open_to: dict[Page, int] = field(default_factory=dict)
    work_s: float = 0.0
    exclusive_s: float = 0.0

    def is_taken(self) -> bool:
        return bool(self.owner or self.sharers or self.reserved or self.closed)

    def is_waited_at(self) -> bool:
        return any(marks.line for marks in self.marks.values())

    def blocked(self, page: Page, marks: Marks) -> int:
        """Those of a page that may not take the name now. A reservation keeps away everybody but
        the one it is for: who aged earlier would have it."""
        if self.owner:
            return marks.exclusive | marks.shared
        if self.closed:
            return marks.shared & ~self.open_to.get(page, 0)
        mask = marks.exclusive if self.sharers else 0
        if self.reserved:
            kept_away = marks.exclusive | (marks.shared if self.reserved_exclusive else 0)
            if self.reserver is not None and self.reserver.page is page:
                kept_away &= ~self.reserver.bit
            mask |= kept_away
        return mask


@dataclass(slots=True, eq=False)
class Entry:
    """A waiting task."""

    id: str
    needs: tuple[tuple[Place, bool], ...]
    tenant: str
    priority: int
    submitted: int
    since: int = 0
    page: Page = field(init=False)
    bit: int = field(init=False)
    aged: bool = False
    degree: int = 0
    counted: int = -1
    units: tuple[tuple[Tank, int], ...] = ()
    seconds: float = 1.0

    def weigh(self, sign: int) -> None:
        """It begins (1) or ceases (-1) to wait."""
        for place, exclusive in self.needs:
            place.work_s += sign * self.seconds
            place.exclusive_s += sign * self.seconds * exclusive

    @property
    def wanted(self) -> Iterator[tuple[str, int]]:
        """Counted names, and how many of each."""
        return ((tank.name, units) for tank, units in self.units)

    @property
    def line_key(self) -> Key:
        """Its place in line: those who aged by age, the others by priority and age."""
        return (not self.aged, 0 if self.aged else -self.priority, self.submitted, self.id)

    def join(self, page: Page) -> None:
        """Be the last of a page, not yet looked at."""
        self.page, self.bit = page, 1 << len(page.slots)
        page.slots.append(self)
        page.is_in_order &= self.line_key >= page.tail
        page.tail = self.line_key
        if self.aged:
            page.aged |= self.bit
        page.waiting |= self.bit
        page.unsettled |= self.bit
        for place, exclusive in self.needs:
            marks = place.marks.get(page)
            if marks is None:
                marks = place.marks[page] = Marks()
            if exclusive:
                marks.exclusive |= self.bit
            else:
                marks.shared |= self.bit

    def part(self) -> None:
        """Be on no page."""
        page, others = self.page, ~self.bit
        page.slots[self.bit.bit_length() - 1] = None
        page.aged &= others
        page.waiting &= others
        page.unsettled &= others
        page.ready &= others
        page.short &= others
        for place, exclusive in self.needs:
            marks = place.marks[page]
            marks.line &= others
            if exclusive:
                marks.exclusive &= others
            else:
                marks.shared &= others
            if not (marks.exclusive or marks.shared):
                del place.marks[page]


Waiter = tuple[int, str, int]
"""Its order, its id, and how many units it waits for."""


@dataclass(slots=True, eq=False)
class Tank:
    """Units of a counted name that can be granted here now. `steps`: for each number of units that somebody
    needs, where those wait who need as many. `aged` reserve units here, because they aged or because nothing
    was granted here for long; `elsewhere` are those whom this instance lets go first."""

    name: str
    free: int = 0
    steps: dict[int, Place] = field(default_factory=dict)
    aged: dict[str, Entry] = field(default_factory=dict)
    elsewhere: tuple[Waiter, ...] = ()

    def step(self, units: int) -> Place:
        place = self.steps.get(units)
        if place is None:
            place = self.steps[units] = Place(f"{UNITS}{self.name}:{units}", tank=self)
        return place

    def share_out(self) -> tuple[int, dict[int, dict[Page, int]]]:
        """Units for those who reserved none; and who of the others can have theirs, by how many they need.
        Nobody is given what somebody before it lacks."""
        left, open_to = self.free, dict[int, dict[Page, int]]()
        for _, id, units in sorted([*self._list_aged(), *self.elsewhere]):
            if units > left:
                return 0, open_to
            left -= units
            entry = self.aged.get(id)
            if entry is not None:
                pages = open_to.setdefault(units, {})
                pages[entry.page] = pages.get(entry.page, 0) | entry.bit
        return left, open_to

    def _list_aged(self) -> Iterator[Waiter]:
        for entry in self.aged.values():
            units = next(units for tank, units in entry.units if tank is self)
            yield entry.submitted, entry.id, units
