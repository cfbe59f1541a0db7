"""Ends of tasks: by whoever holds them, or by force."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bursar.claims.admission import Admission
from bursar.claims.book import Plan
from bursar.claims.end_batches import EndBatches
from bursar.claims.instance_book import InstanceBook, Mine
from bursar.claims.limits import END_TRIES, RETRY_NS, Lost
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.model import Outcome, State, Task
from bursar.claims.names import Names
from bursar.claims.reader import Reader
from bursar.errors import NodeMissingError, SessionExpiredError, StoreUnknownError, Unknown
from bursar.world import Delete, Operation

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions


class Ending:
    """Gives back what a task owns, once."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        names: Names,
        looking: Looking,
        admission: Admission,
        claims: Acquisitions,
        attempts_max: int,
    ) -> None:
        """A task whose holders died as often as `attempts_max` is given up."""
        self.attempts_max = attempts_max
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._names = names
        self._looking = looking
        self._admission = admission
        self._claims = claims
        self._batches = EndBatches(member, book.plans)

    async def release(
        self,
        id: str,
        outcome: Outcome = "ok",
        result: bytes = b"",
        *,
        only: Task | None = None,
        attempt: int | None = None,
        again_after_ns: int | None = None,
    ) -> bool:
        """Record the outcome and give everything back; with `again_after_ns` it failed (`result` says how)
        and waits for so long to be tried again: the end of this attempt only. False if it was taken away
        before, if the record is not `only` any more (another claim may have the same key by now), or if it
        is of another `attempt`: while a session was lost, another instance may have requeued and granted
        it."""
        plan: Callable[[], Awaitable[Plan | None]]
        for _ in range(END_TRIES):
            generation = self._member.generation
            try:
                mine = self._book.mine.get(id)
                if mine is not None and mine.version is not None:
                    task, version = mine.task, mine.version
                else:
                    found = await self._reader.read_task(id)
                    if found is None:
                        return False
                    task, version = found
                if task.state not in (State.RUNNING, State.DONE):
                    return False
                if only is not None and not only.is_same_grant(task):
                    return False
                if attempt not in (None, task.attempt):
                    return False
                if again_after_ns is not None and task.state is State.RUNNING:
                    plan = partial(self._plan_again, task, version, result, again_after_ns)
                else:
                    plan = partial(self._plan_end, task, version, outcome, result)
                ended = await self._end(task, version, plan)
            except SessionExpiredError:
                self._member.expire(generation)
                await self._member.wait_for_session()
                continue
            if ended is not None:
                return ended
        raise Unknown(f"the end of {id} could not be recorded; it still owns its names")

    async def _plan_end(self, task: Task, version: int, outcome: Outcome, result: bytes) -> Plan:
        ended = self._clock.wall() if task.kept else 0
        plan = self._plans.finish(task, version, outcome, result, ended=ended)
        if task.id not in self._book.mine:
            await self.strip_mark(plan)
        return plan

    async def _plan_again(self, task: Task, version: int, failure: bytes, after_ns: int) -> Plan | None:
        """None while a subtask runs: its record stays, so that nothing else keeps its names for those."""
        not_before = self._clock.wall() + after_ns
        plan = self._plans.try_again(task, version, failure.decode("utf-8", "replace"), not_before)
        if not await self._has_subtasks(task.id):
            return plan
        await self._clock.sleep(RETRY_NS)
        return None

    async def _has_subtasks(self, id: str) -> bool:
        """Whether some run. Asked after the plan was made: see `ClaimBook.try_again`."""
        path = self._member.layout.task(id)
        await self._reader.repeat(self._store.sync)
        stat = await self._reader.repeat(lambda: self._store.exists(path))
        return stat is not None and stat.children > 0

    async def _end(
        self, task: Task, version: int, make_plan: Callable[[], Awaitable[Plan | None]]
    ) -> bool | None:
        """True when it happened, False when it was taken away before, None to try again."""
        if not await self._know(task):
            return None
        if not self._plans.owns(task):
            return await self._look_again(task)
        plan = await make_plan()
        if plan is None:
            return None
        try:
            await self._batches.send(plan)
        except Lost:
            self._plans.forget(task.names)
            return await self._look_again(task)
        except StoreUnknownError:
            self._plans.forget(task.names)
            await self._reader.repeat(self._store.sync)
            if await self._reader.read_task(task.id) is not None:
                return await self._look_again(task)
            self._plans.lots.suspect(task)
            self._over(task)
            return not task.kept or await self._reader.read_released(task.id) == plan.after
        self._plans.confirm(plan.draft, self._clock.now())
        self._let_wait(self._over(task), plan, self._clock.now())
        return True

    def _let_wait(self, mine: Mine | None, plan: Plan, since_ns: int) -> None:
        """A task that is tried again, if this instance still looks after it."""
        after = plan.after
        if mine is not None and after is not None and after.state is State.PENDING:
            self._admission.admit(Mine(after, plan.version + 1, mine.created, since_ns))

    async def strip_mark(self, plan: Plan) -> None:
        """The mark of a task that ends goes with it, whoever looks after it, if anybody does."""
        mark = self._member.layout.busy(plan.id)
        if await self._reader.repeat(lambda: self._store.exists(mark)) is None:
            plan.operations.remove(Delete(mark))

    async def _know(self, task: Task) -> bool:
        """Whether all its names are known, now that they were read."""
        unknown = [name for name in task.names if name not in self._plans.views]
        if unknown:
            await self._names.refresh(unknown)
        return all(name in self._plans.views for name in task.names)

    async def _look_again(self, task: Task) -> bool | None:
        """Its record may have changed, and still be of this grant: it asked for more, or was given it."""
        await self._reader.repeat(self._store.sync)
        found = await self._reader.read_task(task.id)
        if found is None:
            self._over(task)
            return False
        holds = found[0].is_same_grant(task) and found[0].state is State.RUNNING
        if not holds and found[0].state is not State.DONE:
            self.taken_away(task)
            return False
        if task.id in self._book.mine:
            self._book.mine[task.id].task, self._book.mine[task.id].version = found
        await self._names.refresh(found[0].names)
        return None

    def taken_away(self, task: Task) -> None:
        """Somebody requeued it by force, maybe under this instance's own mark: look whose it is."""
        self._over(task)
        self._looking.doubt([task.id])

    def _over(self, task: Task) -> Mine | None:
        """This grant owns nothing any more."""
        mine = self._book.end(task)
        self._book.count("released")
        self._member.world.trace("claim.released", task=task.id, attempt=task.attempt)
        return mine

    async def remove_holder(
        self,
        id: str,
        *,
        requeue: bool = False,
        only: Task | None = None,
        also: Sequence[Operation] = (),
        outcome: Outcome = "deposed",
    ) -> bool:
        """Take everything from a task by force, whoever looks after it; its fences are old from now
        on. One that was tried as often as the policy allows is not requeued, but given up. False if it
        held nothing, or not what it held in the record `only`: whoever was asked to bury one grant, and
        slept, does not bury the next. `also` is done with it."""
        for _ in range(END_TRIES):
            await self._reader.repeat(self._store.sync)
            found = await self._reader.read_task(id)
            if found is None or found[0].state is not State.RUNNING:
                return False
            if only is not None and not only.is_same_grant(found[0]):
                return False
            task, version = found
            marked = await self._store.exists(self._member.layout.busy(id)) is not None
            await self._remove_subtasks(task.id, outcome)
            await self._names.refresh(task.names)
            if not await self._know(task) or not self._plans.owns(task):
                continue
            if requeue and (task.attempt - task.failures) % self.attempts_max:
                plan = self._plans.requeue(task, version)
                if await self._has_subtasks(id):
                    continue  # another one began
            else:
                ended = self._clock.wall()
                how: Outcome = "dead" if requeue else outcome
                plan = self._plans.depose(task, version, how, ended=ended, busy=marked)
            try:
                await self._store.transact([*self._plans.join([plan]), *also])
            except (*Lost, StoreUnknownError):
                self._plans.forget(task.names)
                continue
            self._plans.confirm(plan.draft, self._clock.now())
            self._removed(plan)
            return True
        raise Unknown(f"{id} could not be removed: it changes too often; try again")

    async def _remove_subtasks(self, id: str, outcome: Outcome) -> None:
        """They use names that it has no more: they are over with it."""
        path = self._member.layout.task(id)
        try:
            subtasks = await self._reader.repeat(lambda: self._store.children(path))
        except NodeMissingError:
            return  # it is over
        for subtask in subtasks:
            await self.remove_holder(subtask, outcome=outcome)

    def _removed(self, plan: Plan) -> None:
        self._book.count("dead" if plan.after is not None and plan.after.outcome == "dead" else "deposed")
        self._member.world.trace("claim.deposed", task=plan.id, attempt=plan.task.attempt)
        self._claims.holdings.depose(plan.id, plan.task.attempt)
        mine = self._book.end(plan.task)
        self._let_wait(mine, plan, self._clock.now() if mine is None else mine.since_ns)
