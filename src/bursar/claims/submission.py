"""Tasks put in the queue and taken back; claims that move from one process to another."""

from __future__ import annotations

import asyncio

from bursar.claims.admission import Admission
from bursar.claims.book import read_revision
from bursar.claims.ending import Ending
from bursar.claims.instance_book import InstanceBook, Mine
from bursar.claims.limits import END_TRIES, RETRY_NS, Lost
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.model import Outcome, State, Task
from bursar.claims.reader import Reader
from bursar.errors import NodeExistsError, SessionExpiredError, StoreUnknownError, Unknown


class Submission:
    """Takes in tasks, and takes them back."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        looking: Looking,
        admission: Admission,
        ending: Ending,
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._looking = looking
        self._admission = admission
        self._ending = ending

    async def submit(self, task: Task) -> Task:
        """Put a task in the queue, once: submitting it again finds the one that is there. Raises Unknown
        if this instance stops before the store has answered."""
        while True:
            await self._member.wait_for_session()
            if self._member.is_stopping:
                raise Unknown(f"bursar is stopping here; whether {task.id} was submitted is not known")
            generation = self._member.generation
            try:
                takes = self._book.works
                results = await self._store.transact(self._plans.submit(task, take=takes))
                if takes and generation == self._member.generation and task.id not in self._book.mine:
                    self._admission.admit(Mine(task, 0, read_revision(results), self._clock.now()))
                return task
            except NodeExistsError:
                known = await self._find_known(task.id, generation)
                if known is not None:
                    return known
            except StoreUnknownError:
                # The same id again: it exists now, or it does not.
                self._looking.doubt([task.id])
            except SessionExpiredError:
                self._member.expire(generation)
                await self._member.wait_for_session()
            except asyncio.CancelledError:
                # Whoever submits waits no longer, and the store may have it, with this instance's mark.
                self._looking.doubt([task.id])
                raise

    async def _find_known(self, id: str, generation: int) -> Task | None:
        try:
            await self._store.sync()
            return await self._find(id)
        except SessionExpiredError:
            self._member.expire(generation)
            await self._member.wait_for_session()
        except StoreUnknownError:
            await self._clock.sleep(RETRY_NS)
        return None

    async def _find(self, id: str) -> Task | None:
        found = await self._reader.read_task(id)
        if found is not None:
            return found[0]
        return await self._reader.read_released(id)

    async def withdraw(self, id: str, outcome: Outcome, result: bytes = b"") -> bool:
        """Take back a record that waits; False if it waits no more. Works whoever looks after it. Raises
        Unknown if the store does not answer for long."""
        for _ in range(END_TRIES):
            generation = self._member.generation
            try:
                await self._store.sync()
                found = await self._reader.read_task(id)
                if found is None:
                    self._book.drop(id)
                    return True
                task, version = found
                if task.state is not State.PENDING:
                    return False
                plan = self._plans.finish(task, version, outcome, result, ended=self._clock.wall())
                await self._ending.strip_mark(plan)
                await self._store.transact(plan.operations)
                self._book.drop(id)
                return True
            except (*Lost, StoreUnknownError):
                continue
            except SessionExpiredError:
                self._member.expire(generation)
                await self._member.wait_for_session()
        raise Unknown(f"{id} could not be taken back: the store does not answer, or it changes too often")

    async def inherit(self, task: Task, version: int, *, marked: bool) -> Task | None:
        """Make a granted claim this process's own; None if it changed meanwhile. Its names and fences
        stay; whoever held it before can no longer end it."""
        generation = self._member.generation
        plan = self._plans.inherit(task, version, marked=marked)
        try:
            await self._store.transact(plan.operations)
        except Lost:
            self._book.count("races_lost")
            return None
        if generation != self._member.generation:
            return None
        assert plan.after is not None, "it goes on"
        self._book.part(task.id)
        self._book.mine[task.id] = Mine(plan.after, version + 1)
        self._book.queue.occupy(task.id, task.requirements)
        self._book.changed.set()
        self._member.world.trace("claim.inherited", task=task.id, attempt=plan.after.attempt)
        return plan.after
