"""Counted names, carried to the store and back: set up, gathered where they are wanted, given back.

An instance whose tasks wait for units says so (a *want*, ephemeral), looks where lots are, and takes what
`lots.plan_gathering` lets it take. Nobody is asked: the others learn that a lot is gone when they come to
use it. Whoever lacks units for long, or has a task that aged, says that too, and the others let it go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bursar.claims.instance_book import UNRECORDED, InstanceBook
from bursar.claims.layout import new_id
from bursar.claims.limits import RETRY_NS, Lost
from bursar.claims.lots import (
    LOTS_KEPT,
    LOTS_MOVED,
    NOBODY,
    Count,
    Lot,
    Purse,
    Want,
    digest_owner,
    plan_gathering,
    read_count,
    read_lot,
    read_want,
)
from bursar.claims.membership import Membership
from bursar.claims.model import Task
from bursar.claims.places import Entry
from bursar.claims.reader import Reader
from bursar.errors import FormatError, NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import MILLISECOND_NS, SECOND_NS, Create, Delete, Operation

PAUSE_NS = 5 * MILLISECOND_NS
"""Whoever waits for units looks where they are at most so often."""

LATE_NS = SECOND_NS
"""An instance that lacks units, and was granted none for so long, comes before those that asked later."""

UPDATE_NS = 50 * MILLISECOND_NS
RETURN_NS = SECOND_NS
"""A want is brought up to date so often; lots that nobody here waits for go back after so long."""


class Counting:
    """Invariants: while a task here waits for nothing but units, its want is in the store or on its way, and
    the lots are looked at whenever they change."""

    def __init__(
        self, member: Membership, book: InstanceBook, reader: Reader, counted: Mapping[str, int]
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._lots = book.plans.lots
        self._reader = reader
        self._counts: dict[str, tuple[Count, int]] = {}
        self._following: dict[str, None] = {}
        self._stepping: dict[str, bool] = {}
        self._hungry: dict[str, tuple[int, int]] = {}
        self._told: dict[str, tuple[Want, int]] = {}
        self._idle_since: dict[str, int] = {}
        self._moved = min(LOTS_MOVED, self._store.operations_max - 4)
        self._book.capacities = dict(counted)

    def reconfigure(self, counted: Mapping[str, int]) -> None:
        changed = dict(counted) != self._book.capacities
        added = [name for name in counted if name not in self._book.capacities]
        self._book.capacities = dict(counted)
        if changed and self._member.has_session:
            self._begin_all(added)

    def forget(self) -> None:
        for kept in (self._counts, self._following, self._stepping, self._hungry, self._told):
            kept.clear()
        self._idle_since.clear()

    async def open(self) -> None:
        """Whoever asks first is to find what there is."""
        generation = self._member.generation
        for name in self._book.capacities:
            await self._open(name, generation, watch=False)

    def begin(self) -> None:
        """From the beginning of a session on."""
        self._lots.owner = digest_owner(self._member.node)
        self._begin_all(list(self._book.capacities))

    def _begin_all(self, watched: Sequence[str]) -> None:
        for name in self._book.capacities:
            self._member.spawn(self._open(name, self._member.generation, watch=name in watched), "counts")

    async def _open(self, name: str, generation: int, *, watch: bool) -> None:
        member, layout = self._member, self._member.layout
        while generation == member.generation and not member.is_stopping:
            try:
                await self._set_up(name)
                break
            except SessionExpiredError:
                member.expire(generation)
                return
            except (StoreUnknownError, FormatError, *Lost) as error:
                member.problem = str(error)
                await self._clock.sleep(RETRY_NS)
        if watch and generation == member.generation:
            for path in (layout.wants(name), layout.count(name)):
                hear = partial(self._hear, name, generation)
                member.spawn(member.watch(path, hear), "watch")

    async def _set_up(self, name: str) -> None:
        """As many as the policy says, whatever there were."""
        layout, capacity = self._member.layout, self._book.capacities[name]
        try:
            found, version = await self._read_count(name)
        except NodeMissingError:
            await self._store.ensure(f"{layout.root}/counts")
            await self._store.transact(self._lots.set_up(name, capacity))
            found, version = await self._read_count(name)
        if found.capacity != capacity:
            await self._store.transact(self._lots.resize(name, found, version, capacity))
        self._lots.doubted[name] = None
        self._book.changed.set()

    async def _read_count(self, name: str) -> tuple[Count, int]:
        path = self._member.layout.count(name)
        data, stat = await self._reader.repeat(lambda: self._store.get(path))
        return read_count(path, data), stat.version

    # What others want

    def _hear(self, name: str, generation: int) -> None:
        self._member.spawn(self._listen(name, generation), "counts")

    async def _listen(self, name: str, generation: int) -> None:
        try:
            wants = await self._list_wants(name)
            count = await self._read_count(name)
        except SessionExpiredError:
            self._member.expire(generation)
            return
        except StoreUnknownError as error:
            self._member.problem = str(error)
            await self._clock.sleep(RETRY_NS)
            if generation == self._member.generation and not self._member.is_stopping:
                self._hear(name, generation)
            return
        except (NodeMissingError, FormatError) as error:
            self._member.problem = str(error)
            return
        if generation == self._member.generation:
            self._counts[name] = count
            self._let_go_first(name, wants)
            if count[0].owed:
                self._member.spawn(self._collect(name, count[0].owed, generation), "counts")

    async def _collect(self, name: str, owed: int, generation: int) -> None:
        """What lies at nobody goes first when less is to be there."""
        try:
            lots = [lot for lot in await self._list_lots(name) if lot.owner == NOBODY]
            if lots and generation == self._member.generation:
                mine = Want(owed, 0, True, self._lots.owner)
                await self._take(name, lots, {}, mine, generation)
        except SessionExpiredError:
            self._member.expire(generation)
        except (NodeMissingError, StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)

    def _let_go_first(self, name: str, wants: Mapping[str, Want]) -> None:
        """Those of others who are late; and before them what a cut capacity has still to take back."""
        others = [want for want in wants.values() if want.late and want.owner != self._lots.owner]
        waiters = [(want.since, want.owner, want.units) for want in others if want.units]
        owed = self._counts[name][0].owed if name in self._counts else 0
        if owed:
            waiters.append((-1, NOBODY, owed))
        self._book.queue.defer_to(name, sorted(waiters))
        self._book.changed.set()

    async def _list(self, path: str) -> list[str]:
        """What is below a node; nothing while it is not set up."""
        try:
            return await self._reader.repeat(lambda: self._store.children(path))
        except NodeMissingError:
            return []

    async def _list_wants(self, name: str) -> dict[str, Want]:
        path = self._member.layout.wants(name)
        nodes = await self._list(path)
        wants = [read_want(path, node) for node in nodes]
        return {want.owner: want for want in sorted(wants, key=lambda want: want.rank, reverse=True)}

    async def _list_lots(self, name: str) -> list[Lot]:
        """All of them; what this instance has is known then."""
        path, since = self._member.layout.lots(name), self._lots.happened
        generation = self._member.generation
        nodes = await self._list(path)
        lots = [read_lot(path, node) for node in nodes]
        if generation == self._member.generation:
            self._lots.see(name, lots, since)
            self._book.supply([name])
        return lots

    # What is wanted here

    def note(self) -> None:
        """Look for units, if somebody waits for nothing else."""
        if not self._book.capacities:
            return
        for name in self._book.queue.find_short():
            if name in self._book.capacities and name not in self._following:
                self._following[name] = None
                self._hungry[name] = self._clock.now(), self._lots.paid.get(name, 0)
                self._member.spawn(self._follow(name, self._member.generation), "gather")
        for name in list(self._lots.doubted):
            if name not in self._following:
                del self._lots.doubted[name]
                self._member.spawn(self._step(name, self._member.generation), "gather")

    def _is_short(self, name: str, generation: int) -> bool:
        return generation == self._member.generation and name in self._book.queue.find_short()

    async def _follow(self, name: str, generation: int) -> None:
        """Gather units for as long as somebody waits for them."""
        member = self._member
        try:
            watch = await self._reader.repeat(lambda: self._store.watch(member.layout.lots(name)))
            while self._is_short(name, generation):
                await self._step(name, generation)
                if self._is_short(name, generation):
                    await watch.changed()
                    await self._clock.sleep(PAUSE_NS)
            watch.close()
        except SessionExpiredError:
            member.expire(generation)
        except StoreUnknownError as error:
            member.problem = str(error)
            await self._clock.sleep(RETRY_NS)
        if generation == member.generation:
            del self._following[name]
            self._book.changed.set()  # whoever is short by now begins anew
            member.spawn(self._step(name, generation), "gather")

    async def _step(self, name: str, generation: int) -> None:
        """Say what is wanted, see what there is, take it. One at a time; who comes meanwhile is not lost."""
        if generation != self._member.generation:
            return
        if name in self._stepping:
            self._stepping[name] = True
            return
        self._stepping[name] = again = True
        while again and generation == self._member.generation:
            self._stepping[name] = False
            try:
                await self._gather(name, generation)
            except SessionExpiredError:
                self._member.expire(generation)
            except (NodeMissingError, StoreUnknownError, FormatError) as error:
                self._member.problem = str(error)
                self._lots.doubted[name] = None
                await self._clock.sleep(RETRY_NS)
                self._look_again(name, generation)
            again = generation == self._member.generation and self._stepping[name]
        if generation == self._member.generation:
            self._stepping.pop(name, None)

    def _look_again(self, name: str, generation: int) -> None:
        """When this step is over. One of an earlier session says nothing about those of this one."""
        if generation == self._member.generation:
            self._stepping[name] = True

    async def _gather(self, name: str, generation: int) -> None:
        lots, wants = await self._list_lots(name), await self._list_wants(name)
        if generation != self._member.generation:
            return
        self._let_go_first(name, wants)
        first = self._book.queue.find_short().get(name)
        mine = self._want(name, *first) if first is not None else None
        if first is not None and self._lots.is_in_pieces(name, dict(first[0].wanted)[name]):
            pieces = sorted(self._lots.idle(name), reverse=True)[: self._moved]
            await self._move(name, *self._put(name, pieces, self._lots.owner), generation)
            self._look_again(name, generation)
            return
        await self._tell(name, wants.get(self._lots.owner), mine, generation)
        if mine is None or not await self._take(name, lots, wants, mine, generation):
            return
        self._look_again(name, generation)  # there may be more

    def _want(self, name: str, entry: Entry, units: int) -> Want:
        now_ns, paid = self._clock.now(), self._lots.paid.get(name, 0)
        since_ns, before = self._hungry.get(name, (now_ns, paid))
        if paid != before:
            since_ns = now_ns
        self._hungry[name] = since_ns, paid
        late = entry.aged or now_ns - since_ns >= LATE_NS
        if late:
            self._book.queue.put_first(entry.id)
        return Want(units, entry.submitted, late, self._lots.owner)

    async def _tell(self, name: str, before: Want | None, mine: Want | None, generation: int) -> None:
        """Let the others know; not of every change, while it says the same of who comes first."""
        now_ns = self._clock.now()
        told, told_ns = self._told.get(name, (None, 0))
        fresh = before is not None and told == before and now_ns < told_ns + UPDATE_NS
        if before == mine or (mine is not None and before is not None and fresh and before.late == mine.late):
            return
        path = self._member.layout.wants(name)
        operations: list[Operation] = [Delete(f"{path}/{before.node}")] if before is not None else []
        if mine is not None:
            operations.append(Create(f"{path}/{mine.node}", ephemeral=True))
        try:
            await self._store.transact(operations)
        except Lost:
            self._look_again(name, generation)  # one of an earlier session, or of a lost reply
            return
        if mine is not None and generation == self._member.generation:
            self._told[name] = mine, now_ns

    async def _take(
        self, name: str, lots: Sequence[Lot], wants: Mapping[str, Want], mine: Want, generation: int
    ) -> bool:
        """Whether any came, or it is to be tried again."""
        peers = await self._reader.repeat(lambda: self._store.children(self._member.layout.instances))
        if generation != self._member.generation:
            return False
        ahead = self._book.queue.count_wanted(name, self._book.capacities.get(name, 0))
        ahead = max(0, ahead - self._lots.count_free(name))
        living = set(map(digest_owner, peers))
        wanted = plan_gathering(lots, wants, mine, ahead, living, self._moved)
        if not wanted:
            return False
        operations, purse = self._lots.gather(name, wanted, new_id("g", self._member.world.random))
        return await self._move(name, operations, purse, generation)

    async def _move(self, name: str, operations: list[Operation], purse: Purse, generation: int) -> bool:
        try:
            await self._store.transact(operations)
        except (*Lost, StoreUnknownError):
            if generation == self._member.generation:
                self._book.count("races_lost")
                self._lots.doubt(purse)
                self._book.changed.set()
            return True
        if generation == self._member.generation:
            self._lots.confirm(purse)
            self._book.supply([name])
            self._book.changed.set()
            self._book.count("moved")
        return True

    async def fetch(self, task: Task) -> None:
        """For somebody who does not wait: what lies about, if it is enough."""
        generation = self._member.generation
        for name, units in task.counts:
            lacking = units - self._lots.count_free(name)
            if lacking <= 0 or name not in self._book.capacities:
                continue
            lots, wants = await self._list_lots(name), await self._list_wants(name)
            lacking = units - self._lots.count_free(name)
            if generation == self._member.generation and lacking > 0:
                mine = Want(lacking, 2 * UNRECORDED, False, self._lots.owner)
                await self._take(name, lots, wants, mine, generation)

    # Now and then

    def tend(self) -> None:
        for name in self._following:
            self._member.spawn(self._step(name, self._member.generation), "gather")
        for name in self._book.capacities:
            self._tend_lots(name, self._clock.now())

    def _tend_lots(self, name: str, now_ns: int) -> None:
        """Lots that nobody here waits for go back, small ones are put together, and what is owed goes."""
        lots = sorted(self._lots.idle(name))[: self._moved]
        tank = self._book.queue.tanks.get(name)
        is_waited_for = tank is not None and any(step.marks for step in tank.steps.values())
        if is_waited_for or not lots:
            self._idle_since.pop(name, None)
        idle_since = self._idle_since.setdefault(name, now_ns) if lots and not is_waited_for else now_ns
        if not lots:
            return
        if name in self._counts and self._counts[name][0].owed:
            count, version = self._counts.pop(name)
            id = new_id("o", self._member.world.random)
            self._spawn_move(name, *self._lots.pay_owed(name, lots, count, version, id))
        elif now_ns - idle_since >= RETURN_NS:
            self._spawn_move(name, *self._put(name, lots, NOBODY))
        elif len(self._lots.idle(name)) > LOTS_KEPT:
            self._spawn_move(name, *self._put(name, lots, self._lots.owner))

    def _put(self, name: str, lots: Sequence[Lot], owner: str) -> tuple[list[Operation], Purse]:
        """As one lot. Until that is done, nobody is granted any of them."""
        moved = self._lots.put(name, lots, new_id("p", self._member.world.random), owner)
        self._book.supply([name])
        return moved

    def _spawn_move(self, name: str, operations: list[Operation], purse: Purse) -> None:
        self._book.supply([name])
        generation = self._member.generation
        self._member.spawn(self._move_beside(name, operations, purse, generation), "counts")

    async def _move_beside(
        self, name: str, operations: list[Operation], purse: Purse, generation: int
    ) -> None:
        try:
            await self._move(name, operations, purse, generation)
            await self._listen(name, generation)
        except SessionExpiredError:
            self._member.expire(generation)
