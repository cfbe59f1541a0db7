"""One target in a process of its own, until it is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from bursar.errors import BursarError
from bursar.runtime import logs
from bursar.runtime.world import open_world
from bursar.shares.target import Target
from bursar.world import World


async def run_target(name: str, make_target: Callable[[World], Awaitable[Target]]) -> None:
    """Run a target until SIGTERM or SIGINT, or until it fails; its rules go with it either way."""
    logs.configure(level="warning")
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    world = await open_world(name)
    world.failure.add_done_callback(lambda _: ended.set())
    try:
        target = await make_target(world)
        try:
            target.start()
            await ended.wait()
        finally:
            await target.stop()
        if world.failure.done():
            raise BursarError(f"the loop failed: {world.failure.result()}")
    finally:
        await world.close()
