"""Ends of tasks, as the store had them each time it was looked at."""

from __future__ import annotations

import asyncio

from bursar.claims.layout import Layout
from bursar.claims.model import Task, decode_task
from bursar.world import Store

READS_AT_ONCE = 256


class Ends:
    """Looks again and again. `changed` are tasks whose end was seen, and was another one later: written
    again, taken away, or taken away and recorded anew."""

    def __init__(self, store: Store, resource: str, *, dead: bool = False) -> None:
        self._store = store
        root = Layout(resource).root
        folders = {"released": Layout.released_shards} | ({"dead": Layout.task_shards} if dead else {})
        self._folders = [f"{root}/{kind}/{shard}" for kind, shards in folders.items() for shard in shards]
        self._counted: dict[str, int] = {}
        self._revisions: dict[str, tuple[int, int]] = {}
        self.tasks: dict[str, Task] = {}
        self.changed: dict[str, None] = {}

    async def count(self) -> int:
        """How many there are; what is new is read."""
        stats = await asyncio.gather(*map(self._store.exists, self._folders))
        counts = {
            folder: stat.children
            for folder, stat in zip(self._folders, stats, strict=True)
            if stat is not None
        }
        grown = [folder for folder, count in counts.items() if count != self._counted.get(folder, 0)]
        for folder in grown:
            await self._read(folder, only_new=True)
        self._counted = counts
        return sum(counts.values())

    async def read_all(self) -> None:
        """Once more, whatever was seen before."""
        for folder in self._folders:
            await self._read(folder, only_new=False)

    async def _read(self, folder: str, *, only_new: bool) -> None:
        paths = [f"{folder}/{id}" for id in await self._store.children(folder)]
        if not only_new:
            there = set(paths)
            seen = [path for path in self._revisions if path.startswith(f"{folder}/")]
            self.changed.update(dict.fromkeys(path for path in seen if path not in there))
        wanted = [path for path in paths if not (only_new and path in self._revisions)]
        for first in range(0, len(wanted), READS_AT_ONCE):
            part = wanted[first : first + READS_AT_ONCE]
            found = await asyncio.gather(*map(self._store.get, part))
            for path, (data, stat) in zip(part, found, strict=True):
                self._note(path, data, (stat.created, stat.modified))

    def _note(self, path: str, data: bytes, revisions: tuple[int, int]) -> None:
        if self._revisions.setdefault(path, revisions) != revisions:
            self.changed[path] = None
        self.tasks[path.rpartition("/")[2]] = decode_task(path, data)
