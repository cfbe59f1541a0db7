"""Looking after tasks that nobody looks after: failover by state (section 4.4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from bursar.claims.desk import Record
from bursar.claims.granting import Granting
from bursar.claims.ground import (
    END_AGAIN_NS,
    HELPINGS,
    LOOK_AGAIN_NS,
    RETRY_NS,
    TAKE_AT_ONCE,
    Lost,
    Mine,
)
from bursar.claims.layout import divide, is_claim_id, is_worker, shard_of
from bursar.claims.model import State, Task
from bursar.errors import (
    FormatError,
    NodeMissingError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)


class Takeover(Granting):
    """Finds tasks without a mark, marks them, and goes on from their states."""

    async def _look_after(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self.is_stopping:
                return
            if self._session == 0:
                # Even if the store did not end it: with the session go the marks of everything that
                # was forgotten, so that somebody finds it.
                await self._renew(self._left)
                await self._join()
            generation = self.generation
            try:
                await self._take_over(generation)
            except SessionExpiredError:
                self.expire(generation)
            except StoreUnknownError:
                self._look_everywhere()
                self._offers.update(dict.fromkeys(self.layout.task_shards))
                await self.world.clock.sleep(RETRY_NS)

    async def _take_over(self, generation: int) -> None:
        store = self.world.store
        shards, self._shards = tuple(self._shards), {}
        offers, self._offers = tuple(self._offers), {}
        if shards:
            self._instances = await store.children(self.layout.instances)
            was_alone, self._others = not self._others, max(0, len(self._instances) - 1)
            if was_alone and self._others:
                self.queue.touch_reserved(self.queue.places)
        self._ages.note(await store.sync(), self.world.clock.now())
        if self._draining or self._asked:
            await self._share()
        await self._settle_unsure(generation)
        if shards:
            await self._look_at_kept(generation)
            found = await self._find_unmarked(shards)
            await self._take_all(self._divide(found, shards, offered=False), generation, offered=False)
        if offers:
            found = await self._find_offered(offers)
            await self._take_all(self._divide(found, offers, offered=True), generation, offered=True)

    async def _take_all(self, mine: list[str], generation: int, *, offered: bool) -> None:
        for first in range(0, len(mine), TAKE_AT_ONCE):
            if generation != self.generation or (first and self._shards):
                (self._offers if offered else self._shards).update(dict.fromkeys(self.layout.task_shards))
                self._look.set()
                return  # others may have come or gone: divide anew
            await self._take(mine[first : first + TAKE_AT_ONCE], generation, offered=offered)

    async def _find_offered(self, shards: tuple[str, ...]) -> list[str]:
        """Tasks that were submitted elsewhere, or left by others."""
        if self._tracker is None or self._draining:
            return []
        listed = await self._list("offered", shards)
        for shard, ids in listed.items():
            for id in ids:
                if id in self.mine:  # it was found without its mark before
                    self.spawn(self._end_offer(id), "offer")
            self._foreign[shard] = self._foreign.get(shard, False) or bool(ids)
        return [id for ids in listed.values() for id in ids if id not in self.mine]

    async def _end_offer(self, id: str) -> None:
        """Somebody looks after the task, or it is over."""
        try:
            await self.world.store.delete(self.layout.offered(id))
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self.problem = str(error)

    async def _find_unmarked(self, shards: tuple[str, ...]) -> list[str]:
        """Tasks that nobody looks after. Marks are listed only where there are others' tasks."""
        waiting = {id: mine.version for id, mine in self.mine.items() if self._is_recorded(mine)}
        tasks = await self._list("tasks", shards)
        self._largest_shard = max(map(len, tasks.values()), default=0)
        for id in waiting:
            shard = shard_of(id, self.layout.task_shards)
            if shard in tasks and id not in tasks[shard]:
                await self._forget_if_gone(id, waiting[id])
        others = {
            shard: wanted
            for shard, ids in tasks.items()
            if (wanted := [id for id in ids if id not in self.mine and self._minds(id)])
        }
        self._foreign.update({shard: shard in others for shard in shards})
        marks = await self._list("busy", tuple(others))
        return [id for shard, ids in others.items() for id in ids if id not in marks[shard]]

    def _is_recorded(self, mine: Mine) -> bool:
        """Whether it waits, and the store has it."""
        busy = mine.granting or mine.recording or mine.version is None
        return not busy and mine.task.state is State.PENDING

    async def _forget_if_gone(self, id: str, version: int | None) -> None:
        """Another process took it back: it neither waits nor reserves any more."""
        mine = self.mine.get(id)
        if mine is None or not self._is_recorded(mine) or mine.version != version:
            return
        if await self.desk.read_task(id) is None and self.mine.get(id) is mine and self._is_recorded(mine):
            self.claims.fail(id, Refused("the claim was cancelled"))
            self._drop(id)

    async def _list(self, kind: str, shards: tuple[str, ...]) -> dict[str, dict[str, None]]:
        folders = [f"{self.layout.root}/{kind}/{shard}" for shard in shards]
        listed = await asyncio.gather(*(self.world.store.children(folder) for folder in folders))
        return {shard: dict.fromkeys(ids) for shard, ids in zip(shards, listed, strict=True)}

    def _divide(self, found: list[str], shards: tuple[str, ...], *, offered: bool) -> list[str]:
        """Instances that look at the same moment do not grab at the same tasks: each takes its share
        at once, some more if it has nothing to do, and what another has not taken for a while."""
        now_ns = self.world.clock.now()
        passed = self._passed_offers if offered else self._passed
        since = {id: passed.get(id, now_ns) for id in found}
        self._given = {id: until_ns for id, until_ns in self._given.items() if until_ns > now_ns}
        own = [id for id in found if self._falls_to(id) == self._node and id not in self._given]
        late = [id for id in found if now_ns - since[id] >= LOOK_AGAIN_NS]
        more = found[: self._helping()] if self._is_idle() else []
        chosen = dict.fromkeys([*own, *late, *more])
        kept = {id: since[id] for id in found if id not in chosen}
        if any(id not in passed for id in kept):
            self.spawn(self._look_later(kept, offered=offered), "look")
        elsewhere = {
            id: at for id, at in passed.items() if shard_of(id, self.layout.task_shards) not in shards
        }
        passed.clear()
        passed.update(elsewhere | kept)
        return list(chosen)

    def _falls_to(self, id: str) -> str:
        """A claim whose process is gone to any instance, a task to one that can have it done."""
        among = self._instances if is_claim_id(id) else self._workers()
        return divide(id, among) if among else self._node

    def _workers(self) -> list[str]:
        return [
            node
            for node in self._instances
            if is_worker(node) and not (self._draining and node == self._node)
        ]

    async def _share(self) -> None:
        """What waits here, and is better off elsewhere, is left to others."""
        others = [node for node in self._workers() if node != self._node]
        waiting = [id for id in self.queue.entries if self._is_marked(self.mine[id])]
        if self._draining and others:
            await self._leave_to_others(waiting)
        elif self._asked:
            self._asked = False
            asking, _ = await self.world.store.get(self.layout.asking)
            if self._is_full() and asking.decode("utf-8", "replace") in others:
                giving = waiting[len(waiting) // 2 :][-self._helping() :]
                self._given = dict.fromkeys(giving, self.world.clock.now() + LOOK_AGAIN_NS)
                await self._leave_to_others(giving)

    def _helping(self) -> int:
        """How many tasks go from one instance to another at a time: enough for a while."""
        return HELPINGS * (self._running_max or 1)

    async def _ask(self) -> None:
        """Nothing to do here, and others have tasks: whoever has too many gives some."""
        try:
            await self.world.store.set(self.layout.asking, self._node.encode())
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self.problem = str(error)  # it asks again

    async def _leave_to_others(self, ids: list[str]) -> None:
        for first in range(0, len(ids), TAKE_AT_ONCE):
            await self._unmark_all(ids[first : first + TAKE_AT_ONCE])

    async def _unmark_all(self, ids: list[str]) -> None:
        ids = [id for id in ids if id in self.queue.entries]
        for id in ids:
            self._drop(id)
        try:
            await self.world.store.transact([op for id in ids for op in self.book.leave(id)])
            self._count("handed_over")
        except (*Lost, StoreUnknownError):
            self._unsure.update(dict.fromkeys(ids))  # its next look finds whose they are

    async def _look_later(self, ids: Iterable[str], *, offered: bool) -> None:
        """Where these are."""
        shards = dict.fromkeys(shard_of(id, self.layout.task_shards) for id in ids)
        await self.world.clock.sleep(LOOK_AGAIN_NS)
        (self._offers if offered else self._shards).update(shards)
        self._look.set()

    def _minds(self, id: str) -> bool:
        """Without a tracker nothing can be done here: tasks are left to instances that have one."""
        return is_claim_id(id) or (self._tracker is not None and not self._draining)

    async def _settle_unsure(self, generation: int) -> None:
        """Tasks that may bear this session's mark without being looked after: the reply was lost."""
        for id in list(self._unsure):
            mark = await self.world.store.exists(self.layout.busy(id))
            ours = mark is not None and mark.owner == self.world.store.session
            found = await self._read_taken(id) if ours and id not in self.mine else None
            if generation != self.generation:
                return
            del self._unsure[id]
            if found is not None and id not in self.mine:
                self._adopt(found)

    async def _look_at_kept(self, generation: int) -> None:
        """Tasks whose holders died, and that the policy keeps as they are, for as long as they are so."""
        for id, task in list(self._kept.items()):
            found = await self._read_taken(id)
            if generation != self.generation:
                return
            same = found is not None and found[0] == task
            if self._kept.get(id) is not task or (same and self._is_kept_as_it_is(task)):
                continue
            del self._kept[id]
            if same:
                self.spawn(self._bury(task), "bury")  # the policy says something else by now
            elif found is not None and found[0].state is State.DONE:
                self._adopt(found)
            else:
                self._taken_away(task)

    async def _take(self, ids: list[str], generation: int, *, offered: bool) -> None:
        """Mark them, all at once if no other instance is at it, and go on from their states."""
        take = partial(self.book.take, offered=offered)
        try:
            await self.world.store.transact([op for id in ids for op in take(id)])
            taken = ids
        except Lost:
            marks = await asyncio.gather(*(self._take_one(id, offered=offered) for id in ids))
            taken = [id for id, mark in zip(ids, marks, strict=True) if mark]
        except StoreUnknownError:
            self._unsure.update(dict.fromkeys(ids))
            self._look_everywhere()
            return
        records = await asyncio.gather(*(self._read_taken(id) for id in taken))
        for id, found in zip(taken, records, strict=True):
            if generation != self.generation:
                return
            if found is not None and id not in self.mine:
                self._adopt(found)

    async def _take_one(self, id: str, *, offered: bool) -> bool:
        try:
            await self.world.store.transact(self.book.take(id, offered=offered))
        except Lost:
            if offered:
                await self._end_stale_offer(id)
            return False
        except StoreUnknownError:
            self._unsure[id] = None
            self._look_everywhere()
            return False
        return True

    async def _end_stale_offer(self, id: str) -> None:
        """An offer outlives its task, or its task's being taken, if that was found in another way."""
        is_marked = await self.world.store.exists(self.layout.busy(id)) is not None
        if is_marked or await self.world.store.exists(self.layout.task(id)) is None:
            await self._end_offer(id)

    async def _read_taken(self, id: str) -> Record | None:
        try:
            return await self.desk.read_record(id)
        except FormatError as error:
            self.problem = str(error)
            self._count("unreadable")
            return None

    def _adopt(self, record: Record) -> None:
        """Table 4.1."""
        task = record.task
        self.world.trace("claim.adopted", task=task.id, state=str(task.state), attempt=task.attempt)
        if task.state is State.PENDING and task.is_claim:
            # Whoever waited for it is gone, or is told that its session was lost.
            self.spawn(self._withdraw_orphan(task.id, self.generation), "orphan")
            return
        if task.state is State.PENDING:
            self._admit(self._make_mine(record))
            return
        self.mine[task.id] = self._make_mine(record)
        if not task.is_claim:
            self._running[task.id] = None
        if task.state is State.DONE:
            self.spawn(self._finish(task, self.generation), "finish")
        elif not task.is_claim:
            self.spawn(self._resume(task), "resume")
        elif task.holder == self.me and self.claims.is_wanted(task.id):
            return  # held by this very process: only the session was lost
        else:
            self.spawn(self._bury(task), "bury")

    def _make_mine(self, record: Record) -> Mine:
        since_ns = self._ages.since(record.created, self.world.clock.now())
        return Mine(record.task, record.version, record.created, since_ns)

    async def _withdraw_orphan(self, id: str, generation: int) -> None:
        """It bears this instance's mark, so nobody else will."""
        while generation == self.generation and not self.is_stopping:
            try:
                await self.withdraw_stored(id, "cancelled")
                return
            except (StoreUnknownError, Unknown) as error:
                self.problem = str(error)
            except FormatError as error:
                self.problem = str(error)
                return
            await self.world.clock.sleep(END_AGAIN_NS)

    async def _finish(self, task: Task, generation: int) -> None:
        """Give back the names of a task whose end is recorded."""
        while generation == self.generation and not self.is_stopping:
            try:
                await self.release(task.id, task.outcome or "failed")
                return
            except (StoreUnknownError, Unknown) as error:
                self.problem = str(error)
            except FormatError as error:
                self.problem = str(error)
                return
            await self.world.clock.sleep(END_AGAIN_NS)
