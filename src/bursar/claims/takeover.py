"""Looking after tasks that nobody looks after: failover by state (section 4.4.3)."""

from __future__ import annotations

import asyncio

from bursar.claims.granting import Granting
from bursar.claims.ground import (
    LOOK_AGAIN_NS,
    RETRY_NS,
    TAKE_AT_ONCE,
    Lost,
    Mine,
)
from bursar.claims.layout import TASK_SHARDS, is_claim_id, node_name, share_of
from bursar.claims.model import State, Task
from bursar.errors import (
    FormatError,
    SessionExpiredError,
    StoreUnknownError,
)


class Takeover(Granting):
    """Finds tasks without a mark, marks them, and goes on from their states."""

    async def _look_after(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self._stopping:
                return
            if self._session == 0:
                # Even if the store did not end it: with the session go the marks of everything that
                # was forgotten, so that somebody finds it.
                await self._renew(self._left)
                await self._join()
            generation = self._generation
            try:
                await self._take_over(generation)
            except SessionExpiredError:
                self._expired(generation)
            except StoreUnknownError:
                self._look.set()
                await self.world.clock.sleep(RETRY_NS)

    async def _take_over(self, generation: int) -> None:
        store, layout = self.world.store, self.layout
        self._instances = await store.children(layout.instances)
        self._others = max(0, len(self._instances) - 1)
        await store.sync()
        await self._settle_unsure(generation)
        tasks, busy = [
            await asyncio.gather(*(store.children(f"{layout.root}/{kind}/{shard}") for shard in TASK_SHARDS))
            for kind in ("tasks", "busy")
        ]
        found = []
        for ids, marked in zip(tasks, busy, strict=True):
            taken = set(marked)
            found += [id for id in ids if id not in taken and id not in self.mine and self._minds(id)]
        found = self._divide(found)
        for first in range(0, len(found), TAKE_AT_ONCE):
            if generation != self._generation:
                return
            await self._take(found[first : first + TAKE_AT_ONCE], generation)

    def _divide(self, found: list[str]) -> list[str]:
        """Instances that look at the same moment do not grab at the same tasks: each takes its share
        at once, and what another has not taken by the next look."""
        mine = node_name(self.me)
        if mine not in self._instances or not self._others:
            return found
        place, count = self._instances.index(mine), len(self._instances)
        taken = [id for id in found if id in self._passed or share_of(id, count) == place]
        chosen = set(taken)
        self._passed = dict.fromkeys(id for id in found if id not in chosen)
        if self._passed:
            self._spawn(self._look_later(), "look")
        return taken

    async def _look_later(self) -> None:
        await self.world.clock.sleep(LOOK_AGAIN_NS)
        self._look.set()

    def _minds(self, id: str) -> bool:
        """Without a tracker nothing can be done here: tasks are left to instances that have one."""
        return self._tracker is not None or is_claim_id(id)

    async def _settle_unsure(self, generation: int) -> None:
        """Tasks that may bear this session's mark without being looked after: the reply was lost."""
        for id in list(self._unsure):
            mark = await self.world.store.exists(self.layout.busy(id))
            ours = mark is not None and mark.owner == self.world.store.session
            found = await self._read_taken(id) if ours and id not in self.mine else None
            if generation != self._generation:
                return
            del self._unsure[id]
            if found is not None and id not in self.mine:
                self._adopt(*found)

    async def _take(self, ids: list[str], generation: int) -> None:
        """Mark them, all at once if no other instance is at it, and go on from their states."""
        try:
            await self.world.store.transact([op for id in ids for op in self.book.take(id)])
            taken = ids
        except Lost:
            marks = await asyncio.gather(*(self._take_one(id) for id in ids))
            taken = [id for id, mark in zip(ids, marks, strict=True) if mark]
        except StoreUnknownError:
            self._unsure.update(dict.fromkeys(ids))
            return
        records = await asyncio.gather(*(self._read_taken(id) for id in taken))
        for id, found in zip(taken, records, strict=True):
            if generation != self._generation:
                return
            if found is not None and id not in self.mine:
                self._adopt(*found)

    async def _take_one(self, id: str) -> bool:
        try:
            await self.world.store.transact(self.book.take(id))
        except Lost:
            return False
        except StoreUnknownError:
            self._unsure[id] = None
            return False
        return True

    async def _read_taken(self, id: str) -> tuple[Task, int] | None:
        try:
            return await self.desk.read_task(id)
        except FormatError as error:
            self.problem = str(error)
            self._count("unreadable")
            return None

    def _adopt(self, task: Task, version: int) -> None:
        """Table 4.1."""
        self.world.trace("claim.adopted", task=task.id, state=str(task.state), attempt=task.attempt)
        if task.state is State.PENDING and task.is_claim:
            # Whoever waited for it is gone, or is told that its session was lost.
            self._spawn(self._withdraw_stored(task.id, "cancelled"), "orphan")
            return
        if task.state is State.PENDING:
            self._admit(Mine(task, version))
            return
        self.mine[task.id] = Mine(task, version)
        if not task.is_claim:
            self._running[task.id] = None
        if task.state is State.DONE:
            self._spawn(self.release(task.id, task.outcome or "failed"), "finish")
        elif not task.is_claim:
            self._spawn(self._resume(task), "resume")
        elif task.holder == self.me and task.id in self._held:
            return  # held by this very process: only the session was lost
        else:
            self._spawn(self._bury(task), "bury")
