"""Having granted tasks done, and learning of their ends from the tracker."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, TypeVar

from bursar.claims.admission import Admission
from bursar.claims.cancels import Cancels
from bursar.claims.ending import Ending
from bursar.claims.fences import make_fence
from bursar.claims.instance_book import InstanceBook
from bursar.claims.limits import END_AGAIN_NS, RETRY_NS, Lost
from bursar.claims.membership import Membership
from bursar.claims.model import Mark, Outcome, State, Task, cut, encode
from bursar.claims.reader import Reader
from bursar.claims.tracker import NOTE_MAX, Dispatch, Progress, Report, Tracker
from bursar.errors import CrashedError, FormatError, SessionExpiredError, StoreUnknownError, Unknown
from bursar.policy.values import DeadHolder
from bursar.world import MILLISECOND_NS, SECOND_NS, Check

POLL_NS = 500 * MILLISECOND_NS

CANCELLED = b"it was cancelled"
TAKEN = "its names were taken by force"

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Run:
    """One attempt that is being done here. `note`: what the store was told of it; `is_lost`: its names are
    another's by now, and whoever does it was told so."""

    task: Task
    since_ns: int
    note: str = ""
    is_lost: bool = False
    is_looked_at: bool = False


class Doing:
    """Dispatches at least once, records the end once. An end that is known here is told until the store has
    it, or until it is another's to tell."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        admission: Admission,
        ending: Ending,
        cancels: Cancels,
        tracker: Tracker | None,
        dead_holder: DeadHolder,
    ) -> None:
        self.dead_holder = dead_holder
        self.kept: dict[str, Task] = {}
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._admission = admission
        self._ending = ending
        self._cancels = cancels
        self._tracker = tracker
        self._tracked: dict[str, None] = {}
        self._ended: dict[str, int] = {}
        self._runs: dict[str, Run] = {}
        cancels.stop = self.stop

    def forget(self) -> None:
        self._tracked.clear()
        self.kept.clear()

    def _dispatch_of(self, task: Task) -> Dispatch:
        return Dispatch(
            id=task.id,
            key=task.idempotency_key,
            tenant=task.tenant,
            payload=task.payload,
            attempt=task.attempt,
            fences=self.fences_of(task),
        )

    def fences_of(self, task: Task) -> dict[str, int]:
        if task.parent:
            pairs = zip(task.inherited, task.inherited_phases, strict=True)
        else:
            pairs = zip(task.needs, task.phases, strict=True)
        return {name: make_fence(self._member.epoch, phase) for (name, _), phase in pairs}

    async def run(self, task: Task) -> None:
        """Have a granted task done."""
        if self._tracker is None:
            return  # whoever submitted it watches the store and does it
        if self._cancels.is_asked(task):
            await self._record_end(task, Report("cancelled", CANCELLED))
            return
        self._tracked[task.id] = None
        run = self._runs[task.id] = Run(task, self._clock.now())
        try:
            report = await self._ask_tracker(self._tracker.dispatch(self._dispatch_of(task)))
            await self._await_end(task, report if isinstance(report, Report) else None)
        finally:
            if self._runs.get(task.id) is run:
                del self._runs[task.id]

    async def _ask_tracker(self, asking: Awaitable[T]) -> T | None:
        """One that fails says nothing of the task: it is asked again, and nobody else's work ends."""
        try:
            return await asking
        except CrashedError:
            raise
        except Exception as error:  # noqa: BLE001  a tracker is its author's, and may raise anything
            self._member.problem = f"the tracker failed: {type(error).__name__}: {error}"[:300]
            return None

    async def resume(self, task: Task) -> None:
        """A running task whose instance died."""
        if self._tracker is None or task.id in self._tracked:
            return
        while self._ended.get(task.id) == task.attempt:
            await self._clock.sleep(RETRY_NS)  # it ended here, and its end is on the way
        if (mine := self._book.mine.get(task.id)) is None or not mine.task.is_same_grant(task):
            return
        status = await self._ask_tracker(self._tracker.status(self._dispatch_of(task)))
        if status is Progress.LOST:
            await self.bury(task)
        else:
            self._tracked[task.id] = None
            self._runs.setdefault(task.id, Run(task, self._clock.now()))
            await self._await_end(task, status if isinstance(status, Report) else None)

    async def _await_end(self, task: Task, report: Report | None) -> None:
        assert self._tracker is not None
        while report is None:
            await self._clock.sleep(POLL_NS)
            status = await self._ask_tracker(self._tracker.status(self._dispatch_of(task)))
            if isinstance(status, Report):
                report = status
            elif status is Progress.LOST:
                self._tracked.pop(task.id, None)
                self._forget_run(task)
                if task.id in self._book.mine:
                    await self.bury(task)
                return
        self._tracked.pop(task.id, None)
        self._forget_run(task)
        if report.outcome == "ok" and task.function:
            seconds = (self._clock.wall() - task.begun) / SECOND_NS
            self._book.durations.note(task.function, task.tenant, seconds)
        await self._record_end(task, report.bounded())

    def _forget_run(self, task: Task) -> None:
        run = self._runs.get(task.id)
        if run is not None and run.task.attempt == task.attempt:
            del self._runs[task.id]

    # What runs

    def stop(self, id: str) -> None:
        """Somebody asked that it be cancelled. Asking the tracker again does nothing."""
        if (run := self._runs.get(id)) is not None:
            self._member.spawn(self._stop(run, CANCELLED.decode()), "stop")

    async def _stop(self, run: Run, why: str) -> None:
        if self._tracker is not None:
            await self._ask_tracker(self._tracker.cancel(self._dispatch_of(run.task), why))

    def look(self) -> None:
        """How far what runs is, and whether its names are still its own. What is over sooner than this is
        called again costs no read."""
        self._cancels.look()
        before_ns = self._clock.now() - POLL_NS
        for run in self._runs.values():
            if run.since_ns < before_ns and not run.is_looked_at:
                run.is_looked_at = True
                self._member.spawn(self._look_at(run), "look")

    async def _look_at(self, run: Run) -> None:
        id, generation = run.task.id, self._member.generation
        try:
            await self._tell_note(run)
            found = None if run.is_lost else await self._reader.read_task(id)
            is_same = found is not None and found[0].attempt == run.task.attempt
            if not run.is_lost and not is_same and self._runs.get(id) is run:
                run.is_lost = True
                await self._stop(run, TAKEN)
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
        finally:
            run.is_looked_at = False

    async def _tell_note(self, run: Run) -> None:
        """In the mark of the task, which goes with it: there is nothing to be cleaned up."""
        assert self._tracker is not None, "it runs"
        id = run.task.id
        note = str(await self._ask_tracker(self._tracker.note(id)) or "")[:NOTE_MAX]
        if note == run.note or id not in self._book.mine or self._book.is_superseded(run.task):
            return
        try:
            await self._store.set(
                self._member.layout.busy(id), encode(Mark(self._plans.me, run.task.attempt, note))
            )
            run.note = note
        except Lost as error:
            self._member.problem = str(error)  # it ended meanwhile

    # Ends

    async def _record_end(self, task: Task, report: Report) -> None:
        """Once: by this instance if it still looks after the task, else for whoever does. However long
        the store is away: nobody else knows how the task ended."""
        self._ended[task.id] = task.attempt
        while not self._member.is_stopping and not await self._is_end_decided(task, report):
            await self._clock.sleep(END_AGAIN_NS)
        if self._ended.get(task.id) == task.attempt:
            del self._ended[task.id]
        if self._cancels.is_asked(task) and task.id not in self._book.mine:
            await self._cancels.end(task.id)

    def _judge(self, task: Task, report: Report) -> Outcome | Literal["again"]:
        """What becomes of a task that ended so. One that somebody cancelled is not tried again."""
        if report.outcome != "failed":
            return report.outcome
        if self._cancels.is_asked(task):
            return "cancelled"
        if task.is_tried_again:
            return "again"
        return "dead" if task.retries else "failed"

    async def _is_end_decided(self, task: Task, report: Report) -> bool:
        """Whether this end is recorded, or is not to be any more."""
        generation = self._member.generation
        try:
            if task.id not in self._book.mine:
                await self._reader.repeat(self._store.sync)  # this session may not have seen the grant
            found = await self._reader.read_task(task.id)
            if found is None or found[0].attempt != task.attempt or found[0].state is not State.RUNNING:
                self._book.count("late")
                if (mine := self._book.mine.get(task.id)) is not None and mine.task.attempt == task.attempt:
                    self._ending.taken_away(task)
                return True
            self._count(await self._carry_out(*found, report), self._judge(task, report))
            return True
        except Lost:
            pass  # somebody else changed it: look at what it is now
        except SessionExpiredError:
            self._member.expire(generation)
            await self._member.wait_for_session()
        except (StoreUnknownError, Unknown) as error:
            self._member.problem = str(error)
        except FormatError as error:
            self._member.problem = str(error)
            self._book.count("unreadable")
            return True
        return False

    async def _carry_out(self, task: Task, version: int, report: Report) -> bool:
        """Whether it was recorded."""
        judged = self._judge(task, report)
        if judged == "again":
            return await self._ending.release(
                task.id, "failed", _shorten(report), attempt=task.attempt, again_after_ns=task.pause_ns
            )
        if task.id in self._book.mine and not self._book.is_superseded(task):
            return await self._ending.release(task.id, judged, report.result, attempt=task.attempt)
        plan = self._plans.complete(task, version, judged, report.result)
        await self._store.transact([*plan.operations, Check(self._member.layout.root)])
        return True

    def _count(self, recorded: bool, judged: str) -> None:
        self._book.count("completed" if recorded else "late")
        if recorded and judged in ("again", "dead"):
            self._book.count("retried" if judged == "again" else "dead")

    def _keep(self, task: Task) -> None:
        """Nothing of it is done here, so it takes no place of what is. Whoever did it may report its end
        after all, and an operator may take its names at another instance: it is looked at again."""
        self._book.count("kept")
        self._book.running.pop(task.id, None)
        self.kept[task.id] = task
        self._book.changed.set()

    def is_kept_as_it_is(self, task: Task) -> bool:
        """What the policy says of what its holder had when it died."""
        return self.dead_holder == "keep" or (self.dead_holder == "auto" and task.is_claim)

    async def bury(self, task: Task) -> None:
        """The holder of a running task is gone: as the policy says."""
        generation = self._member.generation
        if self.is_kept_as_it_is(task):
            if task.is_claim:
                self._admission.leave_held(task)
            else:
                self._keep(task)
            return
        cancelled = self._cancels.is_asked(task)
        requeue = self.dead_holder in ("auto", "requeue") and not task.is_claim and not cancelled
        outcome: Outcome = "cancelled" if cancelled else "deposed"
        try:
            removed = await self._ending.remove_holder(task.id, requeue=requeue, only=task, outcome=outcome)
            if not removed and task.id in self._book.mine and not self._book.is_superseded(task):
                await self._ending.release(task.id, "failed", attempt=task.attempt)  # it reported its end
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, Unknown, FormatError) as error:
            self._member.problem = str(error)
            self._member.expire(generation)


def _shorten(report: Report) -> bytes:
    """Of how it failed, what the record of a task that waits again has room for."""
    return cut(report.result.decode("utf-8", "replace")).encode()
