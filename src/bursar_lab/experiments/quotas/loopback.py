"""What a message costs on this machine: two nodes, real sockets."""

from __future__ import annotations

import asyncio
from statistics import median

from bursar.quotas.tree import Ping, Pong
from bursar.world import SECOND_NS, Message

TRIPS = 2_000
SECRET = bytes(32)


def measure_round_trip_ns() -> int:
    """The median round trip of a small message between two nodes of this process."""
    return asyncio.run(_measure())


async def _measure() -> int:
    from bursar.runtime.world import open_world

    there = await open_world("there", listen="127.0.0.1:0", secret=SECRET)
    here = await open_world("here", peers={"there": str(there.listening)}, secret=SECRET)
    there.network.serve("ping", Ping, _answer)
    try:
        await here.network.call("there", "ping", Ping(), Pong, SECOND_NS)
        trips = []
        for _ in range(TRIPS):
            began = here.clock.now()
            await here.network.call("there", "ping", Ping(), Pong, SECOND_NS)
            trips.append(here.clock.now() - began)
    finally:
        await here.close()
        await there.close()
    return int(median(trips))


async def _answer(sender: str, message: Message) -> Message:
    return Pong()
