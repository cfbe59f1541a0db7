"""Removing what is no longer used: tasks that were over long ago, and names that nobody uses."""

from __future__ import annotations

import asyncio

from bursar.claims.book import Idle
from bursar.claims.desk import READS_AT_ONCE
from bursar.claims.ground import IDLE_MAX, KEPT_NS, Lost
from bursar.claims.takeover import Takeover
from bursar.errors import FormatError, NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import Delete

REMOVED_AT_ONCE = 200
"""Names, or tasks, in one transaction."""

SWEPT_SHARDS = 16
"""Of tasks that are over, in one sweep."""


class Sweeping(Takeover):
    """A sweep may be left off anywhere: the next one goes on. Nothing rests on when it happens."""

    async def _sweep_tasks(self) -> None:
        """Forget tasks that were over long ago, some shards at a time: all of them in a few minutes."""
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            for _ in range(SWEPT_SHARDS):
                shards = self.layout.released_shards
                await self._sweep_shard(shards[self._shards_swept % len(shards)])
                self._shards_swept += 1
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self.problem = str(error)  # the next sweep goes on
        self._is_sweeping = False

    async def _sweep_shard(self, shard: str) -> None:
        """When each was over is read once and remembered."""
        store, oldest_ns = self.world.store, self.world.clock.wall() - KEPT_NS
        folder = f"{self.layout.root}/released/{shard}"
        ids = await store.children(folder)
        known = self._over_since.get(shard, {})
        known = self._over_since[shard] = {id: known[id] for id in ids if id in known}
        unread = [id for id in ids if id not in known]
        for first in range(0, len(unread), READS_AT_ONCE):
            part = unread[first : first + READS_AT_ONCE]
            known.update(zip(part, await asyncio.gather(*map(self._read_end, part)), strict=True))
        old = [id for id, ended in known.items() if ended < oldest_ns]
        for first in range(0, len(old), REMOVED_AT_ONCE):
            await store.transact([Delete(f"{folder}/{id}") for id in old[first : first + REMOVED_AT_ONCE]])

    async def _read_end(self, id: str) -> int:
        """When it was over; of what cannot be read, now."""
        try:
            task = await self.desk.read_released(id)
        except FormatError as error:
            self.problem = str(error)
            return self.world.clock.wall()
        return 0 if task is None else task.ended

    async def _sweep_names(self) -> None:
        """Remove the names that nobody used at the last sweep and that did not change since."""
        before, self._idle = self._idle, {}
        try:
            idle = await self._find_idle()
            unused = [name for path, name in idle.items() if before.get(path) == name]
            self._idle = {path: name for path, name in idle.items() if before.get(path) != name}
            await self._remove(unused)
        except Lost:
            self._count("races_lost")
        except (StoreUnknownError, SessionExpiredError, FormatError) as error:
            self.problem = str(error)

    async def _find_idle(self) -> dict[str, Idle]:
        """At most IDLE_MAX names are looked at, the same ones twice in a row, then others."""
        self._sweeps_begun += 1
        shards = self.layout.name_shards
        first = self._sweeps_begun // 2 % len(shards)
        folders = [f"{self.layout.names}/{shard}" for shard in shards[first:] + shards[:first]]
        listed = await asyncio.gather(*(self.world.store.children(folder) for folder in folders))
        pairs = zip(folders, listed, strict=True)
        paths = [f"{folder}/{name}" for folder, names in pairs for name in names][:IDLE_MAX]
        found: list[Idle | None] = []
        for first in range(0, len(paths), READS_AT_ONCE):
            part = paths[first : first + READS_AT_ONCE]
            found += await asyncio.gather(*(self.desk.read_idle(path) for path in part))
        return {name.path: name for name in found if name is not None}

    async def _remove(self, unused: list[Idle]) -> None:
        floor = await self.desk.read_floor()
        for first in range(0, len(unused), REMOVED_AT_ONCE):
            generation = self.generation
            operations, floor = self.book.remove(unused[first : first + REMOVED_AT_ONCE], floor)
            await self.world.store.transact(operations)
            if generation != self.generation:
                return
            self.book.stand_on(floor)
            self._count("swept")
            self.world.trace("claim.swept", floor=floor.phase)
