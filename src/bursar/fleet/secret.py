"""The fleet's secret: known to whoever may read the store, and so to every node and to no client."""

from __future__ import annotations

import secrets

from bursar.errors import NodeExistsError, NodeMissingError, StoreUnknownError
from bursar.fleet.layout import ROOT, SECRET
from bursar.world import MILLISECOND_NS, Clock, Store

SECRET_BYTES = 32
RETRY_NS = 50 * MILLISECOND_NS


async def read_secret(store: Store, clock: Clock) -> bytes:
    """As the store has it; the first node makes it. Tries until the store has answered."""
    while True:
        try:
            return await _read_or_make(store)
        except StoreUnknownError:
            await clock.sleep(RETRY_NS)


async def _read_or_make(store: Store) -> bytes:
    await store.sync()
    try:
        return (await store.get(SECRET))[0]
    except NodeMissingError:
        await store.ensure(ROOT)
    try:
        await store.create(SECRET, secrets.token_bytes(SECRET_BYTES))
    except NodeExistsError:
        await store.sync()  # another node was first
    return (await store.get(SECRET))[0]
