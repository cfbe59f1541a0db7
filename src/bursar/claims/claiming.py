"""Tasks put in the queue and taken back; claims that move from one process to another."""

from __future__ import annotations

import asyncio

from bursar.claims.book import read_revision
from bursar.claims.ending import Ending
from bursar.claims.ground import (
    END_TRIES,
    RETRY_NS,
    Lost,
    Mine,
)
from bursar.claims.model import Outcome, State, Task
from bursar.errors import (
    NodeExistsError,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)


class Claiming(Ending):
    """Takes in tasks, and takes them back."""

    async def submit(self, task: Task) -> Task:
        """Put a task in the queue, once: submitting it again finds the one that is there. Raises Unknown
        if this instance stops before the store has answered."""
        while True:
            await self.wait_for_session()
            if self.is_stopping:
                raise Unknown(f"bursar is stopping here; whether {task.id} was submitted is not known")
            generation = self.generation
            try:
                takes = self._tracker is not None
                results = await self.world.store.transact(self.book.submit(task, take=takes))
                if takes and generation == self.generation and task.id not in self.mine:
                    self._admit(Mine(task, 0, read_revision(results), self.world.clock.now()))
                return task
            except NodeExistsError:
                known = await self._find_known(task.id, generation)
                if known is not None:
                    return known
            except StoreUnknownError:
                # The same id again: it exists now, or it does not.
                self._unsure[task.id] = None
                self._look_everywhere()
            except SessionExpiredError:
                self.expire(generation)
                await self.wait_for_session()
            except asyncio.CancelledError:
                # Whoever submits waits no longer, and the store may have it, with this instance's mark.
                self._unsure[task.id] = None
                self._look_everywhere()
                raise

    async def _find_known(self, id: str, generation: int) -> Task | None:
        try:
            await self.world.store.sync()
            return await self._find(id)
        except SessionExpiredError:
            self.expire(generation)
            await self.wait_for_session()
        except StoreUnknownError:
            await self.world.clock.sleep(RETRY_NS)
        return None

    async def _find(self, id: str) -> Task | None:
        found = await self.desk.read_task(id)
        if found is not None:
            return found[0]
        return await self.desk.read_released(id)

    async def withdraw_stored(self, id: str, outcome: Outcome, result: bytes = b"") -> bool:
        """Take back a record that waits; False if it waits no more. Works whoever looks after it. Raises
        Unknown if the store does not answer for long."""
        for _ in range(END_TRIES):
            generation = self.generation
            try:
                await self.world.store.sync()
                found = await self.desk.read_task(id)
                if found is None:
                    self._drop(id)
                    return True
                task, version = found
                if task.state is not State.PENDING:
                    return False
                plan = self.book.finish(task, version, outcome, result, ended=self.world.clock.wall())
                await self._strip_mark(plan)
                await self.world.store.transact(plan.operations)
                self._drop(id)
                return True
            except (*Lost, StoreUnknownError):
                continue
            except SessionExpiredError:
                self.expire(generation)
                await self.wait_for_session()
        raise Unknown(f"{id} could not be taken back: the store does not answer, or it changes too often")

    async def inherit(self, task: Task, version: int, *, marked: bool) -> Task | None:
        """Make a granted claim this process's own; None if it changed meanwhile. Its names and fences
        stay; whoever held it before can no longer end it."""
        generation = self.generation
        plan = self.book.inherit(task, version, marked=marked)
        try:
            await self.world.store.transact(plan.operations)
        except Lost:
            self._count("races_lost")
            return None
        if generation != self.generation:
            return None
        assert plan.after is not None, "it goes on"
        self.mine[task.id] = Mine(plan.after, version + 1)
        self.queue.occupy(task.id, task.requirements)
        self._kick.set()
        self.world.trace("claim.inherited", task=task.id, attempt=plan.after.attempt)
        return plan.after
