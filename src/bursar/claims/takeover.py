"""Looking after tasks that nobody looks after: failover by state (section 4.4.3)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from bursar.claims.admission import Admission
from bursar.claims.ages import Ages
from bursar.claims.asking import Asking
from bursar.claims.cancels import Cancels
from bursar.claims.counting import Counting
from bursar.claims.division import Division
from bursar.claims.doing import Doing
from bursar.claims.ending import Ending
from bursar.claims.instance_book import InstanceBook, Mine
from bursar.claims.layout import is_claim_id, shard_of
from bursar.claims.limits import END_AGAIN_NS, RETRY_NS, TAKE_AT_ONCE, Lost, fit
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.reader import Reader, Record
from bursar.claims.submission import Submission
from bursar.errors import (
    FormatError,
    NodeMissingError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions


class Takeover:
    """Finds tasks without a mark, marks them, and goes on from their states."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        looking: Looking,
        division: Division,
        admission: Admission,
        ending: Ending,
        submission: Submission,
        doing: Doing,
        claims: Acquisitions,
        cancels: Cancels,
        counting: Counting,
        asking: Asking,
    ) -> None:
        self.largest_shard = 0
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._looking = looking
        self._division = division
        self._admission = admission
        self._ending = ending
        self._submission = submission
        self._doing = doing
        self._claims = claims
        self._cancels = cancels
        self._counting = counting
        self._asking = asking
        self._foreign: dict[str, bool] = {}
        self._ages = Ages()

    def begin(self) -> None:
        """Look, and hear of what is to be looked at, from the beginning of a session on."""
        member, layout = self._member, self._member.layout
        self._looking.everywhere()
        self._counting.begin()
        member.spawn(member.watch(layout.instances, self._looking.everywhere), "watch")
        for shard in layout.task_shards if self._book.works else ():
            hear = partial(self._looking.among, (shard,), offered=True)
            member.spawn(member.watch(layout.offers(shard), hear), "watch")
        if self._book.works:
            member.spawn(member.watch(layout.cancels, self._cancels.hear), "watch")
        if self._book.running_max is not None:
            member.spawn(member.watch(layout.asking, self._division.hear), "watch")

    def others_have_tasks(self) -> bool:
        return any(self._foreign.values())

    async def look_after(self) -> None:
        while True:
            await self._looking.wanted.wait()
            self._looking.wanted.clear()
            if self._member.is_stopping:
                return
            if not self._member.has_session:
                await self._member.join_again()
                self.begin()
            generation = self._member.generation
            try:
                await self._take_over(generation)
            except SessionExpiredError:
                self._member.expire(generation)
            except StoreUnknownError:
                self._looking.everywhere()
                self._looking.among(self._member.layout.task_shards, offered=True)
                await self._clock.sleep(RETRY_NS)

    async def _take_over(self, generation: int) -> None:
        shards, offers = self._looking.drain()
        if shards:
            await self._see_peers()
        self._ages.note(await self._store.sync(), self._clock.now())
        await self._division.share()
        await self._settle_unsure(generation)
        if shards:
            await self._look_at_kept(generation)
            found = await self._find_unmarked(shards)
            await self._take_all(found, shards, generation, offered=False)
        if offers:
            found = await self._find_offered(offers)
            await self._take_all(found, offers, generation, offered=True)

    async def _see_peers(self) -> None:
        """Who else is there. An instance that was alone reserved for itself; now the store is told."""
        member, was_alone = self._member, not self._member.others
        member.peers = await self._store.children(member.layout.instances)
        if was_alone and member.others:
            self._book.queue.touch_reserved(self._book.queue.places)

    async def _take_all(
        self, found: list[str], shards: tuple[str, ...], generation: int, *, offered: bool
    ) -> None:
        mine = self._division.choose(found, shards, offered=offered)
        at_once = fit(self._store, TAKE_AT_ONCE, 3)
        for first in range(0, len(mine), at_once):
            if generation != self._member.generation or (first and self._looking.shards):
                self._looking.among(self._member.layout.task_shards, offered=offered)
                return  # others may have come or gone: divide anew
            await self._take(mine[first : first + at_once], generation, offered=offered)

    async def _find_offered(self, shards: tuple[str, ...]) -> list[str]:
        """Tasks that were submitted elsewhere, or left by others."""
        if not self._book.works or self._book.draining:
            return []
        listed = await self._list("offered", shards)
        for shard, ids in listed.items():
            for id in ids:
                if id in self._book.mine:  # it was found without its mark before
                    self._member.spawn(self._end_offer(id), "offer")
            self._foreign[shard] = self._foreign.get(shard, False) or bool(ids)
        return [id for ids in listed.values() for id in ids if id not in self._book.mine]

    async def _end_offer(self, id: str) -> None:
        """Somebody looks after the task, or it is over."""
        try:
            await self._store.delete(self._member.layout.offered(id))
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self._member.problem = str(error)

    async def _find_unmarked(self, shards: tuple[str, ...]) -> list[str]:
        """Tasks that nobody looks after. Marks are listed only where there are others' tasks."""
        waiting = {id: mine.version for id, mine in self._book.mine.items() if mine.is_recorded()}
        tasks = await self._list("tasks", shards)
        self.largest_shard = max(map(len, tasks.values()), default=0)
        for id in waiting:
            shard = shard_of(id, self._member.layout.task_shards)
            if shard in tasks and id not in tasks[shard]:
                await self._forget_if_gone(id, waiting[id])
        others = {
            shard: wanted
            for shard, ids in tasks.items()
            if (wanted := [id for id in ids if id not in self._book.mine and self._minds(id)])
        }
        self._foreign.update({shard: shard in others for shard in shards})
        marks = await self._list("busy", tuple(others))
        return [id for shard, ids in others.items() for id in ids if id not in marks[shard]]

    async def _forget_if_gone(self, id: str, version: int | None) -> None:
        """Another process took it back: it neither waits nor reserves any more."""
        mine = self._book.mine.get(id)
        if mine is None or not mine.is_recorded() or mine.version != version:
            return
        if (
            await self._reader.read_task(id) is None
            and self._book.mine.get(id) is mine
            and mine.is_recorded()
        ):
            self._claims.fail(id, Refused("the claim was cancelled"))
            self._book.drop(id)

    async def _list(self, kind: str, shards: tuple[str, ...]) -> dict[str, dict[str, None]]:
        folders = [f"{self._member.layout.root}/{kind}/{shard}" for shard in shards]
        listed = await asyncio.gather(*(self._store.children(folder) for folder in folders))
        return {shard: dict.fromkeys(ids) for shard, ids in zip(shards, listed, strict=True)}

    def _minds(self, id: str) -> bool:
        """Without a tracker nothing can be done here: tasks are left to instances that have one."""
        return is_claim_id(id) or (self._book.works and not self._book.draining)

    async def _settle_unsure(self, generation: int) -> None:
        """Tasks that may bear this session's mark without being looked after: the reply was lost."""
        for id in list(self._looking.unsure):
            mark = await self._store.exists(self._member.layout.busy(id))
            ours = mark is not None and mark.owner == self._store.session
            found = await self._read_taken(id) if ours and id not in self._book.mine else None
            if generation != self._member.generation:
                return
            del self._looking.unsure[id]
            if found is not None and id not in self._book.mine:
                self._adopt(found)

    async def _look_at_kept(self, generation: int) -> None:
        """Tasks whose holders died, and that the policy keeps as they are, for as long as they are so."""
        for id, task in list(self._doing.kept.items()):
            found = await self._read_taken(id)
            if generation != self._member.generation:
                return
            same = found is not None and found[0].state is task.state and found[0].is_same_grant(task)
            if self._doing.kept.get(id) is not task or (same and self._doing.is_kept_as_it_is(task)):
                continue
            del self._doing.kept[id]
            if same:
                self._member.spawn(self._doing.bury(task), "bury")  # the policy says something else by now
            elif found is not None and found[0].state is State.DONE:
                self._adopt(found)
            else:
                self._ending.taken_away(task)

    async def _take(self, ids: list[str], generation: int, *, offered: bool) -> None:
        """Mark them, all at once if no other instance is at it, and go on from their states."""
        take = partial(self._plans.take, offered=offered)
        try:
            await self._store.transact([op for id in ids for op in take(id)])
            taken = ids
        except Lost:
            marks = await asyncio.gather(*(self._take_one(id, offered=offered) for id in ids))
            taken = [id for id, mark in zip(ids, marks, strict=True) if mark]
        except StoreUnknownError:
            self._looking.doubt(ids)
            return
        try:
            records = await asyncio.gather(*(self._read_taken(id) for id in taken))
        except StoreUnknownError:
            self._looking.doubt(taken)  # they bear this instance's mark, so nobody else looks
            raise
        for id, found in zip(taken, records, strict=True):
            if generation != self._member.generation:
                return
            if found is not None and id not in self._book.mine:
                self._adopt(found)

    async def _take_one(self, id: str, *, offered: bool) -> bool:
        try:
            await self._store.transact(self._plans.take(id, offered=offered))
        except Lost:
            if offered:
                await self._end_stale_offer(id)
            return False
        except StoreUnknownError:
            self._looking.doubt([id])
            return False
        return True

    async def _end_stale_offer(self, id: str) -> None:
        """An offer outlives its task, or its task's being taken, if that was found in another way."""
        is_marked = await self._store.exists(self._member.layout.busy(id)) is not None
        if is_marked or await self._store.exists(self._member.layout.task(id)) is None:
            await self._end_offer(id)

    async def _read_taken(self, id: str) -> Record | None:
        try:
            return await self._reader.read_record(id)
        except FormatError as error:
            self._member.problem = str(error)
            self._book.count("unreadable")
            return None

    def _adopt(self, record: Record) -> None:
        """Table 4.1."""
        task = record.task
        self._member.world.trace("claim.adopted", task=task.id, state=str(task.state), attempt=task.attempt)
        if task.state is State.PENDING and task.is_claim:
            # Whoever waited for it is gone, or is told that its session was lost.
            self._member.spawn(self._withdraw_orphan(task.id, self._member.generation), "orphan")
            return
        if task.state is State.PENDING:
            self._admission.admit(self._make_mine(record))
            return
        self._book.mine[task.id] = self._make_mine(record)
        self._asking.settle(task.id)
        if not task.is_claim:
            self._book.running[task.id] = None
        if task.state is State.DONE:
            self._member.spawn(self._finish(task, self._member.generation), "finish")
        elif not task.is_claim:
            self._member.spawn(self._doing.resume(task), "resume")
        elif task.holder == self._plans.me and self._claims.is_wanted(task.id):
            self._claims.holdings.refresh(task)  # held by this very process: only the session was lost
        else:
            self._member.spawn(self._doing.bury(task), "bury")

    def _make_mine(self, record: Record) -> Mine:
        since_ns = self._ages.since(record.created, self._clock.now())
        return Mine(record.task, record.version, record.created, since_ns)

    async def _withdraw_orphan(self, id: str, generation: int) -> None:
        """It bears this instance's mark, so nobody else will."""
        while generation == self._member.generation and not self._member.is_stopping:
            try:
                await self._submission.withdraw(id, "cancelled")
                return
            except (StoreUnknownError, Unknown) as error:
                self._member.problem = str(error)
            except FormatError as error:
                self._member.problem = str(error)
                return
            await self._clock.sleep(END_AGAIN_NS)

    async def _finish(self, task: Task, generation: int) -> None:
        """Give back the names of a task whose end is recorded."""
        while generation == self._member.generation and not self._member.is_stopping:
            try:
                await self._ending.release(task.id, task.outcome or "failed")
                return
            except (StoreUnknownError, Unknown) as error:
                self._member.problem = str(error)
            except FormatError as error:
                self._member.problem = str(error)
                return
            await self._clock.sleep(END_AGAIN_NS)
