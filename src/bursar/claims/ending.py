"""Ends of tasks: by whoever holds them, or by force."""

from __future__ import annotations

from bursar.claims.book import Plan
from bursar.claims.ground import (
    END_TRIES,
    Lost,
    Mine,
)
from bursar.claims.model import Outcome, State, Task
from bursar.claims.waiting import Waiting
from bursar.errors import (
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)
from bursar.world import Delete


class Ending(Waiting):
    """Gives back what a task owns, once."""

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
