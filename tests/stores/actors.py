"""The processes that the crash tests kill and stop. Each writes what it knows to a log of its own,
unbuffered, so that a kill takes nothing along that it had already said.

    python actors.py writer STORE LOG SEED
    python actors.py contender STORE LOG SEED
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable

from bursar.errors import NodeExistsError, SessionExpiredError
from bursar.runtime.clock import BootClock
from bursar.stores.sqlite import SqliteStore
from bursar.world import SECOND_NS, Create, Set

CONTENDER_TIMEOUT_NS = SECOND_NS * 6 // 10
WRITERS = 4

Say = Callable[..., None]


def open_log(path: str) -> Say:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    return say


async def write(store: SqliteStore, say: Say, chance: random.Random) -> None:
    """Transactions of two nodes and a count, for ever; each is told once it was answered."""
    await store.create(f"/writers/{store.session}", ephemeral=True)

    async def go(lane: int) -> None:
        number = 0
        while True:
            number += 1
            name = f"{store.session}-{lane}-{number}"
            data = chance.randbytes(chance.choice((10, 100, 5000)))
            await store.transact(
                [Create(f"/left/{name}", data), Create(f"/right/{name}", data), Set("/n", b"")]
            )
            say(name, data.hex())

    await asyncio.gather(*(go(lane) for lane in range(WRITERS)))


async def contend(store: SqliteStore, say: Say, chance: random.Random) -> None:
    """Take the exclusive node, act in its name, let go; for ever."""
    await store.ensure("/register")
    while True:
        try:
            watch = await store.watch("/lock")
            try:
                await store.create("/lock", ephemeral=True)
                await hold(store, say, chance)
            except NodeExistsError:
                await watch.changed()
            finally:
                watch.close()
        except SessionExpiredError:
            say("expired", store.session)
            await store.renew()


async def hold(store: SqliteStore, say: Say, chance: random.Random) -> None:
    clock = BootClock()
    fence = (await store.get("/lock"))[1].created
    say("acquired", fence, store.session, clock.now())
    for _ in range(chance.randrange(1, 30)):
        now_ns = clock.now()
        if now_ns < store.trusted_until():
            say("trusted", fence, store.session, now_ns)
        # No check of trust before the change: the store must refuse it if the session is over.
        stat = await store.set("/register", b"%d" % fence)
        say("acted", fence, store.session, stat.modified)
    await store.delete("/lock")


async def main() -> None:
    role, path, log, seed = sys.argv[1:]
    timeout_ns = CONTENDER_TIMEOUT_NS if role == "contender" else 2 * SECOND_NS
    store = await SqliteStore.open(path, BootClock(), timeout_ns=timeout_ns, name=role)
    act = {"writer": write, "contender": contend}[role]
    await act(store, open_log(log), random.Random(int(seed)))


if __name__ == "__main__":
    asyncio.run(main())
