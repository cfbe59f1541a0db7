"""Asking a store that may not answer, until it has; following what changes in it through sessions that
end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bursar.errors import SessionExpiredError, StoreUnknownError
from bursar.world import MILLISECOND_NS, Watch, World

RETRY_NS = 50 * MILLISECOND_NS

ResultT = TypeVar("ResultT")

Look = Callable[[], Awaitable[None]]


async def persist(world: World, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Try until the store has answered. What is tried may be done twice."""
    while True:
        session = world.store.session
        try:
            return await attempt()
        except SessionExpiredError:
            await renew(world, session)
        except StoreUnknownError:
            await world.clock.sleep(RETRY_NS)


async def follow(
    world: World, path: str, look: Look, begin: Callable[[int], Awaitable[None]] | None = None
) -> None:
    """Look at something now, after each of its changes, and after each change of the session, because
    watches are over then. `begin` is told of each session first."""
    while True:
        watch: Watch = await persist(world, lambda: world.store.watch(path))
        session = world.store.session
        if begin is not None:
            await begin(session)
        try:
            while world.store.session == session:
                await look()
                if world.store.session == session:
                    await watch.changed()
        except SessionExpiredError:
            await renew(world, session)
        finally:
            watch.close()


async def renew(world: World, expired: int) -> None:
    """Open a new session in place of that one."""
    if world.store.session != expired:
        return  # another part of the node was faster
    try:
        await world.store.renew()
    except StoreUnknownError:
        await world.clock.sleep(RETRY_NS)
