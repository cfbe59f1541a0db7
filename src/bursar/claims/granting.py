"""Granting: many tasks in one transaction, many transactions in flight, losers try again."""

from __future__ import annotations

import asyncio

from bursar.claims.book import Plan, measure, names_of, read_revision
from bursar.claims.doing import Doing
from bursar.claims.ground import (
    BATCH_OPERATIONS,
    IN_FLIGHT_MAX,
    SMALL_IN_FLIGHT_MAX,
    Lost,
    Mine,
)
from bursar.claims.model import State
from bursar.errors import (
    BursarError,
    FormatError,
    NodeExistsError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    TooLargeError,
    Unknown,
)


class Granting(Doing):
    """Carries the book's grants to the store."""

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
        was_full = False
        while self._in_flight < (IN_FLIGHT_MAX if was_full else SMALL_IN_FLIGHT_MAX):
            plans = self._plan_batch()
            if not plans:
                return
            was_full = sum(len(plan.operations) for plan in plans) >= BATCH_OPERATIONS
            self._in_flight += 1
            self.spawn(self._commit(plans), "grant")

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
            plan = self.book.grant(mine.task, mine.version, draft, self._heirs(mine.task))
            if plan is None:
                # They have an owner, of which the queue knows nothing: read them again.
                self.book.forget(names)
                self._admit(mine)
                continue
            mine.granting = True
            if not mine.task.is_claim:
                self._running[id] = None
            self.queue.occupy(id, mine.task.requirements)
            self.queue.charge(mine.task.tenant)
            plans.append(plan)
            operations += len(plan.operations)
        self._written.update(dict.fromkeys(draft.changed))
        return plans

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
        generation = self.generation
        error: BursarError | None = None
        granted: list[Plan] = []
        try:
            granted = await self._attempt(plans)
        except (SessionExpiredError, StoreUnknownError, TooLargeError) as raised:
            error = raised
        if generation != self.generation:
            return
        if granted:
            self.book.confirm(plans[0].draft, self.world.clock.now())
            self._remember_noted(plans[0].draft)
        else:
            self.book.forget(names_of(plans))
        self._end_batch(plans)
        if isinstance(error, TooLargeError):
            self._refuse(plans, error)
        elif error is not None:
            # What this instance looks after is unknown now: look anew.
            self.problem = str(error)
            self.expire(generation)
        elif granted:
            for plan in granted:
                self._granted(plan)
        else:
            await self._try_again(plans, generation)

    async def _attempt(self, plans: list[Plan]) -> list[Plan]:
        """The plans that happened."""
        try:
            await self.world.store.transact(self.book.join(plans))
        except Lost:
            self._count("races_lost")
            return []
        except StoreUnknownError:
            return plans if await self.desk.happened(plans[0]) else []
        return plans

    def _refuse(self, plans: list[Plan], error: TooLargeError) -> None:
        """The one that is too large; where there are several, the others are granted without it."""
        largest = max(plans, key=lambda plan: sum(map(measure, plan.operations)))
        for plan in plans:
            mine = self.mine.get(plan.id)
            self._running.pop(plan.id, None)
            self.queue.vacate(plan.id, plan.task.requirements)
            self.book.forget(name for name, _ in plan.task.needs)
            if mine is None:
                continue
            mine.granting = False
            if plan is not largest:
                self._admit(mine)
            elif mine.task.is_claim:
                self.claims.fail(plan.id, Refused(f"{error} (claim fewer names at once)"))
                self._drop(plan.id)
            else:
                self.spawn(self._fail_task(plan.id, f"{error} (give it fewer names)"), "refuse")

    async def _fail_task(self, id: str, why: str) -> None:
        """It can never be granted."""
        try:
            await self.withdraw_stored(id, "failed", why.encode())
        except (StoreUnknownError, Unknown, FormatError) as error:
            self.problem = str(error)

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
            self.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
            self.expire(generation)
        self._kick.set()

    async def _reenter(self, plan: Plan, generation: int) -> None:
        mine = self.mine.get(plan.id)
        if mine is None or generation != self.generation:
            return
        mine.granting = False
        if mine.version is None:
            if mine.task.key:
                self.claims.look_again(plan.id)  # another process may have used the key
            else:
                self._enter(mine)
            return
        found = await self.desk.read_task(plan.id)
        if generation != self.generation or self.mine.get(plan.id) is not mine:
            return
        if found is None or found[0].state is not State.PENDING:
            self.claims.fail(plan.id, Refused("the claim was cancelled"))
            self._drop(plan.id)  # cancelled, or another instance has it
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
        if mine.task.is_claim:
            self.claims.grant(mine.task)
        else:
            self.spawn(self._run(mine.task), "run")

    def _record_waiting(self) -> None:
        """A claim that was not granted at once is written down, so that it keeps its place; one that
        does not want to wait is refused."""
        for id in list(self._unrecorded):
            if id not in self.queue.entries:
                self._unrecorded.pop(id, None)
                continue
            mine = self.mine[id]
            if mine.version is not None:
                del self._unrecorded[id]
                continue
            if not (why := self.why_blocked(id)):
                continue
            if self.claims.block(id, why):
                self.queue.leave(id)
                mine.recording = True
                self.spawn(self._record(mine, self.generation), "record")

    async def _record(self, mine: Mine, generation: int) -> None:
        """It is not in the queue meanwhile: a grant would create the record too."""
        created = None
        try:
            created = await self._write_down(mine, generation)
        except SessionExpiredError:
            self.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            self.problem = str(error)
        if not self._is_kept(mine, generation):
            return  # whoever dropped it removes the record
        mine.recording = False
        if created is not None:
            mine.version, mine.created = 0, created
            self._enter(mine)
        else:
            self.claims.look_again(mine.task.id)

    async def _write_down(self, mine: Mine, generation: int) -> int | None:
        """The revision that it was written with; None if the key is another's."""
        task = mine.task
        while self._is_kept(mine, generation):
            try:
                return read_revision(await self.world.store.transact(self.book.submit(task, take=True)))
            except (StoreUnknownError, NodeExistsError) as error:
                await self.desk.repeat(self.world.store.sync)
                found = await self.desk.read_record(task.id)
                if found is not None or isinstance(error, NodeExistsError):
                    return found.created if found is not None and found[:2] == (task, 0) else None
        return None

    def _is_kept(self, mine: Mine, generation: int) -> bool:
        return generation == self.generation and self.mine.get(mine.task.id) is mine
