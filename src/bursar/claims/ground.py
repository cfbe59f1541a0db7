"""What an instance knows, and how it joins, leaves and loses its session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from bursar.claims.acquisitions import Acquisitions
from bursar.claims.ages import Ages
from bursar.claims.book import ClaimBook, Idle, Plan
from bursar.claims.desk import Desk
from bursar.claims.fences import make_epoch
from bursar.claims.layout import Layout, instance_node
from bursar.claims.model import Era, Task, decode_era, encode
from bursar.claims.queue import Order, Queue, WeightOf, conflict_order
from bursar.claims.tracker import Tracker
from bursar.errors import (
    BursarError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    SessionExpiredError,
    StoreUnknownError,
    VersionError,
)
from bursar.fleet.identity import read_identity
from bursar.world import MILLISECOND_NS, SECOND_NS, Create, Watch, World

if TYPE_CHECKING:
    from bursar.claims.courier import Instance

DeadHolder = Literal["auto", "keep", "requeue", "fail"]

BATCH_OPERATIONS = 256
IN_FLIGHT_MAX = 8
SMALL_IN_FLIGHT_MAX = 2
"""A transaction with room for more waits while so many are under way: it is fuller when it goes."""

FRESH_NS = 50 * MILLISECOND_NS
"""A view younger than this is believed without reading again while other instances run."""

LOOK_NS = 5 * SECOND_NS
LOOK_PARTS = 4
FEW_TASKS = 1_000
"""Watches tell when to look for tasks that nobody looks after; this is for what they do not tell. Where a
shard has more than a few tasks, a fourth of the shards is listed in turn."""

ASK_NS = 400 * MILLISECOND_NS
"""An instance with nothing to do asks, while others have tasks, at most so often."""

HELPINGS = 4
"""Tasks that go from one instance to another at a time, for each that it can do at a time."""

LOOK_AGAIN_NS = SECOND_NS
"""What falls to another instance, and is not taken by it for so long, anybody takes."""

STOP_NS = 900 * MILLISECOND_NS
TEND_NS = 200 * MILLISECOND_NS
POLL_NS = 500 * MILLISECOND_NS
RETRY_NS = 50 * MILLISECOND_NS
KEPT_NS = 3600 * SECOND_NS
NAMES_SWEEP_NS = 300 * SECOND_NS
"""A name that nobody uses, and that did not change from one sweep to the next, is removed."""

IDLE_MAX = 20_000
TAKE_AT_ONCE = 100
END_TRIES = 50
END_AGAIN_NS = 500 * MILLISECOND_NS
"""What could not be written after so many tries is tried again after so long, for as long as it takes."""

VIEWS_MAX = 200_000

RESERVED_AT_ONCE = 64
"""Names whose reservations are written in one transaction."""

Lost = (VersionError, NodeExistsError, NodeMissingError, NotEmptyError)
"""A race that another one won: nothing changed."""


UNRECORDED = 1 << 62
"""The place in line of a claim that is not in the store yet: behind everybody who is."""


@dataclass(slots=True)
class Mine:
    """A task that this instance looks after. version None: not in the store yet.

    created     the revision of its record: its place in line, the same whoever looks after it
    since_ns    when its wait began, by this instance's clock
    granting    a transaction that grants it is under way
    recording   one that writes it down, so that it keeps its place
    patient     somebody waits, so that a name which another let go of a moment ago is no loss"""

    task: Task
    version: int | None
    created: int = UNRECORDED
    since_ns: int = 0
    granting: bool = False
    recording: bool = False
    patient: bool = True


@dataclass(slots=True)
class End:
    """The end of a task on its way to the store."""

    plan: Plan
    sent: asyncio.Future[None]


class Ground:
    """What an instance knows, and its membership: one generation for each session."""

    def __init__(
        self,
        world: World,
        resource: str,
        *,
        dead_holder: DeadHolder = "auto",
        aging_ns: int = 600 * SECOND_NS,
        attempts_max: int = 5,
        weight_of: WeightOf | None = None,
        tracker: Tracker | None = None,
        order: Order = conflict_order,
        running_max: int | None = None,
        book: type[ClaimBook] = ClaimBook,
        layout: type[Layout] = Layout,
        names_sweep_ns: int = NAMES_SWEEP_NS,
    ) -> None:
        self.world = world
        self.resource = resource
        self.me = f"{world.name}.{world.incarnation}"
        self.layout = layout(resource)
        self.book = book(self.layout, self.me)
        self.desk = Desk(world, self.book)
        self.epoch = 0
        self.mine: dict[str, Mine] = {}
        self.counts: dict[str, int] = {}
        self.problem: str | None = None
        self._dead_holder = dead_holder
        self._aging_ns = aging_ns
        self._attempts_max = attempts_max
        self._make_queue = partial(Queue, order, *([weight_of] if weight_of is not None else []))
        self._tracker = tracker
        self._running_max = running_max
        self._running: dict[str, None] = {}
        self.queue = self._make_queue()
        # The layers above complete the instance before anybody claims.
        self.claims = Acquisitions(cast("Instance", self))
        self._session = 0
        self._left = 0
        self.generation = 0
        self._others = 0
        self._instances: list[str] = []
        self._node = instance_node(self.me, works=tracker is not None)
        self._kick = asyncio.Event()
        self._look = asyncio.Event()
        self._shards: dict[str, None] = {}
        self._offers: dict[str, None] = {}
        self._foreign: dict[str, bool] = {}
        self._largest_shard = 0
        self._ages = Ages()
        self._unrecorded: dict[str, None] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._noted: dict[str, str] = {}
        self._noting = False
        self._in_flight = 0
        self._ends: list[End] = []
        self._ends_in_flight = 0
        self._names_sweep_ns = names_sweep_ns
        self._idle: dict[str, Idle] = {}
        self._sweeps_begun = 0
        self._is_sweeping = False
        self._shards_swept = 0
        self._over_since: dict[str, dict[str, int]] = {}
        self._unsure: dict[str, None] = {}
        self._passed: dict[str, int] = {}
        self._passed_offers: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._asked = False
        self._written: dict[str, None] = {}
        self._deferred: list[Mine] = []
        self._followed: dict[str, str] = {}
        self._tracked: dict[str, None] = {}
        self._ended: dict[str, int] = {}
        self._kept: dict[str, Task] = {}
        self._draining = False
        self.is_stopping = False

    async def attach(self) -> None:
        """Be able to read and change what the store has, without looking after any task."""
        await self._set_up()
        self._session = self.world.store.session

    async def stop(self) -> None:
        """Let go of what waits and of every mark of it, for at most a second; what runs or is held stays
        as it is, for others to find."""
        self.is_stopping = True
        left = asyncio.Event()
        self.spawn(self._leave(left), "stop")
        timer = self.world.spawn(self._ring(left, STOP_NS), f"claims.{self.resource}.stop")
        await left.wait()
        timer.cancel()

    async def _ring(self, left: asyncio.Event, after_ns: int) -> None:
        await self.world.clock.sleep(after_ns)
        left.set()

    async def _leave(self, left: asyncio.Event) -> None:
        await self.claims.stop()
        waiting = [id for id in self.queue.entries if self._is_marked(self.mine[id])]
        self.generation += 1
        self._forget_everything()
        try:
            # The marks first: others look when the instance goes, and must find what it had.
            await self._let_go(waiting)
            for id in self.claims.holdings.ids:
                await self._unmark(id)
            await self.world.store.delete(self.layout.instance(self._node))
        except BursarError as error:
            self.problem = str(error)  # they go with the session
        left.set()

    def _is_marked(self, mine: Mine) -> bool:
        """A task, and nothing is being decided of it: another may look after it from now on."""
        return not mine.task.is_claim and mine.version is not None and not mine.granting

    async def _let_go(self, ids: list[str]) -> None:
        """Of tasks that wait: whoever looks next takes them."""
        for first in range(0, len(ids), TAKE_AT_ONCE):
            some = ids[first : first + TAKE_AT_ONCE]
            try:
                await self.world.store.transact([op for id in some for op in self.book.leave(id)])
            except (NodeMissingError, NodeExistsError):  # one of them is over, or was offered before
                for id in some:
                    await self._unmark(id)

    async def _unmark(self, id: str) -> None:
        """Unless it moved to another process."""
        mark = await self.world.store.exists(self.layout.busy(id))
        if mark is not None and mark.owner == self.world.store.session:
            await self.world.store.delete(self.layout.busy(id))

    @property
    def has_session(self) -> bool:
        return self._session != 0

    @property
    def is_trusted(self) -> bool:
        """Whether the session cannot have ended, however slow the store is: what was seen, holds."""
        return self.has_session and self.world.store.trusted_until() > self.world.clock.now()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.world.spawn(work, f"claims.{self.resource}.{name}")

    def reconfigure(self, dead_holder: DeadHolder, aging_ns: int, attempts_max: int) -> None:
        """What can change while it runs."""
        self._dead_holder, self._aging_ns, self._attempts_max = dead_holder, aging_ns, attempts_max

    def find_tenants(self) -> set[str]:
        """Those that wait or hold something here."""
        return {each.task.tenant for each in self.mine.values()} | self.claims.find_tenants()

    @property
    def instances(self) -> int:
        """How many share the work."""
        return self._others + 1

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def _join(self) -> None:
        """Be one of the instances, in this session. Returns when it is so."""
        while True:
            try:
                await self._set_up()
                await self._enrol()
                self._session = self.world.store.session
                self._look_everywhere()
                generation = self.generation
                self.spawn(self._watch(self.layout.instances, generation, self._look_everywhere), "watch")
                for shard in self.layout.task_shards if self._tracker is not None else ():
                    hear = partial(self._hear_of_offers, shard)
                    self.spawn(self._watch(self.layout.offers(shard), generation, hear), "watch")
                if self._running_max is not None:
                    self.spawn(self._watch(self.layout.asking, generation, self._hear), "watch")
                return
            except SessionExpiredError:
                await self._renew(self.world.store.session)
            except StoreUnknownError:
                await self.world.clock.sleep(RETRY_NS)

    async def _renew(self, session: int) -> None:
        """Open a new session, unless another user of the same store did so already."""
        while self.world.store.session == session:
            try:
                await self.world.store.renew()
            except StoreUnknownError:
                await self.world.clock.sleep(RETRY_NS)

    async def _set_up(self) -> None:
        store, root = self.world.store, self.layout.root
        try:
            data, stat = await store.get(root)
        except NodeMissingError:
            await store.ensure("/claims")
            era = await self._make_era(-1)
            create = [Create(root, encode(era)), *(Create(path) for path in self.layout.folders())]
            try:
                await store.transact(create)
            except NodeExistsError:
                await store.sync()  # another instance was faster, which is as good
            data, stat = await store.get(root)
        era = decode_era(root, data)
        if (name := await self._name_store()) and era.store != name:
            era = await self._begin_era(era, stat.version)
        self.epoch = era.epoch

    async def _name_store(self) -> str:
        """Which store this is, as its fleet knows it; empty where none does."""
        found = await read_identity(self.world.store)
        return "" if found is None else f"{found.uuid}/{found.epoch}"

    async def _make_era(self, above: int) -> Era:
        """Its millisecond is over when it is first used, so that nobody else can have the same."""
        era = Era(make_epoch(self.world.clock.wall(), above), await self._name_store())
        await self.world.clock.sleep(MILLISECOND_NS)
        return era

    async def _begin_era(self, era: Era, version: int) -> Era:
        """A store that was adopted grants newer fences than any before, here or in the one that was lost.
        One that had no name yet is the same, and those who work with it go on with its epoch."""
        store, root = self.world.store, self.layout.root
        begun = await self._make_era(era.epoch) if era.store else Era(era.epoch, await self._name_store())
        try:
            await store.set(root, encode(begun), version)
        except VersionError:
            await store.sync()
            data, _ = await store.get(root)
            return decode_era(root, data)
        return begun

    async def _enrol(self) -> None:
        store = self.world.store
        path = self.layout.instance(self._node)
        try:
            await store.create(path, ephemeral=True)
        except NodeExistsError:
            stat = await store.exists(path)
            if stat is None or stat.owner != store.session:
                # A session of this very instance that is not over yet at the store.
                await self.world.clock.sleep(RETRY_NS)
                raise StoreUnknownError(f"{path} is another session's") from None

    async def _open_watch(self, path: str) -> Watch:
        return await self.desk.repeat(lambda: self.world.store.watch(path))

    def _is_full(self) -> bool:
        """Whether as many tasks run as this instance is to have done at a time."""
        return self._running_max is not None and len(self._running) >= self._running_max

    def _is_idle(self) -> bool:
        """Whether it has room for tasks, and none."""
        works = self._tracker is not None and self._running_max is not None and not self._draining
        return works and not self.queue.entries and not self._is_full()

    def _look_everywhere(self) -> None:
        """For tasks that nobody looks after."""
        self._shards.update(dict.fromkeys(self.layout.task_shards))
        self._look.set()

    def _hear_of_offers(self, shard: str) -> None:
        self._offers[shard] = None
        self._look.set()

    def _hear(self) -> None:
        """Another one asks for tasks: whoever has more than it can begin looks who it is."""
        if self._is_full() and self.queue.entries:
            self._asked = True
            self._look.set()

    async def _watch(self, path: str, generation: int, act: Callable[[], None]) -> None:
        """Act whenever the node changes, for as long as this session lasts."""
        try:
            watch = await self._open_watch(path)
            while generation == self.generation and not self.is_stopping:
                act()
                await watch.changed()
            watch.close()
        except SessionExpiredError:
            self.expire(generation)
        except StoreUnknownError:
            await self.world.clock.sleep(RETRY_NS)
            if generation == self.generation:
                self.spawn(self._watch(path, generation, act), "watch")

    def expire(self, generation: int) -> None:
        """The session is over: nothing that this instance believed to look after is its own."""
        if generation != self.generation:
            return
        self.generation += 1
        self.world.trace("claim.session_lost", instance=self.me)
        self.claims.lose_session()
        self._forget_everything()
        self._left, self._session = self._session, 0
        self._look_everywhere()

    def _forget_everything(self) -> None:
        self.mine.clear()
        self._running.clear()
        self.queue = self._make_queue()
        self.book.forget(list(self.book.views))
        self._unrecorded.clear()
        self._deadlines.clear()
        self._noted.clear()
        self._written.clear()
        self._deferred.clear()
        self._in_flight = 0
        self._followed.clear()
        self._tracked.clear()
        self._kept.clear()

    async def wait_for_session(self) -> None:
        while self._session == 0 and not self.is_stopping:
            await self.world.clock.sleep(RETRY_NS)
