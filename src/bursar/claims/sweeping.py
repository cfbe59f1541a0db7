"""Removing what is no longer used: tasks that were over long ago, and names that nobody uses."""

from __future__ import annotations

import asyncio

from bursar.claims.book import Idle
from bursar.claims.desk import READS_AT_ONCE
from bursar.claims.ground import IDLE_MAX, KEPT_NS, SWEPT_AT_ONCE, Lost
from bursar.claims.takeover import Takeover
from bursar.errors import FormatError, NodeMissingError, SessionExpiredError, StoreUnknownError

REMOVED_AT_ONCE = 200
"""Names in one transaction."""


class Sweeping(Takeover):
    """A sweep may be left off anywhere: the next one goes on. Nothing rests on when it happens."""

    async def _sweep_tasks(self, rounds: int) -> None:
        """Forget tasks that were over long ago, a shard at a time."""
        shards = self.layout.task_shards
        folder = f"{self.layout.root}/released/{shards[rounds % len(shards)]}"
        store, oldest_ns = self.world.store, self.world.clock.wall() - KEPT_NS
        try:
            for id in (await store.children(folder))[:SWEPT_AT_ONCE]:
                task = await self.desk.read_released(id)
                if task is not None and task.ended < oldest_ns:
                    await store.delete(f"{folder}/{id}")
        except (NodeMissingError, StoreUnknownError, SessionExpiredError, FormatError) as error:
            self.problem = str(error)  # the next sweep goes on

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
