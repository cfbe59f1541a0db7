"""One client: operations on a store, each told before and after. `python -m ... URL LOG SEED PLANTED`

Killed at any moment: what was told is in the log, and what has no answer there has none."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from bursar.errors import NodeExistsError, NodeMissingError, SessionExpiredError, StoreError, VersionError
from bursar.runtime.clock import BootClock
from bursar.stores import open_store
from bursar.world import SECOND_NS, Store

LANES = 4
REGISTERS = 24
TIMEOUT_NS = 4 * SECOND_NS
PAUSE_S = 0.02


class Worker:
    def __init__(self, store: Store, log: int, seed: int) -> None:
        self._store = store
        self._log = log
        self._random = random.Random(seed)
        self._clock = BootClock()
        self._count = 0
        self._values = seed * 10_000_000

    def say(self, **words: Any) -> None:
        os.write(self._log, (json.dumps(words) + "\n").encode())

    async def run(self) -> None:
        for path in ("/r", "/q"):
            await self._store.ensure(path)
        for register in range(REGISTERS):
            await self._store.ensure(f"/r/{register}")
        await asyncio.gather(*(self._lane(lane) for lane in range(LANES)), self._hold())

    async def _lane(self, lane: int) -> None:
        acts = (self._write, self._write, self._read, self._read, self._glance, self._number)
        while True:
            session = f"{self._store.session}-{lane}"
            try:
                await self._random.choice(acts)(session)
            except SessionExpiredError:
                await self._renew()
            except StoreError:
                await asyncio.sleep(PAUSE_S)

    async def _renew(self) -> None:
        try:
            await self._store.renew()
        except StoreError:
            await asyncio.sleep(PAUSE_S)

    def _begin(self, kind: str, key: str, session: str, value: int = 0) -> int:
        self._count += 1
        self.say(id=self._count, kind=kind, key=key, session=session, value=value, start=self._clock.now())
        return self._count

    def _end(self, number: int, **answer: int) -> None:
        self.say(id=number, end=self._clock.now(), **answer)

    async def _write(self, session: str) -> None:
        register = self._random.randrange(REGISTERS)
        self._values += 1
        value = self._values
        number = self._begin("write", str(register), session, value)
        try:
            await self._store.set(f"/r/{register}", b"%d" % value)
        except SessionExpiredError:
            self.say(id=number, void=True)
            raise
        self._end(number)

    async def _read(self, session: str) -> None:
        register = self._random.randrange(REGISTERS)
        number = self._begin("read", str(register), session)
        try:
            await self._store.sync()
            data, _ = await self._store.get(f"/r/{register}")
        except StoreError:
            self.say(id=number, void=True)
            raise
        self._end(number, value=int(data or b"0"))

    async def _glance(self, session: str) -> None:
        register = self._random.randrange(REGISTERS)
        number = self._begin("glance", str(register), session)
        try:
            data, stat = await self._store.get(f"/r/{register}")
        except StoreError:
            self.say(id=number, void=True)
            raise
        self._end(number, value=int(data or b"0"), version=stat.version)

    async def _number(self, session: str) -> None:
        number = self._begin("number", "q", session)
        path = await self._store.create("/q/n-", sequential=True)
        self._end(number, value=int(path[-10:]))

    async def _hold(self) -> None:
        """An ephemeral node that only one has; told is until when it was trusted to be so."""
        while True:
            try:
                await self._hold_once()
            except SessionExpiredError:
                await self._renew()
            except (StoreError, VersionError):
                await asyncio.sleep(PAUSE_S)

    async def _hold_once(self) -> None:
        try:
            await self._store.create("/hold", ephemeral=True)
        except NodeExistsError:
            await asyncio.sleep(PAUSE_S)
            return
        _, stat = await self._store.get("/hold")
        if stat.owner != self._store.session:
            return
        number = self._begin("hold", "/hold", str(stat.owner), stat.created)
        for _ in range(self._random.randrange(1, 20)):
            now = self._clock.now()
            if now >= self._store.trusted_until():
                break
            self.say(id=number, end=now)
            await asyncio.sleep(PAUSE_S / 4)
        try:
            await self._store.delete("/hold", stat.version)
        except NodeMissingError:
            return


def forget(store: Any) -> None:
    """A planted bug: one write in forty is answered, and not done."""
    write, written = store.set, 0

    async def set(path: str, data: bytes, version: int | None = None) -> Any:
        nonlocal written
        written += 1
        return await (write(path, data, version) if written % 40 else store.exists(path))

    store.set = set


async def main() -> None:
    url, log, seed, plant = sys.argv[1:]
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = await open_store(url, clock=BootClock(), timeout_ns=TIMEOUT_NS, name=f"client {seed}")
    if plant == "forgets":
        forget(store)
    await Worker(store, file, int(seed)).run()


if __name__ == "__main__":
    asyncio.run(main())
