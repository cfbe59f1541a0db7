"""Reading the store and finding out what became of a transaction whose reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from bursar.claims.book import ClaimBook, Floor, Idle, Plan, View
from bursar.claims.model import Task, decode_holding, decode_task
from bursar.errors import FormatError, NodeMissingError, StoreUnknownError
from bursar.world import MILLISECOND_NS, World

PATIENCE = 20
"""How often a read whose reply was lost is tried again before the caller is told."""

READS_AT_ONCE = 256

T = TypeVar("T")


class Record(NamedTuple):
    """A task as the store has it. `created`: the revision that it came with, its place in line."""

    task: Task
    version: int
    created: int


class Reader:
    """Reads for one book. Raises SessionExpiredError, or StoreUnknownError after many tries."""

    def __init__(self, world: World, book: ClaimBook) -> None:
        self._world = world
        self._store = world.store
        self._book = book
        self._layout = book.layout
        self._reads = 0

    async def read_task(self, id: str) -> tuple[Task, int] | None:
        """The record and its version; None if there is none."""
        found = await self.read_record(id)
        return None if found is None else (found.task, found.version)

    async def read_record(self, id: str) -> Record | None:
        """The same, with its place in line."""
        path = self._layout.task(id)
        try:
            data, stat = await self.repeat(lambda: self._store.get(path))
        except NodeMissingError:
            return None
        return Record(decode_task(path, data), stat.version, stat.created)

    async def read_released(self, id: str) -> Task | None:
        """A task that is over."""
        path = self._layout.released(id)
        try:
            data, _ = await self.repeat(lambda: self._store.get(path))
        except NodeMissingError:
            found = await self.read_dead(id)
            return None if found is None else found[0]
        return decode_task(path, data)

    async def read_dead(self, id: str) -> tuple[Task, int] | None:
        """A task that was given up, and the version of its record."""
        path = self._layout.dead(id)
        try:
            data, stat = await self.repeat(lambda: self._store.get(path))
        except NodeMissingError:
            return None
        return decode_task(path, data), stat.version

    async def read_key(self, key: str) -> str | None:
        """The id of the claim that has it."""
        try:
            data, _ = await self.repeat(lambda: self._store.get(self._layout.key(key)))
        except NodeMissingError:
            return None
        return data.decode("ascii", "replace")

    async def read_floor(self) -> Floor:
        data, stat = await self.repeat(lambda: self._store.get(self._layout.names))
        if data and not data.isdigit():
            raise FormatError(f"{self._layout.names} holds no phase: {data[:40]!r}; another program's data?")
        return Floor(stat.version, int(data or b"0"))

    async def read_idle(self, path: str) -> Idle | None:
        """The node of a name if nobody uses it."""
        try:
            data, stat = await self.repeat(lambda: self._store.get(path))
            holding = decode_holding(path, data)
            if holding.owner or (holding.reserved and await self.read_task(holding.reserved) is not None):
                return None
            sharers = await self.repeat(lambda: self._store.children(f"{path}/S")) if holding.shared else []
            if sharers:
                return None
        except (NodeMissingError, FormatError):
            return None
        return Idle(path, stat.version, stat.created, holding.phase, holding.shared)

    async def read_names(self, names: Iterable[str]) -> dict[str, View]:
        """What the store says of these names. One that cannot be read raises FormatError."""
        wanted = list(names)
        views: dict[str, View] = {}
        for start in range(0, len(wanted), READS_AT_ONCE):
            part = wanted[start : start + READS_AT_ONCE]
            found = await asyncio.gather(*(self._read_name(name) for name in part))
            views.update(zip(part, found, strict=True))
        return views

    async def _read_name(self, name: str) -> View:
        path = self._layout.name(name)
        while True:
            self._reads += 1
            number = self._reads
            try:
                data, stat = await self.repeat(lambda: self._store.get(path))
            except NodeMissingError:
                return View(read_ns=self._world.clock.now(), number=number)
            holding = decode_holding(path, data)
            if not holding.shared:
                return View(stat.version, holding, {}, self._world.clock.now(), number)
            try:
                sharers = await self.repeat(lambda: self._store.children(self._layout.sharers(name)))
            except NodeMissingError:
                continue  # the shared phase ended between the two reads
            return View(stat.version, holding, dict.fromkeys(sharers), self._world.clock.now(), number)

    async def happened(self, plan: Plan) -> bool:
        """Whether a transaction without a reply was done, told by one of its records. The store does
        a session's requests in order, so after `sync` it has been done or never will be."""
        await self.repeat(self._store.sync)
        found = await self.read_task(plan.id)
        return found is not None and found == (plan.after, plan.version + 1)

    async def repeat(self, read: Callable[[], Awaitable[T]]) -> T:
        """A read may be asked again when its reply is lost."""
        for _ in range(PATIENCE):
            try:
                return await read()
            except StoreUnknownError:
                await self._world.clock.sleep(20 * MILLISECOND_NS)
        return await read()
