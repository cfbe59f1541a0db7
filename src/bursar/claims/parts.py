"""Subtasks, as their parent sees them: it waits for them without a place of those that are done at a time,
and has its names back when they are over.

A subtask uses names that its parent holds. It takes a name *in the parent's scope* in their place, so that
its siblings are excluded and nobody else is; its parent stays the owner, and its record cannot be removed
while a subtask runs. A subtask needs nothing else: then a parent waits for its subtasks, those wait for each
other, and nobody of them for anybody who might wait for the parent.
"""

from __future__ import annotations

from collections.abc import Sequence

from bursar.claims.book import Plan
from bursar.claims.instance_book import LOST, InstanceBook, Mine
from bursar.claims.limits import END_TRIES, RETRY_NS, Lost
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.names import Names
from bursar.claims.reader import Reader
from bursar.errors import Refused, SessionExpiredError, StoreUnknownError, Unknown


class Parts:
    """Invariant: a parent that waits takes no place; one that goes on has one again."""

    def __init__(self, member: Membership, book: InstanceBook, reader: Reader, names: Names) -> None:
        self._member = member
        self._store = member.world.store
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._names = names

    async def wait_for(self, id: str, attempt: int, subtasks: Sequence[str]) -> Task:
        """Until these are over; the record of their parent then, with the fences that it has from now on.
        Raises Refused, Unknown, and what the session raises."""
        self._find(id, attempt)
        self._book.running.pop(id, None)
        self._book.changed.set()
        try:
            for each in subtasks:
                await self._await_end(each)
        finally:
            if self._runs(id, attempt):
                self._book.running[id] = None
        return await self._regain(id, attempt)

    def _find(self, id: str, attempt: int) -> Mine:
        if not self._runs(id, attempt):
            raise Refused(LOST)
        return self._book.mine[id]

    def _runs(self, id: str, attempt: int) -> bool:
        """One that was requeued meanwhile has the same attempt, and takes no place."""
        mine = self._book.mine.get(id)
        return mine is not None and mine.task.attempt == attempt and mine.task.state is State.RUNNING

    async def _await_end(self, id: str) -> None:
        """However often the session is lost meanwhile."""
        while not self._member.is_stopping:
            generation = self._member.generation
            try:
                watch = await self._reader.repeat(lambda: self._store.watch(self._member.layout.task(id)))
                try:
                    while await self._reader.read_task(id) is not None:
                        await watch.changed()
                    return
                finally:
                    watch.close()
            except SessionExpiredError:
                self._member.expire(generation)
                await self._member.wait_for_session()
            except StoreUnknownError:
                await self._member.world.clock.sleep(RETRY_NS)

    async def _regain(self, id: str, attempt: int) -> Task:
        for _ in range(END_TRIES):
            generation = self._member.generation
            try:
                found = await self._look(id, attempt)
                if found is not None:
                    return found
            except SessionExpiredError:
                self._member.expire(generation)
                await self._member.wait_for_session()
            except StoreUnknownError as error:
                self._member.problem = str(error)
            await self._member.world.clock.sleep(RETRY_NS)
        raise Unknown(f"{id} could not have its names back: they change too often; ask again")

    async def _look(self, id: str, attempt: int) -> Task | None:
        """Its record with fences that count, or None to look again."""
        await self._reader.repeat(self._store.sync)
        found = await self._reader.read_task(id)
        if found is None or found[0].attempt != attempt or found[0].state is not State.RUNNING:
            raise Refused(LOST)
        mine = self._book.mine.get(id)
        if mine is None or not mine.task.is_same_grant(found[0]):
            return None  # the session was lost, and it is not looked after yet
        await self._names.refresh(found[0].names)
        mine.task, mine.version = found
        plan = self._plans.regain(*found)
        return mine.task if plan is None or await self._carry(mine, plan) else None

    async def _carry(self, mine: Mine, plan: Plan) -> bool:
        generation = self._member.generation
        try:
            await self._store.transact(self._plans.join([plan]))
        except (*Lost, StoreUnknownError):
            self._plans.forget(plan.task.names)
            return False
        assert plan.after is not None
        if generation == self._member.generation:
            self._plans.confirm(plan.draft, self._member.world.clock.now())
            mine.task, mine.version = plan.after, plan.version + 1
        return True
