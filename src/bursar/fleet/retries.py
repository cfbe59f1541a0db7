"""Asking a store that may not answer, until it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bursar.errors import SessionExpiredError, StoreUnknownError
from bursar.world import MILLISECOND_NS, World

RETRY_NS = 50 * MILLISECOND_NS


async def persist(world: World, attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Try until the store has answered. What is tried may be done twice."""
    while True:
        session = world.store.session
        try:
            return await attempt()
        except SessionExpiredError:
            await _renew(world, session)
        except StoreUnknownError:
            await world.clock.sleep(RETRY_NS)


async def _renew(world: World, expired: int) -> None:
    if world.store.session != expired:
        return  # another part of the node was faster
    try:
        await world.store.renew()
    except StoreUnknownError:
        await world.clock.sleep(RETRY_NS)
