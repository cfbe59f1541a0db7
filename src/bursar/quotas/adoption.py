"""Ledgers and the store that they belong to: another store's are refused, and a store that was rebuilt or
restored is gone on with in a new epoch.

The units are in the ledgers; the store only says where they came from. So when a store is lost and
another is adopted in its place, each ledger that comes back brings along what it has, and what does not
come back counts as spent. Nothing is minted a second time: an account that may have been open before the
adoption is opened without a mint (`ELSEWHERE`). New ledgers have names that no earlier epoch had, so that
nothing that is under way to a lost one is taken for theirs; and whoever returns enters the ledgers that it
ever dealt with, so that everybody waits for them until they are back or written off.
"""

from __future__ import annotations

from bursar.errors import JournalError, NodeExistsError
from bursar.quotas.layout import Layout, read_name
from bursar.quotas.ledger import Ledger
from bursar.quotas.requests import LEDGER_MARK, node_of
from bursar.world import Create, Set, World

EPOCH_POINT = "."


def name_ledger(node: str, epoch: int, number: int) -> str:
    """The node's so manieth ledger in this epoch: "b", "b~2"; from the second epoch on "b~2.1"."""
    if epoch > 1:
        return f"{node}{LEDGER_MARK}{epoch}{EPOCH_POINT}{number}"
    return node if number == 1 else f"{node}{LEDGER_MARK}{number}"


def make_lost_error(ledger: str, topic: str) -> JournalError:
    return JournalError(
        f"the ledger {ledger} of {topic} is not in this node's state directory: restore it, or write its "
        f"units off with `bursar quota fence {ledger}` and start again"
    )


async def check_earlier(world: World, layout: Layout) -> None:
    """A node that begins a ledger must not have one of an earlier epoch that others wait for."""
    for ledger in map(read_name, await world.store.children(layout.ledgers)):
        own = name_ledger(world.name, world.fleet.store_name().epoch, 1).rpartition(EPOCH_POINT)[0]
        earlier = node_of(ledger) == world.name and ledger.rpartition(EPOCH_POINT)[0] != own
        if earlier and await world.store.exists(layout.fence(ledger)) is None:
            raise make_lost_error(ledger, f"quota/{layout.resource}")


async def enter(world: World, layout: Layout, ledger: Ledger) -> None:
    """Before it is taken up: see that it belongs here, and bring it into the store's epoch. Raises
    JournalError."""
    name = world.fleet.store_name()
    what = f"the ledger {ledger.identity} of {layout.resource}, in this node's state directory,"
    if node_of(ledger.identity) != world.name:
        raise JournalError(
            f"{what} is of the node {node_of(ledger.identity)}, not of {world.name}: give each node a state "
            "directory of its own"
        )
    if ledger.store and name.uuid and ledger.store != name.uuid:
        raise JournalError(
            f"{what} belongs to the store {ledger.store}, and this is {name.uuid}: point the node at its own "
            "store, or adopt this one with `bursar store adopt`"
        )
    if name.uuid and ledger.epoch > name.epoch:
        raise JournalError(
            f"{what} has seen epoch {ledger.epoch} of the store, and this is epoch {name.epoch}: it was "
            "restored from a backup; go on with it by `bursar store adopt`"
        )
    if ledger.epoch and ledger.epoch < name.epoch:
        await _enter_peers(world, layout, ledger)


async def wait_for_newer(world: World, layout: Layout, ledger: Ledger) -> int:
    """Until the store names a later generation of the ledger than this one, which is not this one's."""
    path = layout.ledger(ledger.identity)
    while True:
        watch = await world.store.watch(path)
        try:
            await world.store.sync()
            data, _ = await world.store.get(path)
            if int(data) > ledger.generation:
                return int(data)
            await watch.changed()
        finally:
            watch.close()


async def _enter_peers(world: World, layout: Layout, ledger: Ledger) -> None:
    for folder in layout.folders():
        await world.store.ensure(folder)
    peers = {peer for account in ledger.accounts.values() for peer in account.channels}
    for peer in sorted(peers):
        path = layout.ledger(peer)
        try:
            # Set as well, so that it counts as one that lived.
            await world.store.transact([Create(path, b"0"), Set(path, b"0")])
        except NodeExistsError:
            continue  # it is back, or another node entered it
