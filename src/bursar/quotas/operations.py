"""What an operator does to a quota: write a lost ledger off, add units or take some out.

Both are entries in the store, with a line of the audit that says who made them (`by`, at wall time
`at_ns`). Every node that is up sees them at once, every other when it returns. At once is not yet: a node
grants by what was before until it has read of a change, so whoever says that a change is made waits until
the nodes that are up say that they have carried it out (`wait_heard`).
"""

from __future__ import annotations

from bursar.errors import NodeExistsError, NodeMissingError, StoreError, UsageError
from bursar.fleet import audit
from bursar.fleet.layout import AUDIT
from bursar.quotas import accounts
from bursar.quotas.layout import Layout, Mints, read_live, read_name
from bursar.quotas.requests import node_of
from bursar.resource import AMOUNT_MAX
from bursar.world import MILLISECOND_NS, SECOND_NS, Clock, Create, Store

HEARD_NS = 2 * SECOND_NS
"""A node that is up and well hears of a change in milliseconds. One that has not by then is named."""

LOOK_NS = 5 * MILLISECOND_NS
ANY_NODE = "any node"
"""Where the store does not say which there are."""


async def _list(store: Store, folder: str) -> list[str]:
    try:
        return await store.children(folder)
    except NodeMissingError as error:
        raise UsageError(
            f"the store has no {folder}: start a daemon with this resource first, or give its policy"
        ) from error


async def _read_live(store: Store, layout: Layout) -> list[str]:
    """The ledgers whose nodes are up, the most senior first."""
    return [ledger for _, ledger in sorted(map(read_live, await _list(store, layout.live)))]


async def fence(store: Store, layout: Layout, node: str, *, by: str, at_ns: int) -> list[str]:
    """Write off every ledger of a node that is not up with it. Returns those written off now. What they
    have left stays unspent for ever, unless the node comes back with its own ledger."""
    await store.sync()
    ledgers = [read_name(name) for name in await _list(store, layout.ledgers)]
    fenced = {read_name(name) for name in await _list(store, layout.fenced)}
    mine = [ledger for ledger in ledgers if node in (ledger, node_of(ledger))]
    if not mine:
        raise UsageError(f"no ledger of {node}; there are {', '.join(sorted(ledgers)) or 'none'}")
    up = set(mine) & set(await _read_live(store, layout))
    done = [ledger for ledger in mine if ledger not in fenced | up]
    if up and not done:
        raise UsageError(f"{', '.join(sorted(up))} is up: stop the node first, its units are not lost")
    await store.ensure(AUDIT)
    for ledger in done:
        line = audit.record(by, at_ns, "fence", layout.resource, f"{ledger} written off")
        try:
            await store.transact([Create(layout.fence(ledger)), line])
        except NodeExistsError:
            pass  # somebody else has just done it
    await audit.trim(store)
    return done


async def top_up(
    store: Store, layout: Layout, given: str, amount: int, *, by: str, at_ns: int
) -> tuple[str, Mints, dict[str, int]]:
    """Add units to an account (negative: take out what is unspent), at nodes that are up. `given` is its
    name, or the tenant. The account, its mints, and what had to go to ledgers that are not up: to make up
    for a cut that they may still owe."""
    if not -AMOUNT_MAX <= amount <= AMOUNT_MAX or amount == 0:
        raise UsageError(f"the amount must be a whole number other than 0 within 2^63, not {amount}")
    await store.sync()
    await _list(store, layout.accounts)
    account = await accounts.find_account(store, layout, given, at_ns)
    ledgers = await _read_live(store, layout)
    if not ledgers:
        raise UsageError("no node of this quota is up: start one, it takes the units in")
    await store.ensure(AUDIT)
    line = audit.record(by, at_ns, "top-up", layout.resource, f"{account}: {amount:+}")
    mints, added = await accounts.top_up(store, layout, account, amount, ledgers, [line])
    await audit.trim(store)
    return account, mints, {ledger: units for ledger, units in added if ledger not in ledgers}


async def wait_heard(store: Store, layout: Layout, clock: Clock) -> list[str]:
    """Until every node that is up has carried out, durably, what was changed before the call. Those that are
    not fenced and have not said so in time, also if they are away: one that is only cut off from the store
    grants meanwhile what was there before. (Where the store stops answering that may be all of them; the
    change is made all the same, so this is no error.)"""
    behind, until = {ANY_NODE}, clock.now() + HEARD_NS
    try:
        _, news = await store.get(layout.news)
        while True:
            behind = await _list_behind(store, layout, news.version)
            if behind.isdisjoint(await _read_live(store, layout)) or clock.now() >= until:
                break
            await clock.sleep(LOOK_NS)
    except StoreError:
        pass  # nobody is known to have heard but those who said so
    return sorted(behind)


async def _list_behind(store: Store, layout: Layout, version: int) -> set[str]:
    ledgers = set(map(read_name, await store.children(layout.ledgers)))
    ledgers -= set(map(read_name, await store.children(layout.fenced)))
    return {ledger for ledger in ledgers if await _read_heard(store, layout, ledger) < version}


async def _read_heard(store: Store, layout: Layout, ledger: str) -> int:
    try:
        data, _ = await store.get(layout.hearer(ledger))
    except NodeMissingError:
        return 0
    return int(data or b"0")
