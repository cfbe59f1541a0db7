"""An instance: carries the book's transactions to the store, looks after tasks, wakes who waits.

Several instances run on one store and share the work: each looks after the tasks that it marked
(`busy`, ephemeral), and only those. What an instance knows dies with its session, and with nothing
lost: whoever looks next finds every task in the store and goes on from its state (table 4.1):

    PENDING     it waits again
    RUNNING     a task: the tracker is asked, and its end awaited; one that the tracker lost, and a
                claim whose process is gone, is treated as the policy's `dead_holder` says
    DONE        its names are given back

Grants are made in the order of the queue, many in one transaction and many transactions in flight.
A transaction that the store refuses changed nothing: its names are read again, and its tasks try
again. Nothing else is ever repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bursar.claims.book import ClaimBook, Draft, Plan, View, names_of
from bursar.claims.desk import Desk
from bursar.claims.fences import make_epoch, make_fence
from bursar.claims.layout import TASK_SHARDS, Layout, is_claim_id, node_name, share_of
from bursar.claims.model import Outcome, State, Task
from bursar.claims.queue import Order, Queue, conflict_order
from bursar.claims.requirements import Mode
from bursar.claims.tracker import Dispatch, Progress, Report, Tracker
from bursar.errors import (
    BursarError,
    FormatError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    TooLargeError,
    Unknown,
    VersionError,
)
from bursar.world import MILLISECOND_NS, SECOND_NS, Check, Create, Delete, Operation, Watch, World

DeadHolder = Literal["keep", "requeue", "fail"]

BATCH_OPERATIONS = 256
IN_FLIGHT_MAX = 8
FRESH_NS = 50 * MILLISECOND_NS
"""A view younger than this is believed without reading again while other instances run."""

LOOK_NS = 5 * SECOND_NS
"""Watches tell when to look for tasks that nobody looks after; this is for what they do not tell."""

LOOK_AGAIN_NS = 200 * MILLISECOND_NS
TEND_NS = 200 * MILLISECOND_NS
POLL_NS = 500 * MILLISECOND_NS
RETRY_NS = 50 * MILLISECOND_NS
KEPT_NS = 3600 * SECOND_NS
TAKE_AT_ONCE = 100
END_TRIES = 50
VIEWS_MAX = 200_000

Reservation = Callable[[], tuple[list[Operation], Draft]]

Lost = (VersionError, NodeExistsError, NodeMissingError, NotEmptyError)
"""A race that another one won: nothing changed."""


class SessionLost(Unknown):
    """The store's session ended while a claim was waiting or being granted."""


@dataclass(slots=True)
class Mine:
    """A task that this instance looks after. version None: not in the store yet."""

    task: Task
    version: int | None
    granting: bool = False
    patient: bool = True


class Instance:
    """See above. `start` it, then `submit`, `claim` and `release`."""

    def __init__(
        self,
        world: World,
        resource: str,
        *,
        dead_holder: DeadHolder = "keep",
        aging_ns: int = 600 * SECOND_NS,
        weights: Mapping[str, int] | None = None,
        tracker: Tracker | None = None,
        order: Order = conflict_order,
        running_max: int | None = None,
        book: type[ClaimBook] = ClaimBook,
    ) -> None:
        self.world = world
        self.resource = resource
        self.me = f"{world.name}.{world.incarnation}"
        self.layout = Layout(resource)
        self.book = book(self.layout, self.me)
        self.desk = Desk(world, self.book)
        self.epoch = 0
        self.mine: dict[str, Mine] = {}
        self.counts: dict[str, int] = {}
        self.deposed: Callable[[str], None] = lambda id: None
        self.problem: str | None = None
        self._dead_holder = dead_holder
        self._aging_ns = aging_ns
        self._weights = dict(weights or {})
        self._tracker = tracker
        self._running_max = running_max
        self._running: dict[str, None] = {}
        self._order = order
        self.queue = Queue(order, self._weights)
        self._waiters: dict[str, asyncio.Future[Task]] = {}
        self._held: dict[str, Task] = {}
        self._session = 0
        self._left = 0
        self._generation = 0
        self._others = 0
        self._instances: list[str] = []
        self._kick = asyncio.Event()
        self._look = asyncio.Event()
        self._in_flight = 0
        self._unsure: dict[str, None] = {}
        self._passed: dict[str, None] = {}
        self._written: dict[str, None] = {}
        self._deferred: list[Mine] = []
        self._followed: dict[str, None] = {}
        self._tracked: dict[str, None] = {}
        self._stopping = False

    # Life

    async def start(self) -> None:
        """Set the store up where that is needed, and begin to grant."""
        await self._join()
        self._spawn(self._pump(), "pump")
        self._spawn(self._look_after(), "look")
        self._spawn(self._tend(), "tend")

    async def attach(self) -> None:
        """Be able to read and change what the store has, without looking after any task."""
        await self._set_up()
        self._session = self.world.store.session

    async def stop(self) -> None:
        """Let go of what waits and of every mark; what runs stays as it is, for others to find."""
        self._stopping = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(Unknown("bursar is stopping; the claim was not granted here"))
        self._forget_everything()
        for path in [self.layout.instance(self.me), *(self.layout.busy(id) for id in list(self._held))]:
            try:
                await self.world.store.delete(path)
            except BursarError:
                continue  # it goes with the session

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.world.spawn(work, f"claims.{self.resource}.{name}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def _join(self) -> None:
        """Be one of the instances, in this session. Returns when it is so."""
        while True:
            try:
                await self._set_up()
                await self._enrol()
                self._session = self.world.store.session
                self._look.set()
                generation = self._generation
                for path in (self.layout.instances, self.layout.bell):
                    self._spawn(self._watch(path, generation), "watch")
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
        store = self.world.store
        root = self.layout.root
        try:
            data, _ = await store.get(root)
        except NodeMissingError:
            await store.ensure("/claims")
            epoch = make_epoch(self.world.clock.wall())
            create = [Create(root, b"%d" % epoch), *(Create(path) for path in self.layout.folders())]
            try:
                await store.transact(create)
            except NodeExistsError:
                await store.sync()  # another instance was faster, which is as good
            data, _ = await store.get(root)
        if not data.isdigit():
            raise FormatError(f"{root} holds no epoch: {data[:40]!r}; another program's data?")
        self.epoch = int(data)

    async def _enrol(self) -> None:
        store = self.world.store
        path = self.layout.instance(self.me)
        try:
            await store.create(path, ephemeral=True)
        except NodeExistsError:
            stat = await store.exists(path)
            if stat is None or stat.owner != store.session:
                # A session of this very instance that is not over yet at the store.
                await self.world.clock.sleep(RETRY_NS)
                raise StoreUnknownError(f"{path} is another session's") from None

    async def _watch(self, path: str, generation: int) -> None:
        """Look for work whenever the node changes, for as long as this session lasts."""
        try:
            watch = await self._open_watch(path)
            while generation == self._generation and not self._stopping:
                self._look.set()
                await watch.changed()
            watch.close()
        except SessionExpiredError:
            self._expired(generation)
        except StoreUnknownError:
            await self.world.clock.sleep(RETRY_NS)
            if generation == self._generation:
                self._spawn(self._watch(path, generation), "watch")

    def _expired(self, generation: int) -> None:
        """The session is over: nothing that this instance believed to look after is its own."""
        if generation != self._generation:
            return
        self._generation += 1
        self.world.trace("claim.session_lost", instance=self.me)
        self._forget_everything()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(SessionLost("the store's session was lost while waiting"))
        self._left, self._session = self._session, 0
        self._look.set()

    def _forget_everything(self) -> None:
        self.mine.clear()
        self._running.clear()
        self.queue = Queue(self._order, self._weights)
        self.book.views.clear()
        self._written.clear()
        self._deferred.clear()
        self._in_flight = 0
        self._followed.clear()
        self._tracked.clear()

    # Submitting

    async def submit(self, task: Task) -> Task:
        """Put a task in the queue, once: submitting it again finds the one that is there."""
        while True:
            await self._wait_for_session()
            generation = self._generation
            try:
                takes = self._tracker is not None
                await self.world.store.transact(self.book.submit(task, take=takes))
                if takes and generation == self._generation and task.id not in self.mine:
                    self._admit(Mine(task, 0))
                return task
            except NodeExistsError:
                known = await self._find_known(task.id, generation)
                if known is not None:
                    return known
            except StoreUnknownError:
                # The same id again: it exists now, or it does not.
                self._unsure[task.id] = None
                self._look.set()
            except SessionExpiredError:
                self._expired(generation)
                await self._wait_for_session()

    async def _find_known(self, id: str, generation: int) -> Task | None:
        try:
            await self.world.store.sync()
            return await self._find(id)
        except SessionExpiredError:
            self._expired(generation)
            await self._wait_for_session()
        except StoreUnknownError:
            await self.world.clock.sleep(RETRY_NS)
        return None

    async def _find(self, id: str) -> Task | None:
        found = await self.desk.read_task(id)
        if found is not None:
            return found[0]
        return await self.desk.read_released(id)

    async def _wait_for_session(self) -> None:
        while self._session == 0 and not self._stopping:
            await self.world.clock.sleep(RETRY_NS)

    # Claims: names held by the code that asks

    async def claim(self, task: Task, wait_ns: int) -> Task:
        """Grant or raise Refused or Unknown. The record returned carries the phases."""
        until_ns = self.world.clock.now() + wait_ns
        while True:
            await self._wait_for_session()
            try:
                return await self._claim_once(task, max(0, until_ns - self.world.clock.now()))
            except SessionLost:
                # A claim lives in a session. It begins anew in the next, once it is sure that the
                # store has granted nothing in the name of the old one.
                again = await self._withdraw(task.id, "expired")
                if not again or self.world.clock.now() >= until_ns:
                    raise

    async def _claim_once(self, task: Task, wait_ns: int) -> Task:
        waiter: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        self._waiters[task.id] = waiter
        timer = self.world.spawn(self._give_up_later(task.id, wait_ns), f"claims.{self.resource}.wait")
        try:
            self._admit(Mine(task, None, patient=wait_ns > 0))
            return await waiter
        except asyncio.CancelledError:
            self._spawn(self._withdraw(task.id, "cancelled"), "withdraw")
            raise
        finally:
            timer.cancel()
            self._waiters.pop(task.id, None)

    async def _give_up_later(self, id: str, wait_ns: int) -> None:
        if wait_ns > 0:
            await self.world.clock.sleep(wait_ns)
            await self._give_up(id)

    async def _give_up(self, id: str) -> None:
        """The wait is over: take the claim back, unless it was granted at the last moment."""
        why = self.why(id)
        withdrawn = await self._withdraw(id, "expired")
        waiter = self._waiters.get(id)
        if waiter is None or waiter.done():
            return
        if withdrawn:
            waiter.set_exception(Refused(why))
        else:
            waiter.set_exception(Unknown("the claim could not be taken back in time; it may be granted yet"))

    async def _withdraw(self, id: str, outcome: Outcome) -> bool:
        """True if it surely is not granted, and will not be."""
        mine = self.mine.get(id)
        if mine is None:
            return await self._withdraw_stored(id, outcome)
        while mine.granting:
            await self.world.clock.sleep(5 * MILLISECOND_NS)
        if self.mine.get(id) is not mine:
            return await self._withdraw_stored(id, outcome)
        if mine.task.state is not State.PENDING:
            if id not in self._held:
                await self.release(id, outcome)
                return True
            return False
        if mine.version is None:
            self._drop(id)
            return True
        return await self._withdraw_stored(id, outcome)

    async def _withdraw_stored(self, id: str, outcome: Outcome) -> bool:
        """Take back a record that nobody granted. Works whoever looks after it."""
        for _ in range(END_TRIES):
            generation = self._generation
            try:
                await self.world.store.sync()
                found = await self.desk.read_task(id)
                if found is None:
                    self._drop(id)
                    return True
                task, version = found
                if task.state is not State.PENDING:
                    return await self._let_go(task, outcome)
                plan = self.book.finish(task, version, outcome, ended=self.world.clock.wall())
                operations = [op for op in plan.operations if op != Delete(self.layout.busy(id))]
                await self.world.store.transact(operations)
                self._drop(id)
                await self._unmark(id)
                return True
            except (*Lost, StoreUnknownError):
                continue
            except SessionExpiredError:
                self._expired(generation)
                await self._wait_for_session()
        return False

    async def _let_go(self, task: Task, outcome: Outcome) -> bool:
        """A claim of this process that was granted unnoticed, and that no code holds."""
        if not task.is_claim or task.holder != self.me or task.id in self._held:
            return False
        await self.release(task.id, outcome)
        return True

    async def _unmark(self, id: str) -> None:
        try:
            await self.world.store.delete(self.layout.busy(id))
        except BursarError:
            return  # it is another's, or goes with the session

    def _drop(self, id: str) -> None:
        mine = self.mine.pop(id, None)
        if id in self.queue.entries:
            self.queue.leave(id)
        if mine is not None:
            self._kick.set()

    # Waiting

    def _admit(self, mine: Mine) -> None:
        """Let a task wait for its names."""
        self.mine[mine.task.id] = mine
        names = self._unknown_names(name for name, _ in mine.task.needs)
        if not mine.patient:
            # A refusal is an answer: it is not given for what another may have let go of since.
            names += [name for name, _ in mine.task.needs if name not in names and self._is_others(name)]
        if names:
            self._spawn(self._admit_later(mine, names), "admit")
        else:
            self._enter(mine)

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
        return any(id in self.mine for id in holders)

    def _is_others(self, name: str) -> bool:
        """Whether another instance's task holds or reserves it, as far as is known here."""
        place = self.queue.places.get(name)
        if place is None:
            return False
        holders = [place.owner, *place.sharers, place.reserved]
        return any(id and id not in self.mine for id in holders)

    async def _admit_later(self, mine: Mine, names: list[str]) -> None:
        generation = self._generation
        try:
            if not mine.patient:
                await self.desk.repeat(self.world.store.sync)
            await self._refresh(names)
        except SessionExpiredError:
            self._expired(generation)
            self._fail(mine.task.id, SessionLost("the store's session was lost; nothing was granted"))
            return
        except (StoreUnknownError, FormatError) as error:
            self._drop(mine.task.id)
            answer = Refused(str(error)) if isinstance(error, FormatError) else Unknown(str(error))
            self._fail(mine.task.id, answer)
            self.problem = str(error)
            return
        if generation == self._generation and self.mine.get(mine.task.id) is mine:
            self._enter(mine)

    def _fail(self, id: str, error: BursarError) -> None:
        waiter = self._waiters.get(id)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _enter(self, mine: Mine) -> None:
        task = mine.task
        self.queue.enter(
            task.id, task.requirements, tenant=task.tenant, priority=task.priority, submitted=task.submitted
        )
        self._kick.set()

    async def _refresh(self, names: Iterable[str]) -> None:
        """Read names, and let the queue see what others did to them."""
        if len(self.book.views) > VIEWS_MAX:
            self.book.forget([name for name in list(self.book.views) if name not in self.queue.places])
        generation = self._generation
        views = await self.desk.read_names(names)
        if generation != self._generation:
            return
        for name, view in views.items():
            self._see(name, view)
        self._kick.set()

    def _see(self, name: str, view: View) -> None:
        known = self.book.views.get(name)
        if known is not None and (
            view.number < known.number or (view.version or 0) < (known.version or 0)
        ):
            return  # a slow reader's: what is known already is younger
        self.book.views[name] = view
        holding = view.holding
        self.queue.see(name, holding.owner, view.sharers)
        place = self.queue.places.get(name)
        if place is not None and place.reserved and place.reserved not in self.mine:
            self.queue.unreserve(name, place.reserved)
        if holding.reserved and holding.reserved not in self.mine:
            exclusive = holding.reserved_mode == Mode.EXCLUSIVE
            self.queue.reserve(name, holding.reserved, holding.reserved_since, exclusive)

    # Granting

    async def _pump(self) -> None:
        while True:
            await self._kick.wait()
            self._kick.clear()
            # Let everything that is ready in this turn of the loop join the same transaction.
            await asyncio.sleep(0)
            self._grant_now()
            self._record_waiting()
            self._follow_blockers()

    def _grant_now(self) -> None:
        """Grant whoever can be granted, as transactions in flight."""
        while self._in_flight < IN_FLIGHT_MAX:
            plans = self._plan_batch()
            if not plans:
                return
            self._in_flight += 1
            self._spawn(self._commit(plans), "grant")

    def _plan_batch(self) -> list[Plan]:
        """As many as fit one transaction. A name that a transaction in flight writes is left alone
        until that is over."""
        plans: list[Plan] = []
        draft = self.book.draft()
        operations = 0
        while operations < BATCH_OPERATIONS and not self._is_full():
            id = self.queue.pick()
            if id is None:
                break
            mine = self.mine[id]
            self.queue.leave(id)
            names = [name for name, _ in mine.task.needs]
            if any(name not in self.book.views for name in names):
                self._admit(mine)
                continue
            if any(name in self._written for name in names):
                self._deferred.append(mine)
                continue
            mine.granting = True
            if not mine.task.is_claim:
                self._running[id] = None
            self.queue.occupy(id, mine.task.requirements)
            self.queue.charge(mine.task.tenant)
            plans.append(self.book.grant(mine.task, mine.version, draft))
            operations += len(plans[-1].operations)
        self._written.update(dict.fromkeys(draft.changed))
        return plans

    def _is_full(self) -> bool:
        """Whether as many tasks run as this instance is to have done at a time."""
        return self._running_max is not None and len(self._running) >= self._running_max

    def _end_batch(self, plans: list[Plan]) -> None:
        for name in plans[0].draft.changed:
            self._written.pop(name, None)
        self._in_flight -= 1
        deferred, self._deferred = self._deferred, []
        for mine in deferred:
            if self.mine.get(mine.task.id) is mine:
                self._enter(mine)
        self._kick.set()

    async def _commit(self, plans: list[Plan]) -> None:
        generation = self._generation
        error: BursarError | None = None
        granted: list[Plan] = []
        try:
            granted = await self._attempt(plans)
        except (SessionExpiredError, StoreUnknownError, TooLargeError) as raised:
            error = raised
        if generation != self._generation:
            return
        if granted:
            self.book.confirm(plans[0].draft, self.world.clock.now())
        else:
            self.book.forget(names_of(plans))
        self._end_batch(plans)
        if isinstance(error, TooLargeError):
            self._refuse(plans, error)
        elif error is not None:
            # What this instance looks after is unknown now: look anew.
            self._expired(generation)
            for plan in plans:
                self._fail(plan.id, SessionLost(f"{error}: nothing is known to be granted"))
        elif granted:
            for plan in granted:
                self._granted(plan)
        else:
            await self._try_again(plans, generation)

    async def _attempt(self, plans: list[Plan]) -> list[Plan]:
        """The plans that happened."""
        operations = [operation for plan in plans for operation in plan.operations]
        try:
            await self.world.store.transact(operations)
        except Lost:
            self._count("races_lost")
            return []
        except StoreUnknownError:
            return plans if await self.desk.happened(plans[0]) else []
        return plans

    def _refuse(self, plans: list[Plan], error: TooLargeError) -> None:
        """Only one task that is too large by itself; several are tried one by one."""
        for plan in plans:
            self.queue.vacate(plan.id, plan.task.requirements)
            self.book.forget(name for name, _ in plan.task.needs)
            self._drop(plan.id)
            self._fail(plan.id, Refused(f"{error} (claim fewer names at once)"))

    async def _try_again(self, plans: list[Plan], generation: int) -> None:
        """Losers of a race: read what they need again, and let them wait on."""
        for plan in plans:
            self._running.pop(plan.id, None)
            self.queue.vacate(plan.id, plan.task.requirements)
        try:
            await self.desk.repeat(self.world.store.sync)
            await self._refresh(names_of(plans))
            for plan in plans:
                await self._reenter(plan, generation)
        except SessionExpiredError:
            self._expired(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
            self._expired(generation)
        self._kick.set()

    async def _reenter(self, plan: Plan, generation: int) -> None:
        mine = self.mine.get(plan.id)
        if mine is None or generation != self._generation:
            return
        mine.granting = False
        if mine.version is not None:
            found = await self.desk.read_task(plan.id)
            if generation != self._generation or self.mine.get(plan.id) is not mine:
                return
            if found is None or found[0].state is not State.PENDING:
                self._drop(plan.id)  # cancelled, or another instance has it
                self._fail(plan.id, Refused("the claim was cancelled"))
                return
            mine.task, mine.version = found
        self._enter(mine)

    def _granted(self, plan: Plan) -> None:
        assert plan.after is not None
        mine = self.mine[plan.id]
        mine.task, mine.version, mine.granting = plan.after, plan.version + 1, False
        self.queue.occupy(plan.id, mine.task.requirements)
        self._count("granted")
        self.world.trace("claim.granted", task=plan.id, attempt=mine.task.attempt)
        if not mine.task.is_claim:
            self._spawn(self._run(mine.task), "run")
            return
        waiter = self._waiters.get(plan.id)
        if waiter is None or waiter.done():
            self._spawn(self.release(plan.id, "cancelled"), "unwanted")
        else:
            self._held[plan.id] = mine.task
            waiter.set_result(mine.task)

    def _record_waiting(self) -> None:
        """A claim that was not granted at once is written down, so that it keeps its place; one that
        does not want to wait is refused."""
        for id in list(self.queue.entries):
            mine = self.mine[id]
            if mine.version is not None or mine.granting or not self.queue.blocked_by(id):
                continue
            if mine.patient:
                mine.granting = True
                self.queue.leave(id)
                self._spawn(self._record(mine, self._generation), "record")
            else:
                why = self.why(id)
                self._drop(id)
                self._fail(id, Refused(why))

    async def _record(self, mine: Mine, generation: int) -> None:
        task = mine.task
        if task.id in self.queue.entries:
            self.queue.leave(task.id)
        mine.granting = True
        try:
            while generation == self._generation:
                try:
                    await self.world.store.transact(self.book.submit(task, take=True))
                    break
                except StoreUnknownError:
                    if await self.desk.read_task(task.id) is not None:
                        break
                except NodeExistsError:
                    found = await self.desk.read_task(task.id)
                    if found is not None and found[0] == task:
                        break
                    self._drop(task.id)
                    self._fail(task.id, Refused(f"the key of this claim is in use: {task.id}"))
                    return
        except SessionExpiredError:
            self._expired(generation)
            self._fail(task.id, SessionLost("the store's session was lost while waiting"))
            return
        finally:
            mine.granting = False
        if generation != self._generation:
            self._fail(task.id, SessionLost("the store's session was lost while waiting"))
        elif self.mine.get(task.id) is mine:
            mine.version = 0
            self._enter(mine)

    # Who waits for others' tasks

    def _follow_blockers(self) -> None:
        for name in self.queue.drain_touched():
            if name not in self._followed and self._is_foreign(name):
                self._followed[name] = None
                self._spawn(self._follow(name, self._generation), "follow")

    def _is_foreign(self, name: str) -> bool:
        """Whether somebody here waits for what another instance's task holds or reserves."""
        place = self.queue.places.get(name)
        waited_for = place is not None and bool(place.exclusive_line or place.shared_line)
        return waited_for and self._is_others(name)

    async def _follow(self, name: str, generation: int) -> None:
        """Read a name whenever it changes, for as long as somebody here waits for another's task."""
        try:
            while generation == self._generation and self._is_foreign(name):
                path = self._telling_node(name)
                watch = await self._open_watch(path)
                await self._refresh([name])
                await self._clear_stale_reservation(name, generation)
                while (
                    generation == self._generation
                    and self._is_foreign(name)
                    and self._telling_node(name) == path
                ):
                    await watch.changed()
                    await self._refresh([name])
                watch.close()
        except SessionExpiredError:
            self._expired(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
            await self.world.clock.sleep(RETRY_NS)
        if generation == self._generation:
            self._followed.pop(name, None)
            if self._is_foreign(name):
                self._followed[name] = None
                self._spawn(self._follow(name, generation), "follow")

    def _telling_node(self, name: str) -> str:
        """The node that changes when those who hold the name let go."""
        place = self.queue.places[name]
        in_shared = not place.owner and bool(place.sharers)
        return self.layout.sharers(name) if in_shared else self.layout.name(name)

    async def _open_watch(self, path: str) -> Watch:
        return await self.desk.repeat(lambda: self.world.store.watch(path))

    async def _clear_stale_reservation(self, name: str, generation: int) -> None:
        """A reservation of a task that is no more keeps nobody away."""
        view = self.book.views.get(name)
        id = view.holding.reserved if view is not None else ""
        if not id or id in self.mine or generation != self._generation:
            return
        if await self.desk.read_task(id) is None:
            await self._write_reservation(lambda: self.book.unreserve(id, name), name, generation)

    async def _write_reservation(
        self, plan: Reservation, name: str, generation: int
    ) -> None:
        try:
            operations, draft = plan() if name in self.book.views else ([], self.book.draft())
            if operations:
                await self.world.store.transact(operations)
                self.book.confirm(draft, self.world.clock.now())
        except (*Lost, StoreUnknownError):
            self._count("races_lost")
        if generation == self._generation:
            await self._refresh([name])

    # Ending

    async def release(self, id: str, outcome: Outcome = "ok", result: bytes = b"") -> bool:
        """Record the outcome and give everything back. False if it was taken away before."""
        self._held.pop(id, None)
        for _ in range(END_TRIES):
            generation = self._generation
            try:
                mine = self.mine.get(id)
                if mine is not None and mine.version is not None:
                    task, version = mine.task, mine.version
                else:
                    found = await self.desk.read_task(id)
                    if found is None:
                        return False
                    task, version = found
                if task.state not in (State.RUNNING, State.DONE):
                    return False
                ended = await self._end(task, version, outcome, result)
            except SessionExpiredError:
                self._expired(generation)
                await self._wait_for_session()
                continue
            if ended is not None:
                return ended
        raise Unknown(f"the end of {id} could not be recorded; it still owns its names")

    async def _end(self, task: Task, version: int, outcome: Outcome, result: bytes) -> bool | None:
        """True when it happened, False when it was taken away before, None to try again."""
        if not await self._know(task):
            return None
        if not self.book.owns(task):
            return await self._look_again(task, version)
        ended = self.world.clock.wall() if task.kept else 0
        plan = self.book.finish(task, version, outcome, result, ended=ended)
        if task.id not in self.mine:
            plan.operations.remove(Delete(self.layout.busy(task.id)))
        try:
            await self.world.store.transact(plan.operations)
        except Lost:
            self.book.forget(name for name, _ in task.needs)
            return await self._look_again(task, version)
        except StoreUnknownError:
            self.book.forget(name for name, _ in task.needs)
            await self.desk.repeat(self.world.store.sync)
            if await self.desk.read_task(task.id) is not None:
                return None
            self._over(task)
            return not task.kept or await self.desk.read_released(task.id) == plan.after
        self.book.confirm(plan.draft, self.world.clock.now())
        self._over(task)
        return True

    async def _know(self, task: Task) -> bool:
        """Whether all its names are known, now that they were read."""
        unknown = [name for name, _ in task.needs if name not in self.book.views]
        if unknown:
            await self._refresh(unknown)
        return all(name in self.book.views for name, _ in task.needs)

    async def _look_again(self, task: Task, version: int) -> bool | None:
        await self.desk.repeat(self.world.store.sync)
        found = await self.desk.read_task(task.id)
        if found is None:
            self._over(task)
            return False
        if found[1] != version and found[0].state is not State.DONE:
            self._over(task)
            self._unsure[task.id] = None  # somebody requeued it: look whose it is
            self._look.set()
            return False
        if task.id in self.mine:
            self.mine[task.id].task, self.mine[task.id].version = found
        await self._refresh(name for name, _ in task.needs)
        return None

    def _over(self, task: Task) -> None:
        """It owns nothing any more."""
        self.mine.pop(task.id, None)
        self._running.pop(task.id, None)
        self.queue.vacate(task.id, task.requirements)
        if task.id in self.queue.entries:
            self.queue.leave(task.id)
        self._count("released")
        self.world.trace("claim.released", task=task.id, attempt=task.attempt)
        self._kick.set()

    async def remove_holder(self, id: str, *, requeue: bool = False) -> bool:
        """Take everything from a task by force, whoever looks after it; its fences are old from now
        on. False if it held nothing."""
        for _ in range(END_TRIES):
            await self.desk.repeat(self.world.store.sync)
            found = await self.desk.read_task(id)
            if found is None or found[0].state is not State.RUNNING:
                return False
            task, version = found
            marked = await self.world.store.exists(self.layout.busy(id)) is not None
            await self._refresh(name for name, _ in task.needs)
            if not await self._know(task) or not self.book.owns(task):
                continue
            if requeue:
                plan = self.book.requeue(task, version)
            else:
                plan = self.book.depose(task, version, ended=self.world.clock.wall(), busy=marked)
            try:
                await self.world.store.transact(plan.operations)
            except (*Lost, StoreUnknownError):
                self.book.forget(name for name, _ in task.needs)
                continue
            self.book.confirm(plan.draft, self.world.clock.now())
            self._removed(plan)
            return True
        raise Unknown(f"{id} could not be removed: it changes too often; try again")

    def _removed(self, plan: Plan) -> None:
        self._count("deposed")
        self.world.trace("claim.deposed", task=plan.id, attempt=plan.task.attempt)
        self._held.pop(plan.id, None)
        self.deposed(plan.id)
        mine = self.mine.pop(plan.id, None)
        self._running.pop(plan.id, None)
        self.queue.vacate(plan.id, plan.task.requirements)
        after = plan.after
        if mine is not None and after is not None and after.state is State.PENDING:
            self._admit(Mine(after, plan.version + 1))
        self._kick.set()

    # Looking after what nobody looks after

    async def _look_after(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self._stopping:
                return
            if self._session == 0:
                # Even if the store did not end it: with the session go the marks of everything that
                # was forgotten, so that somebody finds it.
                await self._renew(self._left)
                await self._join()
            generation = self._generation
            try:
                await self._take_over(generation)
            except SessionExpiredError:
                self._expired(generation)
            except StoreUnknownError:
                self._look.set()
                await self.world.clock.sleep(RETRY_NS)

    async def _take_over(self, generation: int) -> None:
        store, layout = self.world.store, self.layout
        self._instances = await store.children(layout.instances)
        self._others = max(0, len(self._instances) - 1)
        await store.sync()
        await self._settle_unsure(generation)
        tasks, busy = [
            await asyncio.gather(*(store.children(f"{layout.root}/{kind}/{shard}") for shard in TASK_SHARDS))
            for kind in ("tasks", "busy")
        ]
        found = []
        for ids, marked in zip(tasks, busy, strict=True):
            taken = set(marked)
            found += [id for id in ids if id not in taken and id not in self.mine and self._minds(id)]
        found = self._divide(found)
        for first in range(0, len(found), TAKE_AT_ONCE):
            if generation != self._generation:
                return
            await self._take(found[first : first + TAKE_AT_ONCE], generation)

    def _divide(self, found: list[str]) -> list[str]:
        """Instances that look at the same moment do not grab at the same tasks: each takes its share
        at once, and what another has not taken by the next look."""
        mine = node_name(self.me)
        if mine not in self._instances or not self._others:
            return found
        place, count = self._instances.index(mine), len(self._instances)
        taken = [id for id in found if id in self._passed or share_of(id, count) == place]
        chosen = set(taken)
        self._passed = dict.fromkeys(id for id in found if id not in chosen)
        if self._passed:
            self._spawn(self._look_later(), "look")
        return taken

    async def _look_later(self) -> None:
        await self.world.clock.sleep(LOOK_AGAIN_NS)
        self._look.set()

    def _minds(self, id: str) -> bool:
        """Without a tracker nothing can be done here: tasks are left to instances that have one."""
        return self._tracker is not None or is_claim_id(id)

    async def _settle_unsure(self, generation: int) -> None:
        """Tasks that may bear this session's mark without being looked after: the reply was lost."""
        for id in list(self._unsure):
            mark = await self.world.store.exists(self.layout.busy(id))
            ours = mark is not None and mark.owner == self.world.store.session
            found = await self._read_taken(id) if ours and id not in self.mine else None
            if generation != self._generation:
                return
            del self._unsure[id]
            if found is not None and id not in self.mine:
                self._adopt(*found)

    async def _take(self, ids: list[str], generation: int) -> None:
        """Mark them, all at once if no other instance is at it, and go on from their states."""
        try:
            await self.world.store.transact([op for id in ids for op in self.book.take(id)])
            taken = ids
        except Lost:
            marks = await asyncio.gather(*(self._take_one(id) for id in ids))
            taken = [id for id, mark in zip(ids, marks, strict=True) if mark]
        except StoreUnknownError:
            self._unsure.update(dict.fromkeys(ids))
            return
        records = await asyncio.gather(*(self._read_taken(id) for id in taken))
        for id, found in zip(taken, records, strict=True):
            if generation != self._generation:
                return
            if found is not None and id not in self.mine:
                self._adopt(*found)

    async def _take_one(self, id: str) -> bool:
        try:
            await self.world.store.transact(self.book.take(id))
        except Lost:
            return False
        except StoreUnknownError:
            self._unsure[id] = None
            return False
        return True

    async def _read_taken(self, id: str) -> tuple[Task, int] | None:
        try:
            return await self.desk.read_task(id)
        except FormatError as error:
            self.problem = str(error)
            self._count("unreadable")
            return None

    def _adopt(self, task: Task, version: int) -> None:
        """Table 4.1."""
        self.world.trace("claim.adopted", task=task.id, state=str(task.state), attempt=task.attempt)
        if task.state is State.PENDING and task.is_claim:
            # Whoever waited for it is gone, or is told that its session was lost.
            self._spawn(self._withdraw_stored(task.id, "cancelled"), "orphan")
            return
        if task.state is State.PENDING:
            self._admit(Mine(task, version))
            return
        self.mine[task.id] = Mine(task, version)
        if not task.is_claim:
            self._running[task.id] = None
        if task.state is State.DONE:
            self._spawn(self.release(task.id, task.outcome or "failed"), "finish")
        elif not task.is_claim:
            self._spawn(self._resume(task), "resume")
        elif task.holder == self.me and task.id in self._held:
            return  # held by this very process: only the session was lost
        else:
            self._spawn(self._bury(task), "bury")

    async def _bury(self, task: Task) -> None:
        """The holder of a running task is gone: as the policy says."""
        generation = self._generation
        if self._dead_holder == "keep":
            self._count("kept")
            return
        requeue = self._dead_holder == "requeue" and not task.is_claim
        try:
            if not await self.remove_holder(task.id, requeue=requeue) and task.id in self.mine:
                await self.release(task.id, "failed")  # it reported its end after all
        except SessionExpiredError:
            self._expired(generation)
        except (StoreUnknownError, Unknown, FormatError) as error:
            self.problem = str(error)
            self._expired(generation)

    # Doing

    def dispatch_of(self, task: Task) -> Dispatch:
        return Dispatch(
            id=task.id,
            key=task.idempotency_key,
            tenant=task.tenant,
            payload=task.payload,
            attempt=task.attempt,
            fences=self.fences_of(task),
        )

    def fences_of(self, task: Task) -> dict[str, int]:
        pairs = zip(task.needs, task.phases, strict=True)
        return {name: make_fence(self.epoch, phase) for (name, _), phase in pairs}

    async def _run(self, task: Task) -> None:
        """Have a granted task done."""
        if self._tracker is None:
            return  # whoever submitted it watches the store and does it
        self._tracked[task.id] = None
        report = await self._tracker.dispatch(self.dispatch_of(task))
        await self._await_end(task, report)

    async def _resume(self, task: Task) -> None:
        """A running task whose instance died."""
        if self._tracker is None or task.id in self._tracked:
            return
        status = await self._tracker.status(self.dispatch_of(task))
        if status is Progress.LOST:
            await self._bury(task)
        else:
            self._tracked[task.id] = None
            await self._await_end(task, status if isinstance(status, Report) else None)

    async def _await_end(self, task: Task, report: Report | None) -> None:
        assert self._tracker is not None
        while report is None:
            await self.world.clock.sleep(POLL_NS)
            status = await self._tracker.status(self.dispatch_of(task))
            if isinstance(status, Report):
                report = status
            elif status is Progress.LOST:
                self._tracked.pop(task.id, None)
                if task.id in self.mine:
                    await self._bury(task)
                return
        self._tracked.pop(task.id, None)
        await self._record_end(task, report)

    async def _record_end(self, task: Task, report: Report) -> None:
        """Once: by this instance if it still looks after the task, else for whoever does."""
        try:
            found = await self.desk.read_task(task.id)
            if found is None or found[0].attempt != task.attempt or found[0].state is not State.RUNNING:
                self._count("late")
                return
            if task.id in self.mine:
                recorded = await self.release(task.id, report.outcome, report.result)
            else:
                plan = self.book.complete(*found, report.outcome, report.result)
                await self.world.store.transact([*plan.operations, Check(self.layout.root)])
                recorded = True
            self._count("completed" if recorded else "late")
        except (*Lost, StoreUnknownError, SessionExpiredError, Unknown):
            # Somebody else records it, or finds it running and asks the tracker.
            self._count("late")
            self._look.set()

    # Time

    async def _tend(self) -> None:
        """Aging, deadlines, and what nobody told of."""
        rounds = 0
        while not self._stopping:
            await self.world.clock.sleep(TEND_NS)
            rounds += 1
            wall_ns = self.world.clock.wall()
            if self.queue.age(wall_ns - self._aging_ns):
                self._kick.set()
            if self._others:
                self._reserve_aged()
            for id, mine in list(self.mine.items()):
                if mine.task.deadline and mine.task.deadline < wall_ns and mine.task.state is State.PENDING:
                    self._spawn(self._give_up(id), "deadline")
            if rounds % (LOOK_NS // TEND_NS + 1) == 0:
                self._look.set()

    def _reserve_aged(self) -> None:
        for id, entry in list(self.queue.entries.items()):
            if not entry.aged:
                continue
            task = self.mine[id].task
            for name, mode in task.requirements:
                view = self.book.views.get(name)
                if view is None or view.holding.reserved != id:
                    plan = self._plan_reservation(task, name, mode)
                    self._spawn(self._reserve(plan, name), "reserve")

    def _plan_reservation(self, task: Task, name: str, mode: Mode) -> Reservation:
        return lambda: self.book.reserve(task, name, mode)

    async def _reserve(self, plan: Reservation, name: str) -> None:
        generation = self._generation
        try:
            await self._write_reservation(plan, name, generation)
        except SessionExpiredError:
            self._expired(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)

    # Saying why

    def why(self, id: str) -> str:
        """One sentence on what a task waits for."""
        if id not in self.queue.entries:
            return f"{id} was not granted in time"
        reasons = []
        for name in self.queue.blocked_by(id)[:5]:
            place = self.queue.places[name]
            if place.owner or place.sharers:
                holders = [place.owner] if place.owner else list(place.sharers)[:3]
                more = len(place.sharers) - 3
                how = "held by" if place.owner else "shared by"
                rest = f" and {more} more" if more > 0 else ""
                reasons.append(f"{name} is {how} {', '.join(holders)}{rest}")
            else:
                reasons.append(f"{name} is reserved for {place.reserved}, which has waited longer")
        if not reasons:
            return f"{id} is next"
        return "; ".join(reasons) + f"; {self.queue.place_in_line(id)} wait before it"


def new_task(**fields: Any) -> Task:
    """A Task from what users give; `needs` as requirements."""
    fields["needs"] = tuple((name, str(mode)) for name, mode in fields["needs"])
    return Task(**fields)


