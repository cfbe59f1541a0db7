"""Granting: many tasks in one transaction, many transactions in flight, losers try again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bursar.claims.admission import Admission
from bursar.claims.asking import Asking
from bursar.claims.book import NO_HEIRS, Draft, Heir, Plan, count_most, measure, names_of
from bursar.claims.counting import Counting
from bursar.claims.doing import Doing
from bursar.claims.instance_book import LOST, InstanceBook, Mine
from bursar.claims.limits import BATCH_OPERATIONS, IN_FLIGHT_MAX, SMALL_IN_FLIGHT_MAX, Lost
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.names import Names
from bursar.claims.reader import Reader
from bursar.claims.recording import Recording
from bursar.claims.submission import Submission
from bursar.errors import (
    BursarError,
    FormatError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    TooLargeError,
    Unknown,
)

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions


class Granting:
    """Carries the book's grants to the store."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        names: Names,
        admission: Admission,
        submission: Submission,
        doing: Doing,
        claims: Acquisitions,
        counting: Counting,
        asking: Asking,
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._names = names
        self._counting = counting
        self._asking = asking
        self._admission = admission
        self._submission = submission
        self._doing = doing
        self._claims = claims
        self._recording = Recording(member, book, reader, admission, claims)
        self._in_flight = 0
        self._deferred: list[Mine] = []

    def forget(self) -> None:
        self._in_flight = 0
        self._deferred.clear()

    async def pump(self) -> None:
        """Grant whenever somebody may be granted."""
        while True:
            await self._book.changed.wait()
            self._book.changed.clear()
            # Let everything that is ready in this turn of the loop join the same transaction.
            await asyncio.sleep(0)
            self._grant_now()
            self._counting.note()
            self._asking.judge()
            self._recording.record_waiting()
            self._names.follow_blockers()

    def _grant_now(self) -> None:
        """Grant whoever can be granted, as transactions in flight."""
        was_full = False
        while self._in_flight < (IN_FLIGHT_MAX if was_full else SMALL_IN_FLIGHT_MAX):
            plans, was_full = self._plan_batch()
            if not plans:
                return
            self._in_flight += 1
            self._member.spawn(self._commit(plans), "grant")

    def _plan_batch(self) -> tuple[list[Plan], bool]:
        """As many as fit one transaction, and whether they fill it. A name that a transaction in flight
        writes is left alone until that is over."""
        plans: list[Plan] = []
        draft = self._plans.draft()
        operations = 0
        room = self._store.operations_max
        while operations < BATCH_OPERATIONS and not self._book.is_full():
            id = self._book.queue.pick()
            if id is None:
                break
            mine = self._book.mine[id]
            wanting = mine.wanting
            if plans and operations + count_most(wanting) > room:
                operations = BATCH_OPERATIONS  # there is more than fits
                break
            self._book.queue.leave(id)
            names = wanting.names if mine.more is None else [name for name, _ in wanting.needs]
            if any(name not in self._plans.views for name in names):
                self._wait_again(mine)
                continue
            if any(name in self._book.written for name in names):
                self._deferred.append(mine)
                if mine.more is not None:
                    mine.more.granting = True
                continue
            if not self._plans.lots.covers(draft.purse, wanting):
                self._book.supply((name for name, _ in wanting.counts), draft.purse)
                self._wait_again(mine)
                continue
            plan = self._plan(mine, draft)
            if plan is None:
                # They have an owner, of which the queue knows nothing: read them again.
                self._plans.forget(names)
                self._wait_again(mine)
                continue
            self._book.begin_granting(mine)
            self._book.supply((name for name, _ in wanting.counts), draft.purse)
            plans.append(plan)
            operations += len(plan.operations)
        self._book.supply(draft.purse.left)
        self._book.written.update(dict.fromkeys(draft.changed))
        return plans, operations >= BATCH_OPERATIONS

    def _plan(self, mine: Mine, draft: Draft) -> Plan | None:
        heirs = self._heirs(mine)
        if mine.more is None:
            return self._plans.grant(mine.task, mine.version, draft, heirs, begun=self._clock.wall())
        assert mine.version is not None, "it runs"
        return self._plans.grow(mine.task, mine.more.wanted, mine.version, draft, heirs)

    def _wait_again(self, mine: Mine) -> None:
        """Its names are to be read before it is tried again."""
        if mine.more is None:
            self._admission.admit(mine)
        else:
            mine.more.granting = True
            self._member.spawn(self._read_again(mine, self._member.generation), "more")

    async def _read_again(self, mine: Mine, generation: int) -> None:
        try:
            await self._names.refresh(name for name, _ in mine.wanting.needs)
        except SessionExpiredError:
            self._member.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
        if generation == self._member.generation:
            self._enter_more(mine)

    def _enter_more(self, mine: Mine) -> None:
        if self._book.mine.get(mine.task.id) is mine:
            self._asking.enter_again(mine)
        else:
            self._asking.fail(mine.wanting, Refused(LOST))

    def _heirs(self, mine: Mine) -> Mapping[str, Heir]:
        """Alone, an instance reserves for itself."""
        return self._book.find_heirs(mine.wanting) if self._member.others else NO_HEIRS

    def _end_batch(self, plans: list[Plan]) -> None:
        for name in plans[0].draft.changed:
            self._book.written.pop(name, None)
        self._book.supply(plans[0].draft.purse.left)
        self._in_flight -= 1
        deferred, self._deferred = self._deferred, []
        for mine in deferred:
            if mine.more is not None:
                self._enter_more(mine)
            elif self._book.mine.get(mine.task.id) is mine:
                self._admission.enter(mine)
        self._book.changed.set()

    async def _commit(self, plans: list[Plan]) -> None:
        generation = self._member.generation
        error: BursarError | None = None
        granted: list[Plan] = []
        try:
            granted = await self._attempt(plans)
        except (SessionExpiredError, StoreUnknownError, TooLargeError) as raised:
            error = raised
        if generation != self._member.generation:
            return
        if granted:
            self._plans.confirm(plans[0].draft, self._clock.now())
            self._names.reservations.remember(plans[0].draft)
        else:
            self._plans.forget(names_of(plans))
            self._plans.lots.doubt(plans[0].draft.purse)
        self._end_batch(plans)
        if isinstance(error, TooLargeError):
            self._refuse(plans, error)
        elif error is not None:
            # What this instance looks after is unknown now: look anew.
            self._member.problem = str(error)
            self._member.expire(generation)
        elif granted:
            for plan in granted:
                self._granted(plan)
        else:
            await self._try_again(plans, generation)

    async def _attempt(self, plans: list[Plan]) -> list[Plan]:
        """The plans that happened."""
        try:
            await self._store.transact(self._plans.join(plans))
        except Lost:
            self._book.count("races_lost")
            return []
        except StoreUnknownError:
            return plans if await self._reader.happened(plans[0]) else []
        return plans

    def _refuse(self, plans: list[Plan], error: TooLargeError) -> None:
        """The one that is too large; where there are several, the others are granted without it."""
        largest = max(plans, key=lambda plan: sum(map(measure, plan.operations)))
        for plan in plans:
            mine = self._book.mine.get(plan.id)
            if not plan.is_more:
                self._book.running.pop(plan.id, None)
            self._book.queue.vacate(plan.id, plan.task.requirements)
            self._plans.forget(plan.task.names)
            if plan.is_more:
                self._asking.fail(plan.task, Refused(f"{error} (ask for fewer names at once)"))
                continue
            if mine is None:
                continue
            mine.granting = False
            if plan is not largest:
                self._admission.admit(mine)
            elif mine.task.is_claim:
                self._claims.fail(plan.id, Refused(f"{error} (claim fewer names at once)"))
                self._book.drop(plan.id)
            else:
                self._member.spawn(self._fail_task(plan.id, f"{error} (give it fewer names)"), "refuse")

    async def _fail_task(self, id: str, why: str) -> None:
        """It can never be granted."""
        try:
            await self._submission.withdraw(id, "failed", why.encode())
        except (StoreUnknownError, Unknown, FormatError) as error:
            self._member.problem = str(error)

    async def _try_again(self, plans: list[Plan], generation: int) -> None:
        """Losers of a race: read what they need again, and let them wait on."""
        for plan in plans:
            if not plan.is_more:
                self._book.running.pop(plan.id, None)
            self._book.queue.vacate(plan.id, plan.task.requirements)
        try:
            await self._reader.repeat(self._store.sync)
            await self._names.refresh(names_of(plans))
            for plan in plans:
                await self._reenter(plan, generation)
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
            self._member.expire(generation)
        self._book.changed.set()

    async def _reenter(self, plan: Plan, generation: int) -> None:
        mine = self._book.mine.get(plan.id)
        if plan.is_more:
            await self._reenter_more(plan, generation)
            return
        if mine is None or generation != self._member.generation:
            return
        mine.granting = False
        if mine.version is None:
            if mine.task.key:
                self._claims.look_again(plan.id)  # another process may have used the key
            else:
                self._admission.enter(mine)
            return
        found = await self._reader.read_task(plan.id)
        if generation != self._member.generation or self._book.mine.get(plan.id) is not mine:
            return
        if found is None or found[0].state is not State.PENDING:
            self._claims.fail(plan.id, Refused("the claim was cancelled"))
            self._book.drop(plan.id)  # cancelled, or another instance has it
            return
        mine.task, mine.version = found
        if mine.task.parent:
            self._admission.admit(mine)
        else:
            self._admission.enter(mine)

    async def _reenter_more(self, plan: Plan, generation: int) -> None:
        found = await self._reader.read_task(plan.id)
        mine = self._book.mine.get(plan.id)
        if generation != self._member.generation:
            return
        if mine is None or found is None or not found[0].is_same_grant(plan.task):
            self._asking.fail(plan.task, Refused(LOST))
            return
        mine.task, mine.version = found
        self._asking.enter_again(mine)

    def _grown(self, plan: Plan, after: Task) -> None:
        """It runs on, with more."""
        mine = self._book.mine.get(plan.id)
        self._book.count("grown")
        self._member.world.trace("claim.grown", task=plan.id, attempt=after.attempt)
        if mine is None or not mine.task.is_same_grant(after):
            # It ended meanwhile; its end was written before, or finds the names that it has now. It may wait
            # to be tried again, and that is another grant.
            self._book.queue.vacate(plan.id, plan.task.requirements)
            self._asking.fail(plan.task, Refused(LOST))
            return
        mine.task, mine.version, mine.more = after, plan.version + 1, None
        self._claims.holdings.refresh(after)
        self._book.queue.occupy(plan.id, plan.task.requirements)
        self._asking.granted(plan.id, after)

    def _granted(self, plan: Plan) -> None:
        assert plan.after is not None
        if plan.is_more:
            self._grown(plan, plan.after)
            return
        mine = self._book.mine[plan.id]
        mine.task, mine.version, mine.granting = plan.after, plan.version + 1, False
        self._book.queue.occupy(plan.id, mine.task.requirements)
        self._book.count("granted")
        self._member.world.trace("claim.granted", task=plan.id, attempt=mine.task.attempt)
        if mine.task.is_claim:
            self._claims.grant(mine.task)
        else:
            self._member.spawn(self._doing.run(mine.task), "run")
