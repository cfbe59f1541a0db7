"""A store's content to another one, while nobody uses either.

What lives with a session is not copied; there must be none. Nodes are created in the order, and in the
transactions, in which they once were, so that whoever waits in line keeps the place. The counter of the
audit, the only one below which nodes stay, goes on above the names that were given. Versions and revisions
begin anew: nothing that outlives a process rests on them but fences, and the copy begins a new epoch of the
store, in which fences are newer than all before.

The source is sealed first: no node starts on it any more. A copy that broke off is begun again, with an
empty target.
"""

from __future__ import annotations

import secrets

import msgspec

from bursar.errors import UsageError
from bursar.fleet import audit, layout
from bursar.fleet.identity import check_form, identify
from bursar.fleet.layout import AUDIT, IDENTITY, Identity
from bursar.world import TRANSACTION_MAX_BYTES, Create, Delete, Operation, Store

ROOM_BYTES = TRANSACTION_MAX_BYTES * 2 // 3
OPERATION_BYTES = 100
NUMBER_DIGITS = 10


async def copy(source: Store, target: Store, where: str, *, by: str, at_ns: int) -> tuple[int, Identity]:
    """How many nodes, and what the target is now. `where` is the target, for people who start a node on the
    source. Raises UsageError."""
    await source.sync()
    if await target.children("/"):
        raise UsageError("the target is not empty: give an empty one, or another prefix or schema")
    if not await _read_tree(source):  # before it is sealed: it may be in use
        raise UsageError("the source is empty: is it the right one?")
    identity = await _seal(source, where)
    nodes = await _read_tree(source)
    for created in sorted({created for created, _, _ in nodes}):
        await _write(target, [(path, data) for at, path, data in nodes if at == created])
    await _raise_counter(target, AUDIT, [path for _, path, _ in nodes if path.startswith(f"{AUDIT}/")])
    copied = msgspec.structs.replace(identity, sealed="", epoch=identity.epoch + 1, since_ns=at_ns)
    line = audit.record(by, at_ns, "store", copied.uuid, f"copied, epoch {copied.epoch}")
    await target.transact([Create(IDENTITY, layout.write(copied)), line])
    return len(nodes), copied


async def _seal(source: Store, where: str) -> Identity:
    check_form(await identify(source, secrets.token_hex(16)), "to copy from")
    found = await layout.fetch(source, IDENTITY, Identity)
    assert found is not None, "just made, where it was missing"
    identity, stat = found
    if identity.sealed not in ("", where):
        raise UsageError(f"the source was copied to {identity.sealed} before")
    sealed = layout.write(msgspec.structs.replace(identity, sealed=where))
    await source.set(IDENTITY, sealed, stat.version)
    return identity


async def _read_tree(source: Store) -> list[tuple[int, str, bytes]]:
    """Every node but the root and the identity: the revision that created it, path, data."""
    nodes, waiting = [], ["/"]
    while waiting:
        folder = waiting.pop()
        for name in await source.children(folder):
            path = f"{folder.rstrip('/')}/{name}"
            data, stat = await source.get(path)
            if stat.owner:
                raise UsageError(f"{path} belongs to somebody who uses the source: stop every node first")
            if path != IDENTITY:
                nodes.append((stat.created, path, data))
            if stat.children:
                waiting.append(path)
    return sorted(nodes)


async def _write(target: Store, nodes: list[tuple[str, bytes]]) -> None:
    """Those that were created at once; in parts where the target takes fewer at a time."""
    part: list[Operation] = []
    size = 0
    for path, data in nodes:
        more = len(path) + len(data) + OPERATION_BYTES
        if part and (len(part) >= target.operations_max or size + more > ROOM_BYTES):
            await target.transact(part)
            part, size = [], 0
        part.append(Create(path, data))
        size += more
    await target.transact(part)


async def _raise_counter(target: Store, parent: str, children: list[str]) -> None:
    """Above every number that was given below this node, by giving those numbers to nobody."""
    highest = max((int(path[-NUMBER_DIGITS:]) for path in children), default=-1)
    at_once = min(100, target.operations_max)
    given = -1
    while given < highest:
        count = min(at_once, highest - given)
        spare = [Create(f"{parent}/copying-", sequential=True) for _ in range(count)]
        made = [str(path) for path in await target.transact(spare)]
        await target.transact([Delete(path) for path in made])
        given = int(made[-1][-NUMBER_DIGITS:])
