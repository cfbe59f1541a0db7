"""Names that tasks wait for: reading them, and following those that other instances hold."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from bursar.claims.book import Draft, Heir, View
from bursar.claims.ground import (
    FRESH_NS,
    RESERVED_AT_ONCE,
    RETRY_NS,
    UNRECORDED,
    VIEWS_MAX,
    Ground,
    Lost,
    Mine,
)
from bursar.claims.model import State, Task
from bursar.claims.requirements import Mode
from bursar.errors import (
    FormatError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
)


class Waiting(Ground):
    """Lets tasks wait, and the queue see what others did."""

    def _admit(self, mine: Mine) -> None:
        """Let a task wait for its names."""
        self.mine[mine.task.id] = mine
        if mine.task.deadline:
            heapq.heappush(self._deadlines, (mine.task.deadline, mine.task.id))
        names = self._unknown_names(name for name, _ in mine.task.needs)
        if not mine.patient:
            # A refusal is an answer: it is not given for what another may have let go of since.
            names += [name for name, _ in mine.task.needs if name not in names and self._is_others(name)]
        if names:
            self.spawn(self._admit_later(mine, names), "admit")
        else:
            self._enter(mine)

    def admit_claim(self, task: Task, *, patient: bool) -> None:
        now_ns = self.world.clock.now()
        self._admit(Mine(task, None, UNRECORDED + now_ns, now_ns, patient=patient))

    def drop_claim(self, id: str) -> bool:
        """Let a claim wait no longer. True if there may be a record of it in the store."""
        mine = self.mine.get(id)
        self._drop(id)
        return mine is not None and (mine.version is not None or mine.recording)

    def leave_held(self, task: Task) -> None:
        """A claim whose holder is gone stays as it is. Whoever lets it go, or takes it over, may be any
        process: those who wait here for its names follow them as they do other instances'."""
        self._count("kept")
        self.mine.pop(task.id, None)
        self.queue.touch(name for name, _ in task.needs)
        self._kick.set()

    def _unknown_names(self, names: Iterable[str]) -> list[str]:
        oldest_ns = self.world.clock.now() - FRESH_NS if self._others else 0
        unknown = []
        for name in names:
            view = self.book.views.get(name)
            if view is None or (view.read_ns < oldest_ns and not self._occupied_here(name)):
                unknown.append(name)
        return unknown

    def _occupied_here(self, name: str) -> bool:
        """A name that this instance's own tasks hold is known, however long ago it was read."""
        place = self.queue.places.get(name)
        holders = [place.owner, *place.sharers] if place is not None else []
        return any(self._holds_here(id) for id in holders)

    def _holds_here(self, id: str) -> bool:
        """Whether this instance looks after a task that holds its names, or is about to. One that waits
        here holds nothing, whatever was seen when another instance looked after it."""
        mine = self.mine.get(id)
        return mine is not None and (mine.granting or mine.task.state is not State.PENDING)

    def _is_others(self, name: str) -> bool:
        """Whether another instance's task holds or reserves it, as far as is known here."""
        place = self.queue.places.get(name)
        if place is None:
            return False
        is_reserved = bool(place.reserved) and place.reserved not in self.mine
        return is_reserved or any(id and not self._holds_here(id) for id in (place.owner, *place.sharers))

    async def _admit_later(self, mine: Mine, names: list[str]) -> None:
        generation = self.generation
        try:
            if not mine.patient:
                await self.desk.repeat(self.world.store.sync)
            await self._refresh(names)
        except SessionExpiredError:
            self.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
            if self.mine.get(mine.task.id) is mine:
                self._admit_not(mine, error)
            return
        if generation == self.generation and self.mine.get(mine.task.id) is mine:
            self._enter(mine)

    def _admit_not(self, mine: Mine, error: StoreUnknownError | FormatError) -> None:
        """Its names could not be read."""
        id = mine.task.id
        if not mine.task.is_claim:
            self._drop(id)
            self._unsure[id] = None  # the next look finds it waiting
            self._look_everywhere()
        elif isinstance(error, FormatError):
            self.claims.fail(id, Refused(str(error)))
        else:
            self.claims.look_again(id)

    def _enter(self, mine: Mine) -> None:
        task = mine.task
        self.queue.enter(
            task.id,
            task.requirements,
            tenant=task.tenant,
            priority=task.priority,
            submitted=mine.created,
            since=mine.since_ns,
        )
        views = (self.book.views.get(name) for name, _ in task.needs)
        if any(view is not None and view.holding.reserved == task.id for view in views):
            self.queue.age_one(task.id)
        if mine.version is None:
            self._unrecorded[task.id] = None
        if task.is_claim:
            self.claims.enter(task.id)
        self._kick.set()

    def _drop(self, id: str) -> None:
        mine = self.mine.pop(id, None)
        if id in self.queue.entries:
            self.queue.leave(id)
        if mine is not None:
            self._kick.set()

    async def _refresh(self, names: Iterable[str]) -> None:
        """Read names, and let the queue see what others did to them."""
        if len(self.book.views) > VIEWS_MAX:
            self.book.forget([name for name in list(self.book.views) if name not in self.queue.places])
        wanted, generation, doubted = list(names), self.generation, False
        while True:
            if not self.book.is_floor_sure:
                found = await self.desk.read_floor()
                if generation != self.generation:
                    return
                self.book.stand_on(found)
            floor = self.book.floor
            views = await self.desk.read_names(wanted)
            if generation != self.generation:
                return
            if floor != self.book.floor:
                continue  # names were removed meanwhile, and what was read is older than that
            if doubted or not any(self._is_older(name, view) for name, view in views.items()):
                break
            # A slow reader's, or the name was removed and begins anew: the floor tells which.
            doubted, self.book.is_floor_sure = True, False
        for name, view in views.items():
            self._see(name, view)
        self._kick.set()

    def _is_older(self, name: str, view: View) -> bool:
        """Whether what is known of a name already is younger than what was read."""
        known = self.book.views.get(name)
        if known is None:
            return False
        return view.number < known.number or (view.version or 0) < (known.version or 0)

    def _see(self, name: str, view: View) -> None:
        if self._is_older(name, view):
            return
        self.book.views[name] = view
        holding = view.holding
        self.queue.see(name, holding.owner, view.sharers)
        place = self.queue.places.get(name)
        if place is not None and place.reserved and place.reserved not in self.mine:
            self.queue.unreserve(name, place.reserved)
        if holding.reserved and holding.reserved not in self.mine:
            exclusive = holding.reserved_mode == Mode.EXCLUSIVE
            self.queue.reserve(name, holding.reserved, holding.reserved_since, exclusive)
        if holding.reserved in self.queue.entries:
            # It aged where it was looked after before, perhaps under other terms: whoever has one name
            # reserved reserves them all, or two wait for each other.
            self.queue.age_one(holding.reserved)
        if name in self._followed and self._is_foreign(name):
            self._follow_from(self._telling_node(name), name)  # it may be another node's to tell now

    def _follow_blockers(self) -> None:
        for name in self.queue.drain_touched():
            if self._is_foreign(name):
                self._follow_from(self._telling_node(name), name)

    def _follow_from(self, path: str, name: str) -> None:
        """Follow a name by this node, unless that is done already."""
        if self._followed.get(name) != path:
            self._followed[name] = path
            self.spawn(self._follow(name, path, self.generation), "follow")

    def _is_foreign(self, name: str) -> bool:
        """Whether somebody here waits for what another instance's task holds or reserves."""
        place = self.queue.places.get(name)
        waited_for = place is not None and place.is_waited_at()
        return waited_for and self._is_others(name)

    async def _follow(self, name: str, path: str, generation: int) -> None:
        """Read a name whenever this node changes, for as long as it is the one that tells of another's
        task for which somebody here waits."""
        try:
            watch = await self._open_watch(path)
            await self._refresh([name])
            await self._clear_stale_reservation(name, generation)
            while self._is_followed(name, path, generation):
                await watch.changed()
                await self._refresh([name])
            watch.close()
        except SessionExpiredError:
            self.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
            await self.world.clock.sleep(RETRY_NS)
        if generation == self.generation and self._followed.get(name) == path:
            del self._followed[name]
            if self._is_foreign(name):
                self._follow_from(self._telling_node(name), name)

    def _is_followed(self, name: str, path: str, generation: int) -> bool:
        wanted = generation == self.generation and self._followed.get(name) == path
        return wanted and self._is_foreign(name) and self._telling_node(name) == path

    def _telling_node(self, name: str) -> str:
        """The node that changes when those who hold the name let go."""
        place = self.queue.places[name]
        in_shared = not place.owner and bool(place.sharers)
        return self.layout.sharers(name) if in_shared else self.layout.name(name)

    async def _clear_stale_reservation(self, name: str, generation: int) -> None:
        """A reservation of a task that is no more keeps nobody away."""
        view = self.book.views.get(name)
        id = view.holding.reserved if view is not None else ""
        if not id or id in self.mine or generation != self.generation:
            return
        await self.desk.repeat(self.world.store.sync)
        if await self.desk.read_task(id) is None and generation == self.generation:
            await self._write_reservations({name: None}, {name: id}, generation)

    def _check_reservations(self) -> None:
        """Of names that nobody holds, and that others have reserved: whether those are still there."""
        for name in list(self._followed):
            place = self.queue.places.get(name)
            if place is not None and place.reserved and not place.owner and not place.sharers:
                self.spawn(self._check_reservation(name, self.generation), "reserve")

    async def _check_reservation(self, name: str, generation: int) -> None:
        try:
            await self._clear_stale_reservation(name, generation)
        except SessionExpiredError:
            self.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)

    # Reservations, as the store is told of them

    def _heir(self, name: str) -> Heir | None:
        """For whom of those that wait here a name is reserved."""
        found = self.queue.find_heir(name)
        if found is None:
            return None
        id, since, exclusive = found
        return Heir(id, since, Mode.EXCLUSIVE if exclusive else Mode.SHARED)

    def _heirs(self, task: Task) -> dict[str, Heir]:
        """Alone, an instance reserves for itself."""
        found = {name: self._heir(name) for name, _ in task.needs} if self._others else {}
        return {name: heir for name, heir in found.items() if heir is not None}

    def _note_reservations(self) -> None:
        """Tell the store of what changed since it was last told. What is known is not read for that."""
        if self._noting:
            return
        names = self.queue.drain_reserved()
        if not self._others:
            return
        ready = [name for name in names if name not in self._written]
        now = dict.fromkeys(ready[:RESERVED_AT_ONCE])
        self.queue.touch_reserved(name for name in names if name not in now and self._heir(name) is not None)
        heirs = {name: self._heir(name) for name in now}
        wanted = {name: heir for name, heir in heirs.items() if heir is not None or name in self._noted}
        if wanted:
            self._noting = True
            self.spawn(self._note(wanted, self.generation), "reserve")

    async def _note(self, heirs: dict[str, Heir | None], generation: int) -> None:
        try:
            await self._write_reservations(heirs, self._noted, generation)
        except SessionExpiredError:
            self.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
        self._noting = False

    async def _write_reservations(
        self, heirs: Mapping[str, Heir | None], mine: Mapping[str, str], generation: int
    ) -> None:
        """Names that changed meanwhile are read, and tried again; so are those of which nothing is known
        (any more: others were removed)."""
        unknown = [name for name in heirs if name not in self.book.views]
        if unknown:
            await self._refresh(unknown)
            if generation != self.generation:
                return
        known = {name: heir for name, heir in heirs.items() if name in self.book.views}
        operations, draft = self.book.reserve(known, mine)
        try:
            if operations:
                await self.world.store.transact([self.book.check_floor(draft), *operations])
        except (*Lost, StoreUnknownError):
            self._count("races_lost")
            if generation == self.generation:
                self.book.forget(known)
                self.queue.touch_reserved(known)
                await self._refresh(known)
            return
        if generation != self.generation:
            return
        self.book.confirm(draft, self.world.clock.now())
        self._remember_noted(draft)
        for name in draft.changed:
            if name in self.book.views:
                self._see(name, self.book.views[name])
        self._kick.set()

    def _remember_noted(self, draft: Draft) -> None:
        """Which reservations in the store are this instance's to take back."""
        for name, (_, holding) in draft.changed.items():
            if holding.reserved in self.queue.entries:
                self._noted[name] = holding.reserved
            else:
                self._noted.pop(name, None)

    def why(self, id: str) -> str:
        """One sentence on what a task in the queue waits for."""
        return self.why_blocked(id) or f"{id} is next"

    def why_blocked(self, id: str) -> str:
        """The same; nothing if no name keeps it from being granted."""
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
        before = self.queue.place_in_line(id) if reasons else 0
        return "; ".join([*reasons, f"{before} wait before it"] if before else reasons)

    def _call(self, id: str) -> str:
        """A holder by its tenant's name, where that is known here."""
        return f"{self.mine[id].task.tenant} ({id})" if id in self.mine else id
