"""Which store this is, so that nobody goes on with another one unawares.

The first node to use a store gives it a name of its own, and every node keeps (uuid, epoch) in its
state. A store that was deleted and made anew has another name; one that was restored from a backup
has an epoch below what the nodes have seen, if it was adopted since, and otherwise an older mark
(`bursar.runtime.marks`). In each case what the nodes have in their state (ledgers, fences) does not
belong to what the store has, and they stop. `adopt` makes the store theirs again: it takes the name
over and raises the epoch.
"""

from __future__ import annotations

from bursar.errors import NodeExistsError, UsageError
from bursar.fleet import audit, layout
from bursar.fleet.layout import IDENTITY, Identity
from bursar.world import Create, Operation, Set, Store


async def read_identity(store: Store) -> Identity | None:
    found = await layout.fetch(store, IDENTITY, Identity)
    return None if found is None else found[0]


async def identify(store: Store, uuid: str) -> Identity:
    """The store's identity; `uuid` becomes its name if it has none."""
    await layout.prepare(store)
    found = await read_identity(store)
    if found is None:
        try:
            await store.create(IDENTITY, layout.write(Identity(uuid=uuid)))
        except NodeExistsError:
            pass  # another node was first
        await store.sync()
        found = await read_identity(store)
    assert found is not None, "it is never deleted"
    return found


def check_identity(known: Identity | None, found: Identity, url: str, state: str) -> None:
    """Refuse a store that is not the one that the node's state belongs to. Raises UsageError."""
    if found.sealed:
        raise UsageError(f"the store {url} was copied to {found.sealed} and is not to be used any more")
    if known is None or (known.uuid == found.uuid and known.epoch <= found.epoch):
        return
    if known.uuid != found.uuid:
        what = f"the state in {state} belongs to the store {known.uuid}, and {url} is {found.uuid}"
    else:
        what = (
            f"the store {url} is of epoch {found.epoch}, and the state in {state} has seen epoch "
            f"{known.epoch}: it was restored from an older backup"
        )
    raise UsageError(
        f"{what}. Point the node at its own store; or, if that one is lost, run "
        f"`bursar store adopt --store {url} --state {state}` to go on with this one"
    )


async def adopt(store: Store, known: Identity | None, *, by: str, at_ns: int) -> Identity:
    """Make this store the one that the state belongs to, in a new epoch. Without a state it stays the one
    that it was. Raises UsageError."""
    await layout.prepare(store)
    await store.sync()
    found = await layout.fetch(store, IDENTITY, Identity)
    if known is None:
        if found is None:
            raise UsageError("no node ever used this store: nodes without state can start on it as it is")
        known = found[0]
    epoch = max(known.epoch, found[0].epoch if found else 0) + 1
    adopted = Identity(uuid=known.uuid, epoch=epoch, since_ns=at_ns)
    data = layout.write(adopted)
    change: Operation = Create(IDENTITY, data) if found is None else Set(IDENTITY, data, found[1].version)
    await store.transact([change, audit.record(by, at_ns, "store", known.uuid, f"adopted, epoch {epoch}")])
    return adopted
