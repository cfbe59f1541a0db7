"""Setting a resource up in its store, and the epoch of its fences there."""

from __future__ import annotations

import asyncio

from bursar.claims.fences import make_epoch
from bursar.claims.layout import Layout
from bursar.claims.limits import fit
from bursar.claims.model import Era, decode_era, encode
from bursar.errors import NodeExistsError, NodeMissingError, VersionError
from bursar.fleet.identity import read_identity
from bursar.world import MILLISECOND_NS, Create, Stat, World


async def open_era(world: World, layout: Layout) -> int:
    """The epoch of the resource; its folders are there afterwards."""
    store, root = world.store, layout.root
    data, stat = b"", None
    while stat is None or not data:
        try:
            data, stat = await store.get(root)
        except NodeMissingError:
            await store.ensure("/claims")
        if not data:
            await _lay_out(world, layout, stat)
    era = decode_era(root, data)
    if (name := await _name_store(world)) and era.store != name:
        era = await _begin_era(world, root, era, stat.version)
    return era.epoch


async def _lay_out(world: World, layout: Layout, stat: Stat | None) -> None:
    """The folders, at once or in as many transactions as the store needs for them: then the root says
    the era when they are there. Whoever finds one that does not goes on with the work."""
    store, root, folders = world.store, layout.root, layout.folders()
    era = encode(await _make_era(world, -1))
    try:
        if stat is None and len(folders) < store.operations_max:
            await store.transact([Create(root, era), *map(Create, folders)])
            return
        if stat is None:
            await store.create(root)
        there = await asyncio.gather(*map(store.exists, folders))
        missing = [path for path, found in zip(folders, there, strict=True) if found is None]
        at_once = fit(store, len(folders), 1)
        for first in range(0, len(missing), at_once):
            await store.transact([Create(path) for path in missing[first : first + at_once]])
        await store.set(root, era, 0)
    except (NodeExistsError, VersionError):
        await store.sync()  # another instance was faster, which is as good


async def _name_store(world: World) -> str:
    """Which store this is, as its fleet knows it; empty where none does."""
    found = await read_identity(world.store)
    return "" if found is None else f"{found.uuid}/{found.epoch}"


async def _make_era(world: World, above: int) -> Era:
    """Its millisecond is over when it is first used, so that nobody else can have the same."""
    era = Era(make_epoch(world.clock.wall(), above), await _name_store(world))
    await world.clock.sleep(MILLISECOND_NS)
    return era


async def _begin_era(world: World, root: str, era: Era, version: int) -> Era:
    """A store that was adopted grants newer fences than any before, here or in the one that was lost.
    One that had no name yet is the same, and those who work with it go on with its epoch."""
    store = world.store
    begun = await _make_era(world, era.epoch) if era.store else Era(era.epoch, await _name_store(world))
    try:
        await store.set(root, encode(begun), version)
    except VersionError:
        await store.sync()
        data, _ = await store.get(root)
        return decode_era(root, data)
    return begun
