"""Shared words: plain memory that outlives the nodes which use it."""

from __future__ import annotations

import asyncio

from bursar.errors import UsageError
from bursar.sim.clock import DriftingClock
from bursar.sim.loop import Life, VirtualLoop
from bursar.world import WORD_MAX


class Memory:
    """The words of one host, shared by all nodes of a run."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.waiting: dict[str, list[asyncio.Future[None]]] = {}

    def write(self, name: str, value: int) -> None:
        if value == self.values.get(name, 0):
            return
        self.values[name] = value
        for future in self.waiting.pop(name, []):
            if not future.done():
                future.set_result(None)


class SimWords:
    """World's `words` of one life."""

    def __init__(self, loop: VirtualLoop, life: Life, clock: DriftingClock, memory: Memory) -> None:
        self._loop = loop
        self._life = life
        self._clock = clock
        self._memory = memory

    def read(self, name: str) -> int:
        self._life.check()
        return self._memory.values.get(name, 0)

    def write(self, name: str, value: int) -> None:
        self._life.check()
        if not 0 <= value <= WORD_MAX:
            raise UsageError(f"word {name!r}: {value} does not fit into 64 bits")
        self._memory.write(name, value)

    def fetch_add(self, name: str, amount: int) -> int:
        before = self.read(name)
        self._memory.write(name, (before + amount) & WORD_MAX)
        return before

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        before = self.read(name)
        if before == expected:
            self.write(name, value)
        return before

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        until_ns = self._clock.true_ns(self._clock.now() + timeout_ns)
        while self.read(name) == value and self._loop.now_ns < until_ns:
            changed = self._loop.create_future()
            self._memory.waiting.setdefault(name, []).append(changed)
            timer = self._loop.call_at_ns(until_ns, _wake, changed)
            try:
                await changed
            finally:
                timer.cancel()
        return self.read(name)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
