"""Removing what is no longer used: tasks that were over long ago, and names that nobody uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from bursar.claims.book import Idle
from bursar.claims.instance_book import InstanceBook
from bursar.claims.limits import Lost, fit
from bursar.claims.membership import Membership
from bursar.claims.reader import READS_AT_ONCE, Reader
from bursar.errors import FormatError, NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import SECOND_NS, Delete

HISTORY_NS = 3600 * SECOND_NS
DEAD_HISTORY_NS = 30 * 24 * 3600 * SECOND_NS
HISTORY_MAX = 1_000_000
DEAD_MAX = 50_000
"""Tasks that are remembered at a time, however young they are."""

NAMES_SWEEP_NS = 300 * SECOND_NS
"""A name that nobody uses, and that did not change from one sweep to the next, is removed."""

IDLE_MAX = 20_000
REMOVED_AT_ONCE = 200
"""Names, or tasks, in one transaction."""

SWEPT_SHARDS = 16
"""Of tasks that are over, in one sweep."""


class Sweeping:
    """A sweep may be left off anywhere: the next one goes on. Nothing rests on when it happens."""

    def __init__(self, member: Membership, book: InstanceBook, reader: Reader) -> None:
        self.history_ns = HISTORY_NS
        self.dead_history_ns = DEAD_HISTORY_NS
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._idle: dict[str, Idle] = {}
        self._sweeps_begun = 0
        self._is_sweeping = False
        self._shards_swept = 0
        self._over_since: dict[str, dict[str, int]] = {}

    def is_due_here(self) -> bool:
        """One instance is enough; which one does not matter, nor that it is one."""
        return not self._member.others or self._member.peers[:1] == [self._member.node]

    async def sweep_tasks(self) -> None:
        """Forget tasks that were over long ago, some shards at a time: all of them in a few minutes."""
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            for _ in range(SWEPT_SHARDS):
                shards = self._member.layout.released_shards
                await self._sweep_shard(shards[self._shards_swept % len(shards)])
                self._shards_swept += 1
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self._member.problem = str(error)  # the next sweep goes on
        self._is_sweeping = False

    async def _sweep_shard(self, shard: str) -> None:
        """What is over, and once in so many turns what was given up."""
        layout = self._member.layout
        most = HISTORY_MAX // len(layout.released_shards)
        await self._sweep_folder(f"{layout.root}/released/{shard}", self._read_end, self.history_ns, most)
        if shard in layout.task_shards:
            most = DEAD_MAX // len(layout.task_shards)
            await self._sweep_folder(
                f"{layout.root}/dead/{shard}", self._read_death, self.dead_history_ns, most
            )

    async def _sweep_folder(
        self, folder: str, read_end: Callable[[str], Awaitable[int]], kept_ns: int, most: int
    ) -> None:
        """When each was over is read once and remembered. The oldest go first."""
        store, oldest_ns = self._store, self._clock.wall() - kept_ns
        ids = await store.children(folder)
        known = self._over_since.get(folder, {})
        known = self._over_since[folder] = {id: known[id] for id in ids if id in known}
        unread = [id for id in ids if id not in known]
        for first in range(0, len(unread), READS_AT_ONCE):
            part = unread[first : first + READS_AT_ONCE]
            known.update(zip(part, await asyncio.gather(*map(read_end, part)), strict=True))
        surplus = sorted(known, key=lambda id: (known[id], id))[: max(0, len(known) - most)]
        old = dict.fromkeys([*(id for id, ended in known.items() if ended < oldest_ns), *surplus])
        at_once = fit(store, REMOVED_AT_ONCE, 1)
        for part in _cut([*old], at_once):
            await store.transact([Delete(f"{folder}/{id}") for id in part])

    async def _read_end(self, id: str) -> int:
        """When it was over; of what cannot be read, now."""
        try:
            task = await self._reader.read_released(id)
        except FormatError as error:
            self._member.problem = str(error)
            return self._clock.wall()
        return 0 if task is None else task.ended

    async def _read_death(self, id: str) -> int:
        try:
            found = await self._reader.read_dead(id)
        except FormatError as error:
            self._member.problem = str(error)
            return self._clock.wall()
        return self._clock.wall() if found is None else found[0].ended

    async def sweep_names(self) -> None:
        """Remove the names that nobody used at the last sweep and that did not change since."""
        before, self._idle = self._idle, {}
        try:
            idle = await self._find_idle()
            unused = [name for path, name in idle.items() if before.get(path) == name]
            self._idle = {path: name for path, name in idle.items() if before.get(path) != name}
            await self._remove(unused)
        except Lost:
            self._book.count("races_lost")
        except (StoreUnknownError, SessionExpiredError, FormatError) as error:
            self._member.problem = str(error)

    async def _find_idle(self) -> dict[str, Idle]:
        """At most IDLE_MAX names are looked at, the same ones twice in a row, then others."""
        self._sweeps_begun += 1
        shards = self._member.layout.name_shards
        first = self._sweeps_begun // 2 % len(shards)
        folders = [f"{self._member.layout.names}/{shard}" for shard in shards[first:] + shards[:first]]
        listed = await asyncio.gather(*(self._store.children(folder) for folder in folders))
        pairs = zip(folders, listed, strict=True)
        paths = [f"{folder}/{name}" for folder, names in pairs for name in names][:IDLE_MAX]
        found: list[Idle | None] = []
        for first in range(0, len(paths), READS_AT_ONCE):
            part = paths[first : first + READS_AT_ONCE]
            found += await asyncio.gather(*(self._reader.read_idle(path) for path in part))
        return {name.path: name for name in found if name is not None}

    async def _remove(self, unused: list[Idle]) -> None:
        floor = await self._reader.read_floor()
        at_once = fit(self._store, REMOVED_AT_ONCE, 2)
        for first in range(0, len(unused), at_once):
            generation = self._member.generation
            operations, floor = self._plans.remove(unused[first : first + at_once], floor)
            await self._store.transact(operations)
            if generation != self._member.generation:
                return
            self._plans.stand_on(floor)
            self._book.count("swept")
            self._member.world.trace("claim.swept", floor=floor.phase)


def _cut(ids: list[str], at_once: int) -> Iterator[list[str]]:
    for first in range(0, len(ids), at_once):
        yield ids[first : first + at_once]
