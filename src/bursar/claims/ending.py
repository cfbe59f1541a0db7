"""Ends of tasks: by whoever holds them, or by force."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bursar.claims.book import Plan
from bursar.claims.ground import (
    BATCH_OPERATIONS,
    END_TRIES,
    IN_FLIGHT_MAX,
    SMALL_IN_FLIGHT_MAX,
    End,
    Lost,
    Mine,
)
from bursar.claims.model import Outcome, State, Task
from bursar.claims.waiting import Waiting
from bursar.errors import (
    BursarError,
    FormatError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    TooLargeError,
    Unknown,
)
from bursar.world import Delete, Operation


class Ending(Waiting):
    """Gives back what a task owns, once."""

    async def release(
        self, id: str, outcome: Outcome = "ok", result: bytes = b"", *, only: Task | None = None
    ) -> bool:
        """Record the outcome and give everything back. False if it was taken away before, or if the
        record is not `only` any more: another claim may have the same key by now."""
        for _ in range(END_TRIES):
            generation = self.generation
            try:
                mine = self.mine.get(id)
                if mine is not None and mine.version is not None:
                    task, version = mine.task, mine.version
                else:
                    found = await self.desk.read_task(id)
                    if found is None:
                        return False
                    task, version = found
                if task.state not in (State.RUNNING, State.DONE) or only not in (None, task):
                    return False
                ended = await self._end(task, version, outcome, result)
            except SessionExpiredError:
                self.expire(generation)
                await self.wait_for_session()
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
            await self._strip_mark(plan)
        try:
            await self._send_end(plan)
        except Lost:
            self.book.forget(name for name, _ in task.needs)
            return await self._look_again(task, version)
        except StoreUnknownError:
            self.book.forget(name for name, _ in task.needs)
            await self.desk.repeat(self.world.store.sync)
            if await self.desk.read_task(task.id) is not None:
                return await self._look_again(task, version)
            self._over(task)
            return not task.kept or await self.desk.read_released(task.id) == plan.after
        self.book.confirm(plan.draft, self.world.clock.now())
        self._over(task)
        return True

    async def _strip_mark(self, plan: Plan) -> None:
        """The mark of a task that ends goes with it, whoever looks after it, if anybody does."""
        mark = self.layout.busy(plan.id)
        if await self.desk.repeat(lambda: self.world.store.exists(mark)) is None:
            plan.operations.remove(Delete(mark))

    # Ends that are ready together go together

    async def _send_end(self, plan: Plan) -> None:
        """Raises what the store answers to this one."""
        end = End(plan, asyncio.get_running_loop().create_future())
        self._ends.append(end)
        if len(self._ends) == 1:
            self.spawn(self._send_ends(), "ends")
        await end.sent

    async def _send_ends(self) -> None:
        # Let everything that ends in this turn of the loop join the same transaction.
        await asyncio.sleep(0)
        while self._ends and self._ends_in_flight < IN_FLIGHT_MAX:
            full, batch = self._cut_ends()
            if not full and self._ends_in_flight >= SMALL_IN_FLIGHT_MAX:
                return
            self._ends = self._ends[len(batch) :]
            self._ends_in_flight += 1
            self.spawn(self._commit_ends(batch), "ends")

    def _cut_ends(self) -> tuple[bool, list[End]]:
        """As many as fit one transaction, and whether they fill it."""
        count, operations = 0, 0
        while count < len(self._ends) and operations < BATCH_OPERATIONS:
            operations += len(self._ends[count].plan.operations)
            count += 1
        return operations >= BATCH_OPERATIONS, self._ends[:count]

    async def _commit_ends(self, batch: list[End]) -> None:
        """All at once; one by one if one of them was taken away meanwhile."""
        try:
            await self.world.store.transact(self.book.join([end.plan for end in batch]))
            answer: BursarError | None = None
        except (StoreError, FormatError) as error:
            answer = error
        self._ends_in_flight -= 1
        if self._ends:
            self.spawn(self._send_ends(), "ends")
        if len(batch) > 1 and isinstance(answer, (*Lost, TooLargeError)):
            for end in batch:
                self.spawn(self._commit_ends([end]), "ends")
                self._ends_in_flight += 1
            return
        for end in batch:
            if end.sent.done():
                continue  # nobody waits any more
            if answer is None:
                end.sent.set_result(None)
            else:
                end.sent.set_exception(answer)

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
        if found != (task, version) and found[0].state is not State.DONE:
            self._taken_away(task)
            return False
        if task.id in self.mine:
            self.mine[task.id].task, self.mine[task.id].version = found
        await self._refresh(name for name, _ in task.needs)
        return None

    def _taken_away(self, task: Task) -> None:
        """Somebody requeued it by force, maybe under this instance's own mark: look whose it is."""
        self._over(task)
        self._unsure[task.id] = None
        self._look_everywhere()

    def _over(self, task: Task) -> None:
        """This grant owns nothing any more."""
        if not self._is_superseded(task):
            self.mine.pop(task.id, None)
            self._running.pop(task.id, None)
            self.queue.vacate(task.id, task.requirements)
        self._count("released")
        self.world.trace("claim.released", task=task.id, attempt=task.attempt)
        self._kick.set()

    def _is_superseded(self, task: Task) -> bool:
        """Whether this instance looks after a later grant of the task by now, or lets it wait for
        one: whoever learns late that an earlier grant is over does not touch that."""
        mine = self.mine.get(task.id)
        if mine is None:
            return False
        return mine.granting or mine.task.state is State.PENDING or mine.task.attempt != task.attempt

    async def remove_holder(
        self, id: str, *, requeue: bool = False, only: Task | None = None, also: Sequence[Operation] = ()
    ) -> bool:
        """Take everything from a task by force, whoever looks after it; its fences are old from now
        on. One that was tried as often as the policy allows is not requeued, but given up. False if it
        held nothing, or not what it held in the record `only`: whoever was asked to bury one grant, and
        slept, does not bury the next. `also` is done with it."""
        for _ in range(END_TRIES):
            await self.desk.repeat(self.world.store.sync)
            found = await self.desk.read_task(id)
            if found is None or found[0].state is not State.RUNNING or only not in (None, found[0]):
                return False
            task, version = found
            marked = await self.world.store.exists(self.layout.busy(id)) is not None
            await self._refresh(name for name, _ in task.needs)
            if not await self._know(task) or not self.book.owns(task):
                continue
            if requeue and task.attempt % self._attempts_max:
                plan = self.book.requeue(task, version)
            else:
                outcome: Outcome = "dead" if requeue else "deposed"
                ended = self.world.clock.wall()
                plan = self.book.depose(task, version, outcome, ended=ended, busy=marked)
            try:
                await self.world.store.transact([*self.book.join([plan]), *also])
            except (*Lost, StoreUnknownError):
                self.book.forget(name for name, _ in task.needs)
                continue
            self.book.confirm(plan.draft, self.world.clock.now())
            self._removed(plan)
            return True
        raise Unknown(f"{id} could not be removed: it changes too often; try again")

    def _removed(self, plan: Plan) -> None:
        self._count("dead" if plan.after is not None and plan.after.outcome == "dead" else "deposed")
        self.world.trace("claim.deposed", task=plan.id, attempt=plan.task.attempt)
        self.claims.holdings.depose(plan.id, plan.task.attempt)
        if not self._is_superseded(plan.task):
            mine = self.mine.pop(plan.id, None)
            self._running.pop(plan.id, None)
            self.queue.vacate(plan.id, plan.task.requirements)
            after = plan.after
            if mine is not None and after is not None and after.state is State.PENDING:
                self._admit(Mine(after, plan.version + 1, mine.created, mine.since_ns))
                if self._draining:
                    self._look.set()  # it is left to others
        self._kick.set()
