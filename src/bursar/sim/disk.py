"""A node's journals, of which a crash keeps what was synced and, by chance, some more."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from bursar.errors import JournalError
from bursar.sim.chance import Chance, draw_ns
from bursar.sim.loop import Life, VirtualLoop, sleep_until
from bursar.sim.network import Fabric
from bursar.world import MICROSECOND_NS, MILLISECOND_NS

SYNC_MIN_NS = 20 * MICROSECOND_NS
SYNC_MAX_NS = 2 * MILLISECOND_NS


class File:
    """One journal as it lies on the disk: the first `synced` records survive a crash for sure."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.synced = 0
        self.failed = False
        self.replacement: list[bytes] | None = None
        self.replaced_from = 0
        self._shift = 0

    def end(self) -> int:
        """A position behind the last record that stays the same when a rewrite moves it."""
        return len(self.records) + self._shift

    def sync(self, position: int) -> None:
        self.synced = max(self.synced, position - self._shift)

    def replace(self) -> None:
        """The rewrite is complete: what was appended meanwhile follows it."""
        assert self.replacement is not None, "only a rewrite under way can complete"
        tail = self.records[self.replaced_from :]
        synced_tail = max(0, self.synced - self.replaced_from)
        self.records = self.replacement + tail
        self.synced = len(self.replacement) + synced_tail
        self._shift += self.replaced_from - len(self.replacement)
        self.replacement = None

    def crash(self, stream: random.Random) -> int:
        """A seeded prefix survives; of a rewrite, all or nothing. Returns how many were lost."""
        if self.replacement is not None and stream.random() < 0.5:
            self.replace()
        self.replacement = None
        unsynced = len(self.records) - self.synced
        kept = int(stream.random() * (unsynced + 1))
        del self.records[self.synced + kept :]
        self.synced = len(self.records)
        self.failed = False
        return unsynced - kept


class Disk:
    """The files of one node: they outlive its lives."""

    def __init__(self, chance: Chance, name: str) -> None:
        self._stream = chance.stream(f"disk/{name}")
        self._files: dict[str, File] = {}

    def file(self, name: str) -> File:
        return self._files.setdefault(name, File())

    def crash(self) -> int:
        """Returns how many records were lost."""
        return sum(self._files[name].crash(self._stream) for name in sorted(self._files))


class SimJournal:
    """World's journal of one life: a view of a file, dead with the life."""

    def __init__(
        self,
        loop: VirtualLoop,
        life: Life,
        file: File,
        stream: random.Random,
        fabric: Fabric,
    ) -> None:
        self._loop = loop
        self._life = life
        self._file = file
        self._stream = stream
        self._fabric = fabric

    def append(self, record: bytes) -> None:
        self._check()
        self._file.records.append(bytes(record))

    async def sync(self) -> None:
        self._check()
        position = self._file.end()
        await self._wait()
        self._file.sync(position)

    def replay(self) -> Iterable[bytes]:
        self._check()
        return tuple(self._file.records)

    async def rewrite(self, records: Sequence[bytes]) -> None:
        self._check()
        if self._file.replacement is not None:
            raise JournalError("a rewrite is under way: wait for it")
        self._file.replacement = [bytes(record) for record in records]
        self._file.replaced_from = len(self._file.records)
        await self._wait()
        self._file.replace()

    async def _wait(self) -> None:
        fabric = self._fabric
        fails = fabric.strikes(self._stream, "disk_errors")
        wait_ns = draw_ns(self._stream, SYNC_MIN_NS, SYNC_MAX_NS)
        if fails or fabric.strikes(self._stream, "disk_slow"):
            wait_ns += draw_ns(self._stream, 0, fabric.faults.slow_ns // 10)
        await sleep_until(self._loop, self._loop.now_ns + wait_ns)
        if fails:
            self._file.failed = True
        self._check()

    def _check(self) -> None:
        self._life.check()
        if self._file.failed:
            raise JournalError(f"the disk of {self._life.name} failed: restart the node")
