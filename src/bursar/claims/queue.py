"""Who waits for what, and who is next: plain and in memory, rebuilt from the store at any time.

**Waiting without a herd.** A task that cannot be granted waits at *one* name that blocks it, not at
all that it needs. When a name becomes free only those that wait at it are looked at; one that is
still blocked by another name moves there. A task that waits elsewhere is blocked elsewhere, so
looking at it would change nothing: the outcome is that of the thesis's loop over all tasks
(figure 3-1), at the cost of those that may have a chance.

**Order** is one documented function (`order`). Whichever it is: a task that has waited longer than
the aging bound comes before all others and *reserves* its names, and the others only use what it
does not need. Of two reservations of one name the older one counts, so the oldest task of all gets
everything it needs as soon as those who hold it now let go.

Invariants: a waiting task is at exactly one name, or among the fresh ones; a name with an exclusive
owner has no sharers; equal calls give equal answers (nothing here iterates a set).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.claims.requirements import Mode, Requirements

LOOK_AHEAD = 256
"""Waiters at one name that are compared with each other when it becomes free."""

WINDOW = 2048
"""Waiting tasks that count as conflicts of others; those beyond are taken in order of release."""

DEGREE_KEPT = 16
DEGREE_KEPT_SHARE = 64
"""Changes of the queue after which a degree is counted anew: so many, or this part of those who wait."""

Key = tuple[Any, ...]
Line = list[tuple[Key, str]]


@dataclass(slots=True)
class Place:
    """A name as the queue sees it."""

    name: str
    owner: str = ""
    sharers: dict[str, None] = field(default_factory=dict)
    reserved: str = ""
    reserved_since: int = 0
    reserved_exclusive: bool = False
    exclusive_line: Line = field(default_factory=list)
    shared_line: Line = field(default_factory=list)
    exclusive_mask: int = 0
    shared_mask: int = 0

    def is_idle(self) -> bool:
        return not (
            self.owner or self.sharers or self.reserved or self.exclusive_line or self.shared_line
            or self.exclusive_mask or self.shared_mask
        )  # fmt: skip


@dataclass(slots=True)
class Entry:
    """A waiting task."""

    id: str
    needs: tuple[tuple[Place, bool], ...]
    tenant: str
    priority: int
    submitted: int
    bit: int
    at: Place | None = None
    at_exclusive: bool = False
    aged: bool = False
    degree: int = 0
    counted: int = -1
    line_key: Key = ()

    def place_in_lines(self) -> None:
        """Its key in every line: to be called where it may have changed, in no line."""
        self.line_key = (not self.aged, -self.priority, self.submitted, self.id)


Order = Callable[["Queue", Entry], Key]


def release_order(queue: Queue, entry: Entry) -> Key:
    """The thesis's: who was released first is tried first (section 3.2)."""
    return (not entry.aged, entry.submitted, entry.id)


def conflict_order(queue: Queue, entry: Entry) -> Key:
    """bursar's: by priority; then the tenant that got least for its weight; then the task that most
    of the others would have to wait for, because what stands in everybody's way leaves the least
    room later; then by release."""
    return (
        not entry.aged,
        -entry.priority,
        queue.turn(entry.tenant),
        -queue.degree(entry),
        entry.submitted,
        entry.id,
    )


class Queue:
    """See the module's docstring."""

    def __init__(self, order: Order = conflict_order, weights: Mapping[str, int] | None = None) -> None:
        self.places: dict[str, Place] = {}
        self.entries: dict[str, Entry] = {}
        self._order = order
        self._weights = weights or {}
        self._served: dict[str, float] = {}
        self._waiting_of: dict[str, int] = {}
        self._fresh: Line = []
        self._woken: dict[str, Place] = {}
        self._bits = [1 << number for number in range(WINDOW - 1, -1, -1)]
        self._changes = 0
        self._touched: dict[str, None] = {}

    # Waiting

    def enter(
        self, id: str, needs: Requirements, *, tenant: str = "", priority: int = 0, submitted: int = 0
    ) -> None:
        """A task begins to wait."""
        assert id not in self.entries, f"{id} waits already"
        places = tuple((self._place(name), mode is Mode.EXCLUSIVE) for name, mode in needs)
        bit = self._bits.pop() if self._bits else 0
        entry = Entry(id, places, tenant, priority, submitted, bit)
        entry.place_in_lines()
        for place, exclusive in places:
            if exclusive:
                place.exclusive_mask |= bit
            else:
                place.shared_mask |= bit
        self.entries[id] = entry
        self._join_tenant(tenant)
        self._changes += 1
        insort(self._fresh, (entry.line_key, id))

    def leave(self, id: str) -> None:
        """It no longer waits: granted, cancelled, or somebody else's now."""
        entry = self.entries.pop(id)
        self._unregister(entry)
        for place, exclusive in entry.needs:
            if exclusive:
                place.exclusive_mask &= ~entry.bit
            else:
                place.shared_mask &= ~entry.bit
        if entry.bit:
            self._bits.append(entry.bit)
        if entry.aged:
            self._unreserve(entry)
        self._waiting_of[entry.tenant] -= 1
        self._changes += 1
        self._tidy(entry.needs)

    def pick(self) -> str | None:
        """The task to grant next, None when nobody who waits can be granted."""
        stuck: dict[str, None] = {}
        while candidates := self._candidates(stuck):
            candidates.sort(key=lambda entry: self._order(self, entry))
            for entry in candidates:
                found = self._find_blocker(entry)
                if found is None:
                    return entry.id
                blocker, exclusive = found
                if entry.at is blocker:
                    stuck[entry.id] = None
                else:
                    self._register(entry, blocker, exclusive)
        self._woken.clear()
        return None

    def _candidates(self, stuck: Mapping[str, None]) -> list[Entry]:
        """Those that might be granted now, at most LOOK_AHEAD of each line."""
        lines = [self._fresh]
        for place in self._woken.values():
            lines += self._open_lines(place)
        return [
            self.entries[id] for line in lines for _, id in line[: LOOK_AHEAD + len(stuck)] if id not in stuck
        ]

    def _open_lines(self, place: Place) -> list[Line]:
        """Which of those who wait at the name it would have room for."""
        if place.owner:
            return []
        if place.sharers:
            return [place.shared_line]
        return [place.exclusive_line, place.shared_line]

    def blocked_by(self, id: str) -> list[str]:
        """Every name that it waits for now, for people."""
        entry = self.entries[id]
        return [place.name for place, exclusive in entry.needs if self._blocks(place, exclusive, entry)]

    def _find_blocker(self, entry: Entry) -> tuple[Place, bool] | None:
        for pair in entry.needs:
            place, exclusive = pair
            if place.owner or (exclusive and place.sharers):
                return pair
            if place.reserved and self._blocks(place, exclusive, entry):
                return pair
        return None

    def _blocks(self, place: Place, exclusive: bool, entry: Entry) -> bool:
        if place.owner or (exclusive and place.sharers):
            return True
        if not place.reserved or place.reserved == entry.id:
            return False
        if entry.aged and (entry.submitted, entry.id) < (place.reserved_since, place.reserved):
            return False
        return exclusive or place.reserved_exclusive

    def _register(self, entry: Entry, place: Place, exclusive: bool) -> None:
        self._unregister(entry)
        entry.at, entry.at_exclusive = place, exclusive
        insort(place.exclusive_line if entry.at_exclusive else place.shared_line, (entry.line_key, entry.id))
        self._touched[place.name] = None

    def drain_touched(self) -> list[str]:
        """Names at which somebody waits, and which changed or were joined since the last call."""
        names = list(self._touched)
        self._touched.clear()
        return names

    def _unregister(self, entry: Entry) -> None:
        if entry.at is None:
            line = self._fresh
        else:
            line = entry.at.exclusive_line if entry.at_exclusive else entry.at.shared_line
        position = bisect_left(line, (entry.line_key, entry.id))
        assert line[position][1] == entry.id, "a waiting task is in the line where it is registered"
        del line[position]
        entry.at = None

    # Names

    def occupy(self, id: str, needs: Requirements) -> None:
        """The task owns these names now."""
        for name, mode in needs:
            place = self._place(name)
            if mode is Mode.EXCLUSIVE:
                place.owner = id
            else:
                place.sharers[id] = None
            self._wake(place)

    def vacate(self, id: str, needs: Requirements) -> None:
        """It owns them no more; whoever waits at one that became free is looked at next."""
        for name, _ in needs:
            place = self._place(name)
            if place.owner == id:
                place.owner = ""
            place.sharers.pop(id, None)
            self._wake(place)
            self._forget_if_idle(place)

    def see(self, name: str, owner: str, sharers: Iterable[str]) -> None:
        """What the store says of a name, as far as others changed it."""
        place = self._place(name)
        place.owner = owner
        place.sharers = dict.fromkeys(sharers)
        self._wake(place)
        self._forget_if_idle(place)

    def _wake(self, place: Place) -> None:
        if place.exclusive_line or place.shared_line:
            self._touched[place.name] = None
            if not place.owner:
                self._woken[place.name] = place

    def _place(self, name: str) -> Place:
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = Place(name)
        return place

    def _tidy(self, needs: Iterable[tuple[Place, bool]]) -> None:
        for place, _ in needs:
            self._forget_if_idle(place)

    def _forget_if_idle(self, place: Place) -> None:
        if place.is_idle() and self.places.get(place.name) is place:
            del self.places[place.name]
            self._woken.pop(place.name, None)

    # Aging

    def age(self, submitted_before: int) -> list[str]:
        """Everybody who was released before that and still waits reserves its names. Returns those
        who began to."""
        begun = [
            entry
            for entry in sorted(self.entries.values(), key=lambda entry: (entry.submitted, entry.id))
            if not entry.aged and entry.submitted < submitted_before
        ]
        for entry in begun:
            at, exclusive = entry.at, entry.at_exclusive
            self._unregister(entry)
            entry.aged = True
            entry.place_in_lines()
            if at is None:
                insort(self._fresh, (entry.line_key, entry.id))
            else:
                entry.at, entry.at_exclusive = at, exclusive
                insort(at.exclusive_line if exclusive else at.shared_line, (entry.line_key, entry.id))
                self._wake(at)
            for place, exclusive in entry.needs:
                self.reserve(place.name, entry.id, entry.submitted, exclusive)
        return [entry.id for entry in begun]

    def reserve(self, name: str, id: str, since: int, exclusive: bool) -> bool:
        """Reserve a name for a task, unless an older one has it. True if it is reserved for it."""
        place = self._place(name)
        if place.reserved and place.reserved != id and (place.reserved_since, place.reserved) < (since, id):
            return False
        place.reserved, place.reserved_since, place.reserved_exclusive = id, since, exclusive
        self._wake(place)
        return True

    def unreserve(self, name: str, id: str) -> None:
        place = self.places.get(name)
        if place is not None and place.reserved == id:
            place.reserved = ""
            self._reserve_next(place)
            self._wake(place)
            self._forget_if_idle(place)

    def _unreserve(self, entry: Entry) -> None:
        for place, _ in entry.needs:
            self.unreserve(place.name, entry.id)

    def _reserve_next(self, place: Place) -> None:
        """Another one that aged and wants the name."""
        heirs = [
            (entry.submitted, entry.id, exclusive)
            for entry in self.entries.values()
            if entry.aged
            for other, exclusive in entry.needs
            if other is place
        ]
        if heirs:
            since, id, exclusive = min(heirs)
            place.reserved, place.reserved_since, place.reserved_exclusive = id, since, exclusive

    # Order

    def degree(self, entry: Entry) -> int:
        """How many of the waiting tasks could not run beside this one."""
        kept = max(DEGREE_KEPT, len(self.entries) // DEGREE_KEPT_SHARE)
        if self._changes - entry.counted >= kept or entry.counted < 0:
            mask = 0
            for place, exclusive in entry.needs:
                mask |= place.exclusive_mask | place.shared_mask if exclusive else place.exclusive_mask
            entry.degree = (mask & ~entry.bit).bit_count()
            entry.counted = self._changes
        return entry.degree

    def turn(self, tenant: str) -> float:
        """Grants that the tenant got, by weight; who got least is next."""
        return self._served.get(tenant, 0.0)

    def charge(self, tenant: str) -> None:
        """The tenant got a grant."""
        self._served[tenant] = self.turn(tenant) + 1 / self._weights.get(tenant, 1)

    def _join_tenant(self, tenant: str) -> None:
        """Who comes back does not get for nothing what it did not ask for while it was away."""
        waiting = self._waiting_of.get(tenant, 0)
        if waiting == 0:
            others = [self.turn(other) for other, count in self._waiting_of.items() if count]
            if others:
                self._served[tenant] = max(self.turn(tenant), min(others))
        self._waiting_of[tenant] = waiting + 1

    def place_in_line(self, id: str) -> int:
        """How many wait at the same name and come before it in line."""
        entry = self.entries[id]
        if entry.at is None:
            return 0
        line = entry.at.exclusive_line + entry.at.shared_line
        return sum(1 for key, _ in line if key < entry.line_key)
