"""Tasks put in the queue, and claims: names held by the code that asks."""

from __future__ import annotations

import asyncio

from bursar.claims.ending import Ending
from bursar.claims.ground import (
    END_TRIES,
    RETRY_NS,
    Lost,
    Mine,
    SessionLost,
)
from bursar.claims.model import Outcome, State, Task
from bursar.errors import (
    BursarError,
    NodeExistsError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)
from bursar.world import MILLISECOND_NS, Delete


class Claiming(Ending):
    """Takes in tasks and claims, and takes them back."""

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
