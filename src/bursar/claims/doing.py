"""Having granted tasks done, and learning of their ends from the tracker."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from bursar.claims.claiming import Claiming
from bursar.claims.fences import make_fence
from bursar.claims.ground import END_AGAIN_NS, POLL_NS, RETRY_NS, Lost
from bursar.claims.model import State, Task
from bursar.claims.tracker import Dispatch, Progress, Report
from bursar.errors import (
    CrashedError,
    FormatError,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)
from bursar.world import Check

T = TypeVar("T")


class Doing(Claiming):
    """Dispatches at least once, records the end once."""

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
        report = await self._ask_tracker(self._tracker.dispatch(self.dispatch_of(task)))
        await self._await_end(task, report if isinstance(report, Report) else None)

    async def _ask_tracker(self, asking: Awaitable[T]) -> T | None:
        """One that fails says nothing of the task: it is asked again, and nobody else's work ends."""
        try:
            return await asking
        except CrashedError:
            raise
        except Exception as error:  # noqa: BLE001  a tracker is its author's, and may raise anything
            self.problem = f"the tracker failed: {type(error).__name__}: {error}"[:300]
            return None

    async def _resume(self, task: Task) -> None:
        """A running task whose instance died."""
        if self._tracker is None or task.id in self._tracked:
            return
        while self._ended.get(task.id) == task.attempt:
            await self.world.clock.sleep(RETRY_NS)  # it ended here, and its end is on the way
        if (mine := self.mine.get(task.id)) is None or mine.task != task:
            return
        status = await self._ask_tracker(self._tracker.status(self.dispatch_of(task)))
        if status is Progress.LOST:
            await self._bury(task)
        else:
            self._tracked[task.id] = None
            await self._await_end(task, status if isinstance(status, Report) else None)

    async def _await_end(self, task: Task, report: Report | None) -> None:
        assert self._tracker is not None
        while report is None:
            await self.world.clock.sleep(POLL_NS)
            status = await self._ask_tracker(self._tracker.status(self.dispatch_of(task)))
            if isinstance(status, Report):
                report = status
            elif status is Progress.LOST:
                self._tracked.pop(task.id, None)
                if task.id in self.mine:
                    await self._bury(task)
                return
        self._tracked.pop(task.id, None)
        await self._record_end(task, report.bounded())

    async def _record_end(self, task: Task, report: Report) -> None:
        """Once: by this instance if it still looks after the task, else for whoever does. However long
        the store is away: nobody else knows how the task ended."""
        self._ended[task.id] = task.attempt
        while not self.is_stopping and not await self._is_end_decided(task, report):
            await self.world.clock.sleep(END_AGAIN_NS)
        if self._ended.get(task.id) == task.attempt:
            del self._ended[task.id]

    async def _is_end_decided(self, task: Task, report: Report) -> bool:
        """Whether this end is recorded, or is not to be any more."""
        generation = self.generation
        try:
            if task.id not in self.mine:
                await self.desk.repeat(self.world.store.sync)  # this session may not have seen the grant
            found = await self.desk.read_task(task.id)
            if found is None or found[0].attempt != task.attempt or found[0].state is not State.RUNNING:
                self._count("late")
                if (mine := self.mine.get(task.id)) is not None and mine.task.attempt == task.attempt:
                    self._taken_away(task)
                return True
            if task.id in self.mine and not self._is_superseded(task):
                recorded = await self.release(task.id, report.outcome, report.result)
            else:
                plan = self.book.complete(*found, report.outcome, report.result)
                await self.world.store.transact([*plan.operations, Check(self.layout.root)])
                recorded = True
            self._count("completed" if recorded else "late")
            return True
        except Lost:
            pass  # somebody else changed it: look at what it is now
        except SessionExpiredError:
            self.expire(generation)
            await self.wait_for_session()
        except (StoreUnknownError, Unknown) as error:
            self.problem = str(error)
        except FormatError as error:
            self.problem = str(error)
            self._count("unreadable")
            return True
        return False

    def _keep(self, task: Task) -> None:
        """Nothing of it is done here, so it takes no place of what is. Whoever did it may report its end
        after all, and an operator may take its names at another instance: it is looked at again."""
        self._count("kept")
        self._running.pop(task.id, None)
        self._kept[task.id] = task
        self._kick.set()

    def _is_kept_as_it_is(self, task: Task) -> bool:
        """What the policy says of what its holder had when it died."""
        return self._dead_holder == "keep" or (self._dead_holder == "auto" and task.is_claim)

    async def _bury(self, task: Task) -> None:
        """The holder of a running task is gone: as the policy says."""
        generation = self.generation
        if self._is_kept_as_it_is(task):
            if task.is_claim:
                self.leave_held(task)
            else:
                self._keep(task)
            return
        requeue = self._dead_holder in ("auto", "requeue") and not task.is_claim
        try:
            removed = await self.remove_holder(task.id, requeue=requeue, only=task)
            if not removed and task.id in self.mine and not self._is_superseded(task):
                await self.release(task.id, "failed")  # it reported its end after all
        except SessionExpiredError:
            self.expire(generation)
        except (StoreUnknownError, Unknown, FormatError) as error:
            self.problem = str(error)
            self.expire(generation)
