"""Which store this is, so that nobody goes on with another one unawares.

The first node to use a store gives it a name of its own, and every node keeps (uuid, epoch) in its
state. A store that was deleted and made anew has another name; one that was restored from a backup
has an epoch below what the nodes have seen, if it was adopted since, and otherwise an older mark
(`bursar.runtime.marks`). In each case what the nodes have in their state (ledgers, fences) does not
belong to what the store has, and they stop. `adopt` makes the store theirs again: it takes the name
over and raises the epoch.

All nodes of a store write and read one form of it (`layout.FORM`). A build of another form is refused by
name, so that two never hand out the same thing by two books. A store of an older form is adopted by the
first newer build: what had been handed out stays with who has it, and nothing is made a second time.
Builds from before there were forms look elsewhere, and find a store that is sealed.
"""

from __future__ import annotations

from bursar.errors import NodeExistsError, UsageError
from bursar.fleet import audit, layout
from bursar.fleet.layout import BEFORE_FORMS, FORM, IDENTITY, Identity
from bursar.world import Create, Operation, Set, Stat, Store

NEWER = f"form {FORM}, for a newer bursar (upgrade this node),"
"""What builds from before there were forms say that the store was copied to."""


async def read_identity(store: Store) -> Identity | None:
    found = await _find(store)
    return None if found is None else found[0]


async def _find(store: Store) -> tuple[Identity, Stat] | None:
    found = await layout.fetch(store, IDENTITY, Identity)
    return found or await layout.fetch(store, BEFORE_FORMS, Identity)


async def identify(store: Store, uuid: str) -> Identity:
    """The store's identity; `uuid` becomes its name if it has none."""
    await layout.prepare(store)
    found = await read_identity(store)
    if found is None:
        try:
            await store.transact(
                [
                    Create(IDENTITY, layout.write(Identity(uuid=uuid, form=FORM))),
                    *await _seal_for_older(store),
                ]
            )
        except NodeExistsError:
            pass  # another node was first
        await store.sync()
        found = await read_identity(store)
    assert found is not None, "it is never deleted"
    return found


async def _seal_for_older(store: Store) -> list[Operation]:
    data = layout.write(Identity(uuid="", sealed=NEWER))
    there = await store.exists(BEFORE_FORMS)
    return [Create(BEFORE_FORMS, data) if there is None else Set(BEFORE_FORMS, data, there.version)]


def check_form(found: Identity, url: str) -> None:
    """Refuse a store that builds of another form use. Raises UsageError."""
    if found.form == FORM:
        return
    what = f"the store {url} is of form {found.form}, and this bursar reads form {FORM}"
    if found.form > FORM:
        raise UsageError(f"{what}: a newer one uses it. Upgrade this one to the version of the others")
    raise UsageError(
        f"{what}: an older one used it. Stop every node that does, then `bursar store adopt --store {url} "
        f"--yes` brings it to form {FORM}; older ones cannot use it afterwards, and nothing is granted twice"
    )


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
    found = await _find(store)
    if found is not None and found[0].form > FORM:
        check_form(found[0], "that you name")
    if known is None:
        if found is None:
            raise UsageError("no node ever used this store: nodes without state can start on it as it is")
        known = found[0]
    epoch = max(known.epoch, found[0].epoch if found else 0) + 1
    adopted = Identity(uuid=known.uuid, epoch=epoch, since_ns=at_ns, form=FORM)
    data, there = layout.write(adopted), await store.exists(IDENTITY)
    await store.transact(
        [
            Create(IDENTITY, data) if there is None else Set(IDENTITY, data, there.version),
            *await _seal_for_older(store),
            audit.record(by, at_ns, "store", known.uuid, f"adopted, epoch {epoch}"),
        ]
    )
    return adopted
