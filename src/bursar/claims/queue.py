"""Who waits for what, and who is next: plain and in memory, rebuilt from the store at any time.

**Waiting without a herd.** A task that cannot be granted waits at *one* name that blocks it, not at
all that it needs. When a name becomes free only those that wait at it are looked at, and all of them
that another name blocks move there in one step (see `places`). A task that waits elsewhere is
blocked elsewhere, so looking at it would change nothing: the outcome is that of the thesis's loop
over all tasks (figure 3-1), at the cost of the names that changed.

**Order** is one documented function (`order`): next is the first in it of all who can be granted
(where those are more than `LOOK_AHEAD`, of the ones who are first in line). Whichever it is: a task
that has waited longer than the aging bound comes before all others and *reserves* its names, and the
others only use what it does not need. Of two reservations of one name the older one counts, so the
oldest task of all gets everything it needs as soon as those who hold it now let go.

Invariants: a waiting task is not looked at yet, or ready, or in the line of one name, which blocks
it; no name blocks one that is ready; a name with an exclusive owner has no sharers; equal calls give
equal answers (nothing here iterates a set).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import chain, islice
from operator import attrgetter

from bursar.claims.places import PAGE, Entry, Key, Marks, Page, Place, Tank, Waiter
from bursar.claims.requirements import Counts, Mode, Requirements

LOOK_AHEAD = 256
"""Of those who can be granted, how many are compared with each other."""

PAGES_OPEN_MAX = 16
"""Pages for tasks that come out of order; past these they are put where they are out of order."""

DEGREE_KEPT_SHARE = 512
"""A degree is counted anew when this part of those who wait has changed."""

Order = Callable[["Queue", Entry], Key]

WeightOf = Callable[[str], int]


def _weigh_alike(tenant: str) -> int:
    return 1


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


def learned_order(queue: Queue, entry: Entry) -> Key:
    """As `conflict_order`, where it is known how long tasks take: not how many others would have to wait for
    it, but how long the work takes that would, name by name."""
    return (
        not entry.aged,
        -entry.priority,
        queue.turn(entry.tenant),
        -sum(place.work_s if exclusive else place.exclusive_s for place, exclusive in entry.needs),
        entry.submitted,
        entry.id,
    )


class Queue:
    """See the module's docstring."""

    def __init__(self, order: Order = conflict_order, weight_of: WeightOf = _weigh_alike) -> None:
        self.places: dict[str, Place] = {}
        self.entries: dict[str, Entry] = {}
        self._order = order
        self._weight_of = weight_of
        self._served: dict[str, float] = {}
        self._waiting_of: dict[str, int] = {}
        self._pages: dict[Page, None] = {}
        self._open: list[Page] = []
        self._taken: dict[str, Place] = {}
        self._closed: dict[str, Place] = {}
        self._changes = 0
        self._touched: dict[str, None] = {}
        self._young: list[tuple[int, int, str]] = []
        self._reserved: dict[str, None] = {}
        self.tanks: dict[str, Tank] = {}

    # Waiting

    def enter(
        self,
        id: str,
        needs: Requirements,
        *,
        tenant: str = "",
        priority: int = 0,
        submitted: int = 0,
        since: int | None = None,
        counts: Counts = (),
        seconds: float = 1.0,
    ) -> None:
        """A task begins to wait. `submitted` orders tasks; `since` is when its wait began, for `age`;
        `seconds` is how long it is expected to take."""
        assert id not in self.entries, f"{id} waits already"
        names = tuple((self._place(name), mode is Mode.EXCLUSIVE) for name, mode in needs)
        units = tuple((self._tank(name), number) for name, number in counts)
        places = (*names, *((tank.step(number), False) for tank, number in units))
        since = submitted if since is None else since
        entry = self.entries[id] = Entry(id, places, tenant, priority, submitted, since, units=units)
        entry.seconds = seconds
        entry.weigh(1)
        heapq.heappush(self._young, (since, submitted, id))
        self._join_page(entry)
        for tank, _ in units:
            self._refill(tank)
        for place, _ in places:
            if place.reserved == id:
                place.reserver = entry
        self._join_tenant(tenant)
        self._changes += 1

    def leave(self, id: str) -> None:
        """It no longer waits: granted, cancelled, or somebody else's now."""
        entry = self.entries.pop(id)
        self._part_from_page(entry)
        entry.weigh(-1)
        if entry.aged:
            self._unreserve(entry)
        for tank, _ in entry.units:
            if tank.aged.pop(id, None) is not None:
                self._refill(tank)
        self._part_from_tenant(entry.tenant)
        self._changes += 1
        for place, _ in entry.needs:
            self._forget_if_idle(place)

    def _join_page(self, entry: Entry) -> None:
        """Put a task on the page whose last one comes most closely before it in line."""
        position = bisect_left(self._open, entry.line_key, key=attrgetter("tail"))
        if position == 0 and len(self._open) < PAGES_OPEN_MAX:
            self._open.insert(0, Page(()))
            self._pages[self._open[0]] = None
        page = self._open[max(position - 1, 0)]
        entry.join(page)
        if len(page.slots) == PAGE:
            self._open.remove(page)

    def _part_from_page(self, entry: Entry) -> None:
        page = entry.page
        entry.part()
        if not page.waiting:
            del self._pages[page]
            if page in self._open:
                self._open.remove(page)

    def pick(self) -> str | None:
        """The task to grant next, None when nobody who waits can be granted."""
        for page in self._pages:
            if page.unsettled:
                self._settle(page)
        lines = [page.entries(page.ready) for page in self._pages if page.ready]
        if not lines:
            return None
        line = lines[0] if len(lines) == 1 else heapq.merge(*lines, key=attrgetter("line_key"))
        return min(islice(line, LOOK_AHEAD), key=lambda entry: self._order(self, entry)).id

    def _settle(self, page: Page) -> None:
        """Find out of those who were not looked at who waits where, and who is ready."""
        mask, page.unsettled = page.unsettled, 0
        if mask.bit_count() >= len(self._taken) + len(self._closed):
            mask = self._catch(page, mask, mask, chain(self._taken.values(), self._closed.values()))
            page.ready |= mask
            return
        for entry in page.entries(mask):
            if mask & entry.bit:
                mask = self._catch(page, mask, entry.bit, (place for place, _ in entry.needs))
                page.ready |= mask & entry.bit
                mask &= ~entry.bit

    def _catch(self, page: Page, mask: int, wanted: int, places: Iterable[Place]) -> int:
        """Let those whom one of the places blocks wait there, until none of the wanted ones is left.
        Returns the rest."""
        for place in places:
            marks = place.marks.get(page)
            if marks is not None and (caught := mask & place.blocked(page, marks)):
                marks.line |= caught
                if place.tank is not None:
                    page.short |= caught
                self._touched[place.name] = None
                mask ^= caught
                if not mask & wanted:
                    break
        return mask

    def _change(self, place: Place) -> None:
        """Who holds or reserves a name is another now: those whom it blocks no more are looked at
        next, those whom it blocks since are not ready."""
        waited_at = 0
        for page, marks in place.marks.items():
            blocked = place.blocked(page, marks)
            page.unsettled |= marks.line & ~blocked
            if place.tank is not None:
                page.short = (page.short & ~marks.line) | ((marks.line | page.ready) & blocked)
            elif caught := page.short & blocked:
                self._move_to_line(page, marks, caught)
            marks.line = (marks.line | page.ready) & blocked
            page.ready &= ~blocked
            waited_at |= marks.line
        if waited_at:
            self._touched[place.name] = None
        taken = self._taken if place.tank is None else self._closed
        if place.is_taken():
            taken[place.name] = place
        else:
            taken.pop(place.name, None)
            self._forget_if_idle(place)

    def _move_to_line(self, page: Page, marks: Marks, caught: int) -> None:
        """Who waits for units, and for a name now too, waits at the name: others may use the units."""
        for entry in page.entries(caught):
            for step, _ in entry.needs:
                if step.tank is not None:
                    step.marks[page].line &= ~entry.bit
        page.short &= ~caught
        marks.line |= caught

    def blocked_by(self, id: str) -> list[str]:
        """Every name that it waits for now, for people."""
        entry = self.entries[id]
        page, bit = entry.page, entry.bit
        return [
            place.name
            for place, _ in entry.needs
            if place.tank is None and place.blocked(page, place.marks[page]) & bit
        ]

    def short_of(self, id: str) -> list[tuple[Tank, int]]:
        """Every counted name of which it cannot have as many as it needs now."""
        entry = self.entries[id]
        return [pair for pair in entry.units if self._is_short(entry, pair[0].step(pair[1]))]

    def _is_short(self, entry: Entry, step: Place) -> bool:
        return bool(step.blocked(entry.page, step.marks[entry.page]) & entry.bit)

    def place_in_line(self, id: str) -> int:
        """How many wait at the same name and come before it in line."""
        entry = self.entries[id]
        for place, _ in entry.needs:
            if place.marks[entry.page].line & entry.bit:
                line = (other for page, marks in place.marks.items() for other in page.entries(marks.line))
                return sum(1 for other in line if other.line_key < entry.line_key)
        return 0

    def touch(self, names: Iterable[str]) -> None:
        """Something changed about these names that the queue does not see itself."""
        self._touched.update(dict.fromkeys(names))

    def drain_touched(self) -> list[str]:
        """Names at which somebody waits, and which changed or were joined since the last call."""
        names = list(self._touched)
        self._touched.clear()
        return names

    # Names

    def occupy(self, id: str, needs: Requirements) -> None:
        """The task owns these names now."""
        for name, mode in needs:
            place = self._place(name)
            if mode is Mode.EXCLUSIVE:
                place.owner = id
            else:
                place.sharers[id] = None
            self._change(place)

    def vacate(self, id: str, needs: Requirements) -> None:
        """It owns them no more; whoever waits at one that became free is looked at next."""
        for name, _ in needs:
            place = self._place(name)
            if place.owner == id:
                place.owner = ""
            place.sharers.pop(id, None)
            self._change(place)

    def see(self, name: str, owner: str, sharers: Iterable[str]) -> None:
        """What the store says of a name, as far as others changed it."""
        place = self._place(name)
        place.owner = owner
        place.sharers = dict.fromkeys(sharers)
        self._change(place)

    def _place(self, name: str) -> Place:
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = Place(name)
        return place

    def _forget_if_idle(self, place: Place) -> None:
        if place.tank is not None and not place.marks:
            tank = place.tank
            tank.steps = {units: step for units, step in tank.steps.items() if step is not place}
            self._closed.pop(place.name, None)
        if not place.marks and not place.is_taken() and self.places.get(place.name) is place:
            del self.places[place.name]

    # Counted names

    def _tank(self, name: str) -> Tank:
        tank = self.tanks.get(name)
        if tank is None:
            tank = self.tanks[name] = Tank(name)
        return tank

    def supply(self, name: str, free: int) -> None:
        """So many units can be granted here now."""
        tank = self._tank(name)
        if tank.free != free:
            tank.free = free
            self._refill(tank)

    def defer_to(self, name: str, elsewhere: Iterable[Waiter]) -> None:
        """Those elsewhere who come before all here that asked later."""
        tank, waiters = self._tank(name), tuple(elsewhere)
        if tank.elsewhere != waiters:
            tank.elsewhere = waiters
            self._refill(tank)

    def _refill(self, tank: Tank) -> None:
        left, open_to = tank.share_out()
        for units, step in list(tank.steps.items()):
            closed, pages = units > left, open_to.get(units, {})
            if (closed, pages) != (step.closed, step.open_to):
                step.closed, step.open_to = closed, pages
                self._change(step)

    def put_first(self, id: str) -> None:
        """Nothing was granted here for long: this one reserves units, as those who aged do."""
        entry = self.entries[id]
        for tank, _ in entry.units:
            if id not in tank.aged:
                tank.aged[id] = entry
                self._refill(tank)

    def find_short(self) -> dict[str, tuple[Entry, int]]:
        """For each counted name, who is first of those that wait for nothing but units, and how many it
        lacks; 0 for one of which it has enough, and lacks another."""
        found: dict[str, tuple[Entry, int]] = {}
        for tank in self.tanks.values():
            first = min(self._find_firsts(tank), key=self._find_turn, default=None)
            for each, units in first.units if first is not None else ():
                assert first is not None
                known = found.get(each.name)
                if known is None or self._find_turn(first) < self._find_turn(known[0]):
                    found[each.name] = first, max(0, units - each.free)
        return found

    def _find_turn(self, entry: Entry) -> Key:
        """Less is first: whoever reserves units, in the order in which they are shared out, then the line."""
        if any(entry.id in tank.aged for tank, _ in entry.units):
            return (-1, entry.submitted, entry.id)
        return entry.line_key

    def _find_firsts(self, tank: Tank) -> Iterable[Entry]:
        """The first of each page and step that waits for nothing but units, and those who reserve some."""
        for entry in tank.aged.values():
            for step in tank.steps.values():
                marks = step.marks.get(entry.page)
                if marks is not None and marks.line & entry.bit:
                    yield entry
        for step in tank.steps.values():
            for page, marks in step.marks.items():
                first = marks.line & -marks.line
                yield from page.entries(first if page.is_in_order else marks.line)

    def count_wanted(self, name: str, most: int) -> int:
        """Units that all who wait could use, up to `most`."""
        wanted = 0
        for units, step in self._tank(name).steps.items():
            wanted += units * sum((marks.shared).bit_count() for marks in step.marks.values())
        return min(wanted, most)

    # Aging

    def age(self, since_before: int) -> list[str]:
        """Everybody who began to wait before that and still does reserves its names. Returns those
        who began to. Looks at nobody else."""
        begun = []
        while self._young and self._young[0][0] < since_before:
            since, _, id = heapq.heappop(self._young)
            entry = self.entries.get(id)
            if entry is not None and entry.since == since and not entry.aged:
                begun.append(entry)
        begun.sort(key=lambda entry: (entry.submitted, entry.id))
        for entry in begun:
            self.age_one(entry.id)
        return [entry.id for entry in begun]

    def age_one(self, id: str) -> None:
        """It has waited long enough: it reserves its names."""
        entry = self.entries[id]
        if entry.aged:
            return
        self._part_from_page(entry)
        entry.aged = True
        self._join_page(entry)
        for place, exclusive in entry.needs:
            if place.tank is None:
                self.reserve(place.name, entry.id, entry.submitted, exclusive)
        for tank, _ in entry.units:
            tank.aged[id] = entry
            self._refill(tank)

    def reserve(self, name: str, id: str, since: int, exclusive: bool) -> bool:
        """Reserve a name for a task, unless an older one has it. True if it is reserved for it."""
        place = self._place(name)
        if place.reserved and place.reserved != id and (place.reserved_since, place.reserved) < (since, id):
            return False
        place.reserved, place.reserved_since, place.reserved_exclusive = id, since, exclusive
        place.reserver = self.entries.get(id)
        self._reserved[name] = None
        self._change(place)
        return True

    def unreserve(self, name: str, id: str) -> None:
        place = self.places.get(name)
        if place is not None and place.reserved == id:
            place.reserved, place.reserver = "", None
            self._reserved[name] = None
            self._reserve_next(place)
            self._change(place)

    def drain_reserved(self) -> list[str]:
        """Names that are reserved for others than at the last call, or for nobody any more."""
        names = list(self._reserved)
        self._reserved.clear()
        return names

    def touch_reserved(self, names: Iterable[str]) -> None:
        """They are to be drained once more."""
        self._reserved.update(dict.fromkeys(names))

    def find_heir(self, name: str) -> tuple[str, int, bool] | None:
        """Who of those that wait here has a name reserved: its id, its order, whether exclusively."""
        place = self.places.get(name)
        if place is None or place.reserver is None:
            return None
        return place.reserved, place.reserved_since, place.reserved_exclusive

    def _unreserve(self, entry: Entry) -> None:
        for place, _ in entry.needs:
            if place.tank is None:
                self.unreserve(place.name, entry.id)

    def _reserve_next(self, place: Place) -> None:
        """For another one that aged and wants the name: the one that came first."""
        heirs = [
            (entry.submitted, entry.id, bool(marks.exclusive & entry.bit))
            for page, marks in place.marks.items()
            for entry in page.first_aged(marks.exclusive | marks.shared)
        ]
        if heirs:
            since, id, exclusive = min(heirs)
            place.reserved, place.reserved_since, place.reserved_exclusive = id, since, exclusive
            place.reserver = self.entries[id]

    # Order

    def degree(self, entry: Entry) -> int:
        """How many of the waiting tasks could not run beside this one."""
        kept = max(1, len(self.entries) // DEGREE_KEPT_SHARE)
        if self._changes - entry.counted >= kept or entry.counted < 0:
            entry.degree = sum(self._count_conflicts(entry, page) for page in self._pages)
            entry.counted = self._changes
        return entry.degree

    def _count_conflicts(self, entry: Entry, page: Page) -> int:
        mask = 0
        for place, exclusive in entry.needs:
            marks = place.marks.get(page)
            if marks is not None:
                mask |= marks.exclusive | marks.shared if exclusive else marks.exclusive
                if mask == page.waiting:
                    break
        return (mask & ~entry.bit if entry.page is page else mask).bit_count()

    def turn(self, tenant: str) -> float:
        """Grants that the tenant got, by weight; who got least is next."""
        return self._served.get(tenant, 0.0)

    def charge(self, tenant: str) -> None:
        """The tenant got a grant."""
        self._served[tenant] = self.turn(tenant) + 1 / self._weight_of(tenant)

    def is_waiting(self, tenant: str) -> bool:
        return tenant in self._waiting_of

    def forget_tenants(self, is_kept: Callable[[str], bool]) -> None:
        """What the others got: who neither waits nor is kept. One that comes back is given as much as
        whoever got least, not more."""
        self._served = {
            tenant: turn
            for tenant, turn in self._served.items()
            if tenant in self._waiting_of or is_kept(tenant)
        }

    def _join_tenant(self, tenant: str) -> None:
        """Who comes back does not get for nothing what it did not ask for while it was away."""
        waiting = self._waiting_of.get(tenant, 0)
        if waiting == 0:
            others = [self.turn(other) for other in self._waiting_of]
            if others:
                self._served[tenant] = max(self.turn(tenant), min(others))
        self._waiting_of[tenant] = waiting + 1

    def _part_from_tenant(self, tenant: str) -> None:
        waiting = self._waiting_of[tenant] - 1
        if waiting:
            self._waiting_of[tenant] = waiting
        else:
            del self._waiting_of[tenant]
