"""The book of one instance: the tasks that it looks after, who waits for what, and what is under way.

All that liveness rests on is here: plain and synchronous, so that it can be stepped, and searched with
everything around it (`bursar sim claim --search`). The couriers around it carry what it says to the store
and back. Safety does not rest on it: see `book`.

What makes that nobody waits while all it needs is free:

1. A task that is looked after is in the queue, or a transaction that grants, records or ends it is under
   way, or its names are being read on its way to the queue, or it runs, or its time has not come (`later`).
   Whatever ends one of these begins another.
2. A name at which somebody waits is held here, or is being followed (`is_foreign`). A task that waits here
   holds nothing (`holds_here`), whatever was seen of it before.
3. What bears this session's mark and is not looked after is `unsure` (see `looking`), and looked at.
4. An end that is known here is told until the store has it (`Doing`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bursar.claims.book import ClaimBook, Draft, Heir, View
from bursar.claims.durations import Durations
from bursar.claims.lots import Purse, find_beyond
from bursar.claims.model import State, Task
from bursar.claims.queue import Queue
from bursar.claims.requirements import Mode
from bursar.errors import BursarError, Refused
from bursar.world import MILLISECOND_NS

FRESH_NS = 50 * MILLISECOND_NS
"""A view younger than this is believed without reading again while other instances run."""

UNRECORDED = 1 << 62
"""The place in line of a claim that is not in the store yet: behind everybody who is."""


LOST = "it holds nothing any more: its names were taken away, or it is over"


@dataclass(slots=True, eq=False)
class More:
    """What a task that runs asks for besides.

    held      the grant
    waits     whether somebody waits for it
    answered  the record with what it asked for, or why not
    wanted    the task, needing just that
    created   the revision of its record: its age
    granting  a transaction that gives it is under way
    noted, recorded   its record is to say, or says, what it waits for"""

    held: Task
    waits: bool
    answered: asyncio.Future[Task]
    wanted: Task = field(init=False)
    created: int = 0
    granting: bool = False
    noted: bool = False
    recorded: bool = False

    def answer(self, answer: Task | BursarError) -> None:
        """The first one counts."""
        if self.answered.done():
            return
        if isinstance(answer, Task):
            self.answered.set_result(answer)
        else:
            self.answered.set_exception(answer)


@dataclass(slots=True)
class Mine:
    """A task that this instance looks after. version None: not in the store yet.

    created     the revision of its record: its place in line, the same whoever looks after it
    since_ns    when its wait began, by this instance's clock
    granting    a transaction that grants it is under way
    recording   one that writes it down, so that it keeps its place
    patient     somebody waits, so that a name which another let go of a moment ago is no loss
    more        what it asks for while it runs"""

    task: Task
    version: int | None
    created: int = UNRECORDED
    since_ns: int = 0
    granting: bool = False
    recording: bool = False
    patient: bool = True
    more: More | None = None

    @property
    def wanting(self) -> Task:
        """The task, with the names that it is to be granted now."""
        return self.task if self.more is None else self.more.wanted

    def is_recorded(self) -> bool:
        """Whether it waits, and the store has it."""
        busy = self.granting or self.recording or self.version is None
        return not busy and self.task.state is State.PENDING

    def can_be_left(self) -> bool:
        """A task, and nothing is being decided of it: another may look after it from now on."""
        waits = self.task.state is State.PENDING and not self.granting
        return not self.task.is_claim and self.version is not None and waits


class InstanceBook:
    """See above.

    plans       the book of transactions, with what was seen of names
    mine        what is looked after
    running     tasks that have a place of those that may be done at a time (`running_max`)
    written     names that a transaction under way writes
    unrecorded  claims that wait and are not in the store
    later       tasks that are not to be begun yet: they failed, and are tried again after a pause
    durations   how long tasks take, as far as was seen
    capacities  how many there are of each counted name
    draining    it takes no more tasks, and leaves those that wait to others
    changed     set when somebody may be granted
    """

    def __init__(
        self, plans: ClaimBook, make_queue: Callable[[], Queue], *, works: bool, running_max: int | None
    ) -> None:
        self.plans = plans
        self.queue = make_queue()
        self.works = works
        self.running_max = running_max
        self.mine: dict[str, Mine] = {}
        self.running: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.unrecorded: dict[str, None] = {}
        self.counts: dict[str, int] = {}
        self.draining = False
        self.changed = asyncio.Event()
        self.capacities: Mapping[str, int] = {}
        self.durations = Durations()
        self._make_queue = make_queue
        self.later: dict[str, Mine] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._due: list[tuple[int, str]] = []

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def forget(self) -> None:
        """Nothing is this instance's any more."""
        self.queue = self._make_queue()
        self.plans.forget(list(self.plans.views))
        self.plans.lots.forget()
        self.mine.clear()
        self.running.clear()
        self.written.clear()
        self.unrecorded.clear()
        self._deadlines.clear()
        self.later.clear()
        self._due.clear()

    # Room

    def is_full(self) -> bool:
        """Whether as many tasks run as this instance is to have done at a time."""
        return self.running_max is not None and len(self.running) >= self.running_max

    def is_idle(self) -> bool:
        """Whether it has room for tasks, and none."""
        works = self.works and self.running_max is not None and not self.draining
        return works and not self.queue.entries and not self.is_full()

    def find_leavable(self) -> list[str]:
        """Tasks that wait, and that another may look after from now on."""
        return [id for id in (*self.queue.entries, *self.later) if self.mine[id].can_be_left()]

    def waits(self, id: str) -> bool:
        """Whether it is in the queue, or will be when its time comes. One that runs and asks for more is in
        the queue as well."""
        mine = self.mine.get(id)
        is_known = id in self.queue.entries or id in self.later
        return is_known and mine is not None and mine.task.state is State.PENDING

    # Tasks

    def take_in(self, mine: Mine) -> None:
        self.mine[mine.task.id] = mine
        if mine.task.deadline:
            self.put_off(mine.task.id, mine.task.deadline)

    def put_off(self, id: str, deadline: int) -> None:
        heapq.heappush(self._deadlines, (deadline, id))

    def pop_late(self, wall_ns: int) -> list[str]:
        """Those that wait, and whose deadline has passed."""
        late = []
        while self._deadlines and self._deadlines[0][0] < wall_ns:
            _, id = heapq.heappop(self._deadlines)
            if id in self.mine and self.mine[id].task.state is State.PENDING:
                late.append(id)
        return late

    def put_later(self, mine: Mine) -> None:
        self.later[mine.task.id] = mine
        heapq.heappush(self._due, (mine.task.not_before, mine.task.id))

    def pop_due(self, wall_ns: int) -> list[Mine]:
        """Those whose time has come."""
        due = []
        while self._due and self._due[0][0] <= wall_ns:
            _, id = heapq.heappop(self._due)
            mine = self.later.get(id)
            if mine is not None and mine.task.not_before <= wall_ns:
                del self.later[id]
                due.append(mine)
        return due

    def enter(self, mine: Mine) -> None:
        """It waits in the queue from now on; its names are known."""
        task = mine.task
        self.queue.enter(
            task.id,
            task.requirements,
            tenant=task.tenant,
            priority=task.priority,
            submitted=mine.created,
            since=mine.since_ns,
            counts=task.counts,
            seconds=self.expect(task),
        )
        self.supply(name for name, _ in task.counts)
        views = (self.plans.views.get(name) for name, _ in task.needs)
        if any(view is not None and view.holding.reserved == task.id for view in views):
            self.queue.age_one(task.id)
        if mine.version is None:
            self.unrecorded[task.id] = None
        self.changed.set()

    def enter_more(self, mine: Mine) -> None:
        """It runs, and waits for more; it reserves that at once, at its own age."""
        more = mine.more
        assert more is not None
        self.supply(name for name, _ in more.wanted.counts)
        self.queue.enter(
            mine.task.id,
            more.wanted.requirements,
            tenant=mine.task.tenant,
            submitted=more.created,
            since=mine.since_ns,
            counts=more.wanted.counts,
        )
        self.queue.age_one(mine.task.id)
        self.changed.set()

    def part(self, id: str) -> None:
        """Another process has the claim from now on, or nobody: what it asked for here goes with it."""
        mine = self.mine.pop(id, None)
        if mine is not None and mine.more is not None:
            mine.more.answer(Refused(LOST))
            if id in self.queue.entries:
                self.queue.leave(id)

    def leave_more(self, id: str) -> None:
        mine = self.mine.get(id)
        if mine is not None:
            mine.more = None
        if id in self.queue.entries:
            self.queue.leave(id)
        self.changed.set()

    def find_blockers(self, id: str) -> dict[str, int | None]:
        """Who holds or reserves what it waits for, by id; the age of those that only reserve it."""
        found: dict[str, int | None] = {}
        for name in self.queue.blocked_by(id):
            place = self.queue.places[name]
            for other in [place.owner] if place.owner else place.sharers:
                found[other] = None
            if place.reserved and place.reserved not in (id, *found):
                found[place.reserved] = place.reserved_since
        found.pop(id, None)
        return found

    def expect(self, task: Task) -> float:
        """Seconds that it takes, as far as is known; what nobody knows takes one like another."""
        return self.durations.expect(task.function, task.tenant) or 1.0

    def drop(self, id: str) -> None:
        mine = self.mine.pop(id, None)
        self.later.pop(id, None)
        if id in self.queue.entries:
            self.queue.leave(id)
        if mine is not None:
            self.changed.set()

    def begin_granting(self, mine: Mine) -> None:
        task = mine.wanting
        if mine.more is not None:
            mine.more.granting = True
            self.queue.occupy(task.id, task.requirements)
            return
        mine.granting = True
        if not task.is_claim:
            self.running[task.id] = None
        self.queue.occupy(task.id, task.requirements)
        self.queue.charge(task.tenant)

    def end(self, task: Task) -> Mine | None:
        """This grant owns nothing any more; returns what was looked after."""
        mine = None
        if not self.is_superseded(task):
            mine = self.mine.pop(task.id, None)
            if mine is not None and mine.more is not None:
                mine.more.answer(Refused(LOST))
            if task.id in self.queue.entries:
                self.queue.leave(task.id)  # it asked for more
            self.running.pop(task.id, None)
            self.queue.vacate(task.id, task.requirements)
            if mine is not None and mine.task.grown:
                self.queue.vacate(task.id, mine.task.requirements)  # of what it was given since, too
        self.supply(name for name, _ in task.counts)
        self.changed.set()
        return mine

    def is_superseded(self, task: Task) -> bool:
        """Whether this instance looks after a later grant of the task by now, or lets it wait for
        one: whoever learns late that an earlier grant is over does not touch that."""
        mine = self.mine.get(task.id)
        if mine is None:
            return False
        return mine.granting or mine.task.state is State.PENDING or mine.task.attempt != task.attempt

    # Counted names

    def supply(self, names: Iterable[str], purse: Purse | None = None) -> None:
        """Let the queue know how many units there are here; `purse`: of a transaction being made."""
        for name in names:
            free = self.plans.lots.count_free(name, purse)
            tank = self.queue.tanks.get(name)
            if tank is None or tank.free != free:
                self.queue.supply(name, free)
                self.changed.set()

    def has_units(self, task: Task) -> bool:
        return all(self.plans.lots.count_free(name) >= units for name, units in task.counts)

    def find_beyond(self, task: Task) -> str:
        return find_beyond(task, self.capacities)

    # Names

    def find_unknown(self, names: Iterable[str], now_ns: int, *, alone: bool) -> list[str]:
        """Names that are to be read before anybody waits for them."""
        oldest_ns = 0 if alone else now_ns - FRESH_NS
        unknown = []
        for name in names:
            view = self.plans.views.get(name)
            if view is None or (view.read_ns < oldest_ns and not self._is_held_here(name)):
                unknown.append(name)
        return unknown

    def _is_held_here(self, name: str) -> bool:
        """A name that this instance's own tasks hold is known, however long ago it was read."""
        place = self.queue.places.get(name)
        holders = [place.owner, *place.sharers] if place is not None else []
        return any(self.holds_here(id) for id in holders)

    def holds_here(self, id: str) -> bool:
        """Whether this instance looks after a task that holds its names, or is about to. One that waits
        here holds nothing, whatever was seen when another instance looked after it."""
        mine = self.mine.get(id)
        return mine is not None and (mine.granting or mine.task.state is not State.PENDING)

    def reserves_here(self, id: str) -> bool:
        """Whether what is reserved for it is this instance's to keep and to take back. Not of one that runs
        and asks for nothing: what is still reserved for it, it asked for elsewhere, before it came here."""
        mine = self.mine.get(id)
        if mine is None:
            return False
        return mine.granting or mine.more is not None or mine.task.state is State.PENDING

    def is_others(self, name: str) -> bool:
        """Whether another instance's task holds or reserves it, as far as is known here."""
        place = self.queue.places.get(name)
        if place is None:
            return False
        is_reserved = bool(place.reserved) and not self.reserves_here(place.reserved)
        return is_reserved or any(id and not self.holds_here(id) for id in (place.owner, *place.sharers))

    def is_foreign(self, name: str) -> bool:
        """Whether somebody here waits for what another instance's task holds or reserves."""
        place = self.queue.places.get(name)
        return place is not None and place.is_waited_at() and self.is_others(name)

    def is_older(self, name: str, view: View) -> bool:
        """Whether what is known of a name already is younger than what was read."""
        known = self.plans.views.get(name)
        if known is None:
            return False
        return view.number < known.number or (view.version or 0) < (known.version or 0)

    def see(self, name: str, view: View) -> None:
        """What the store says of a name."""
        if self.is_older(name, view):
            return
        self.plans.views[name] = view
        holding = view.holding
        self.queue.see(name, holding.owner, view.sharers)
        place = self.queue.places.get(name)
        if place is not None and place.reserved and not self.reserves_here(place.reserved):
            self.queue.unreserve(name, place.reserved)
        if holding.reserved and not self.reserves_here(holding.reserved):
            exclusive = holding.reserved_mode == Mode.EXCLUSIVE
            self.queue.reserve(name, holding.reserved, holding.reserved_since, exclusive)
        if holding.reserved in self.queue.entries:
            # It aged where it was looked after before, perhaps under other terms: whoever has one name
            # reserved reserves them all, or two wait for each other.
            self.queue.age_one(holding.reserved)

    def see_draft(self, draft: Draft) -> None:
        for name in draft.changed:
            if name in self.plans.views:
                self.see(name, self.plans.views[name])

    def forget_unused_views(self) -> None:
        self.plans.forget([name for name in list(self.plans.views) if name not in self.queue.places])

    def find_heir(self, name: str) -> Heir | None:
        """For whom of those that wait here a name is reserved."""
        found = self.queue.find_heir(name)
        if found is None:
            return None
        id, since, exclusive = found
        more = self.mine[id].more if id in self.mine else None
        if more is not None and not more.recorded:
            return None  # nobody else would know what it is for
        return Heir(id, since, Mode.EXCLUSIVE if exclusive else Mode.SHARED)

    def find_heirs(self, task: Task) -> dict[str, Heir]:
        found = {name: self.find_heir(name) for name, _ in task.needs}
        return {name: heir for name, heir in found.items() if heir is not None}

    # Telling

    def why_blocked(self, id: str) -> str:
        """One sentence on what a task in the queue waits for; nothing if no name keeps it."""
        reasons = []
        for name in self.queue.blocked_by(id)[:5]:
            place = self.queue.places[name]
            if place.owner or place.sharers:
                holders = map(self._call, [place.owner] if place.owner else list(place.sharers)[:3])
                more = len(place.sharers) - 3
                how = "held by" if place.owner else "shared by"
                rest = f" and {more} more" if more > 0 else ""
                reasons.append(f"{name} is {how} {', '.join(holders)}{rest}")
            else:
                first = self._call(place.reserved)
                reasons.append(f"{name} is reserved for {first}, which has waited longer")
        for tank, units in self.queue.short_of(id)[:5]:
            most = self.capacities.get(tank.name, 0)
            reasons.append(f"{units} of {tank.name} are not free ({tank.free} here, of {most} in all)")
        before = self.queue.place_in_line(id) if reasons else 0
        return "; ".join([*reasons, f"{before} wait before it"] if before else reasons)

    def _call(self, id: str) -> str:
        """A holder by its tenant's name, where that is known here."""
        return f"{self.mine[id].task.tenant} ({id})" if id in self.mine else id
