"""Accounts in the store: opened once, and added to.

An account's list of mints is the only place where units come from. Adding to the list is one
compare-and-set; each entry names the ledger that takes it in, which does so once, by number. So a
top-up that was cut off by a crash is there or not, and a node that was away takes in its part when
it returns.

All accounts of a tenant are in one record, so that two nodes which open its next window at the same time,
by calendars that differ, make one. Records of many tenants are read, and opened, at once: many are asked for
when a window begins.

Units are minted by the terms in force and by no others: whoever mints by the policy hands over the
fleet's guards, taken at the moment at which it read the limit. If newer terms stand in the store by
then, nothing is minted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bursar.errors import NodeExistsError, NodeMissingError, StoreError, UsageError, VersionError
from bursar.quotas.layout import (
    ELSEWHERE,
    FOUND,
    AccountRecord,
    Layout,
    Mints,
    TenantRecord,
    is_ledger,
    read_name,
    read_tenant,
    split_evenly,
    write_tenant,
)
from bursar.quotas.windows import Window, account_name, fit, is_over, split_account, split_begin
from bursar.resource import AMOUNT_MAX
from bursar.world import Check, Create, Delete, Operation, Set, Stat, Store

FORGOTTEN_AT_ONCE = 100
"""Records from which windows that are over are taken in one transaction."""

Guards = Sequence[Check]
"""Of the terms that a limit was read from (`Fleet.guards`)."""

Found = tuple[TenantRecord, Stat]


class WindowOverError(StoreError):
    """The account is of a window that every node has left behind."""


class OldTermsError(StoreError):
    """Newer terms stand in the store than those that the limit was read from. Nothing was minted."""


class Opening(NamedTuple):
    """A tenant whose account is to be there: in the window that the calendar says. One that is `carried` may
    have been open in an earlier epoch of the store: nothing is minted for it, its units are where the ledgers
    of that time have them."""

    tenant: str
    window: Window | None
    limit: int
    carried: bool = False


class Horizon(NamedTuple):
    """Windows that ended by then are forgotten; and the version of the node that says so."""

    ends_s: int
    version: int


# -- reading


async def read_tenants(store: Store, layout: Layout, tenants: Iterable[str]) -> dict[str, Found]:
    """Those that are there, all asked for at once."""
    names = list(tenants)
    found = await asyncio.gather(*(_look(store, layout.tenant(name)) for name in names))
    return {name: each for name, each in zip(names, found, strict=True) if each is not None}


async def _look(store: Store, path: str) -> Found | None:
    try:
        data, stat = await store.get(path)
    except NodeMissingError:
        return None
    return read_tenant(data), stat


async def find_account(store: Store, layout: Layout, given: str, wall_ns: int) -> str:
    """The account that is meant by a tenant (its present window's), by a tenant with the begin of a window,
    or by an account's own name. Raises UsageError."""
    for tenant, is_meant in _list_readings(given, wall_ns):
        found = await _look(store, layout.tenant(tenant))
        if found is not None and "" in found[0].windows and tenant == given:
            return given
        for window in list_windows(found[0]) if found is not None else ():
            if is_meant(window):
                return account_name(tenant, window)
    raise UsageError(
        f"no account {given}: `bursar quota show` lists those there are. An account begins with its "
        "first use: until then change its limit in the policy"
    )


def _list_readings(given: str, wall_ns: int) -> list[tuple[str, Callable[[Window], bool]]]:
    """What it may mean: whose account, and of which windows. (A tenant's name may look like an account's.)"""
    account, window = split_account(given)
    tenant, begin_s = split_begin(given)
    return [
        (given, lambda each: each.holds(wall_ns)),
        (account, lambda each: each == window),
        (tenant, lambda each: each.begin_s == begin_s),
    ]


async def read_horizon(store: Store, layout: Layout) -> Horizon:
    data, stat = await store.get(layout.accounts)
    return Horizon(int(data or b"0"), stat.version)


# -- opening


async def open_accounts(
    store: Store,
    layout: Layout,
    openings: Sequence[Opening],
    ledgers: Sequence[str],
    guards: Guards,
    horizon: Horizon,
    wall_ns: int,
) -> tuple[dict[str, TenantRecord], Horizon]:
    """The records of these tenants, with an account of the window that it is, and the limit; the first to ask
    for one makes it, spread over `ledgers`. Those whose window was forgotten are left out. `horizon` may be
    an old one: the newest that was seen is returned. Raises OldTermsError."""
    while True:
        found = await read_tenants(store, layout, [opening.tenant for opening in openings])
        records: dict[str, TenantRecord] = {}
        made: list[Operation] = []
        for opening in openings:
            record, stat = found.get(opening.tenant, (TenantRecord(), None))
            window = _place(opening, record, wall_ns)
            account = account_name(opening.tenant, window)
            if is_over(account, horizon.ends_s):
                continue
            records[opening.tenant] = record
            if _open(record, opening, window, account, ledgers):
                path, written = layout.tenant(opening.tenant), write_tenant(record)
                made.append(Create(path, written) if stat is None else Set(path, written, stat.version))
        try:
            if made:
                await _mint(store, guards, [Check(layout.accounts, horizon.version), *made])
            return records, horizon
        except NodeMissingError:
            for shard in dict.fromkeys(layout.shard(opening.tenant) for opening in openings):
                await store.ensure(shard)
        except (NodeExistsError, VersionError):
            await store.sync()  # somebody else was faster, or something was forgotten
            horizon = await read_horizon(store, layout)


def _place(opening: Opening, record: TenantRecord, wall_ns: int) -> Window | None:
    known = list_windows(record)
    return None if opening.window is None else fit(opening.window, known, wall_ns)


def list_windows(record: TenantRecord) -> list[Window]:
    found = (split_account(f"@{name}")[1] for name in record.windows if name)
    return [window for window in found if window is not None]


def _open(
    record: TenantRecord, opening: Opening, window: Window | None, account: str, ledgers: Sequence[str]
) -> bool:
    """Whether the record is another now: the account is made, or its limit brought to the policy's."""
    name, units = "" if window is None else str(window), opening.limit
    known = record.windows.get(name)
    if known is None:
        mints = [(ELSEWHERE, units)] if opening.carried else split_evenly(units, ledgers)
        record.windows[name] = AccountRecord(units, mints)
    elif known.limit != units:
        _follow_policy(known, account, units, ledgers)
    else:
        return False
    return True


async def _mint(store: Store, guards: Guards, operations: Sequence[Operation]) -> None:
    """Only under the terms that the guards stand for."""
    try:
        await store.transact([*guards, *operations])
    except VersionError as error:
        if error.position is not None and error.position < len(guards):
            raise OldTermsError(
                "newer terms are in force than those this node runs, so it mints nothing "
                "until it has taken them"
            ) from error
        raise


# -- forgetting


async def forget(store: Store, layout: Layout, horizon_s: int) -> None:
    """Accounts of windows that ended by the horizon are over: delete them, and let nobody open them again.
    With 0: go on with what was begun."""
    data, stat = await store.get(layout.accounts)
    before_s = int(data or b"0")
    if horizon_s > before_s:
        await store.set(layout.accounts, str(horizon_s).encode(), stat.version)
    for shard in await store.children(layout.accounts):
        names = list(map(read_name, await store.children(f"{layout.accounts}/{shard}")))
        for at in range(0, len(names), FORGOTTEN_AT_ONCE):
            await _prune(store, layout, names[at : at + FORGOTTEN_AT_ONCE], max(horizon_s, before_s))


async def _prune(store: Store, layout: Layout, tenants: Sequence[str], horizon_s: int) -> None:
    while True:
        operations: list[Operation] = []
        for tenant, (record, stat) in (await read_tenants(store, layout, tenants)).items():
            over = [name for name in record.windows if is_over(f"@{name}", horizon_s)]
            for name in over:
                del record.windows[name]
            path = layout.tenant(tenant)
            if over and record.windows:
                operations.append(Set(path, write_tenant(record), stat.version))
            elif over:
                operations.append(Delete(path, stat.version))
        try:
            if operations:
                await store.transact(operations)
            return
        except (VersionError, NodeMissingError):
            await store.sync()


# -- changing


async def change_limit(
    store: Store,
    layout: Layout,
    account: str,
    limit: int,
    live: Sequence[str],
    guards: Guards = (),
    also: Sequence[Operation] = (),
    *,
    once: bool = False,
) -> Mints:
    """Bring the account's total to `limit`, at ledgers that are up: because the policy says so, or (`once`)
    whoever asks. `also` is done with it. Raises OldTermsError."""

    def change(record: AccountRecord) -> None:
        if once:
            _bring(record, account, limit, live)
        else:
            _follow_policy(record, account, limit, live)

    return (await _change(store, layout, account, change, guards, also)).mints


def _follow_policy(record: AccountRecord, account: str, limit: int, live: Sequence[str]) -> None:
    """Where that was done before (by another node), what was topped up since stays."""
    if record.limit != limit:
        record.limit = limit
        _bring(record, account, limit, live)


def _bring(record: AccountRecord, account: str, limit: int, live: Sequence[str]) -> None:
    """Of an account that was carried into this epoch of the store nobody knows how much there is, so it is
    only ever cut: whoever knows tops it up."""
    more = limit - total(record.mints)
    carried = any(ledger == ELSEWHERE for ledger, _ in record.mints)
    _add(record, account, min(0, more) if carried else more, live)


async def top_up(
    store: Store,
    layout: Layout,
    account: str,
    amount: int,
    live: Sequence[str],
    also: Sequence[Operation] = (),
) -> tuple[Mints, Mints]:
    """Add `amount` units (negative: take them out), at ledgers that are up; all mints, and those added.
    Not to be repeated after StoreUnknownError without reading the account."""
    added: Mints = []

    def change(record: AccountRecord) -> None:
        added[:] = _add(record, account, max(amount, -total(record.mints)), live)

    return (await _change(store, layout, account, change, also=also)).mints, added


def _add(record: AccountRecord, account: str, amount: int, live: Sequence[str]) -> Mints:
    if total(record.mints) + amount > AMOUNT_MAX:
        raise UsageError(f"{account} has {total(record.mints)} units: {amount} more would pass 2^63 - 1")
    added = assign(record.mints, amount, live)
    record.mints += added
    return added


async def fence(store: Store, layout: Layout, account: str, why: str) -> None:
    """Nothing is granted of the account any more, at any node: its audit found what cannot be."""

    def change(record: AccountRecord) -> None:
        record.fenced = why

    await _change(store, layout, account, change)


async def let_stand(
    store: Store, layout: Layout, account: str, excess: int, also: Sequence[Operation] = ()
) -> None:
    """What was found beyond all mints counts as minted, and the account is granted of again."""

    def change(record: AccountRecord) -> None:
        record.fenced = ""
        record.mints += [(FOUND, excess)] if excess else []

    await _change(store, layout, account, change, also=also)


async def mark_warned(store: Store, layout: Layout, account: str, percent: int) -> bool:
    """Whether nobody has told yet that so much of it is used."""
    first = False

    def change(record: AccountRecord) -> None:
        nonlocal first
        first = record.warned < percent
        record.warned = max(record.warned, percent)

    await _change(store, layout, account, change, is_news=False)
    return first


async def _change(
    store: Store,
    layout: Layout,
    account: str,
    change: Callable[[AccountRecord], None],
    guards: Guards = (),
    also: Sequence[Operation] = (),
    *,
    is_news: bool = True,
) -> AccountRecord:
    """One compare-and-set, with `also` in its transaction; if it is news, every node hears of it at once.
    Raises NodeMissingError where there is no such account."""
    tenant, window = split_account(account)
    path = layout.tenant(tenant)
    while True:
        found = await _look(store, path)
        account_record = found[0].windows.get("" if window is None else str(window)) if found else None
        if found is None or account_record is None:
            raise NodeMissingError(f"{account} is not open")
        before = write_tenant(found[0])
        change(account_record)
        changed = write_tenant(found[0])
        if changed == before:
            return account_record
        news = [Set(layout.shard(tenant), b""), Set(layout.news, b"")] if is_news else []
        try:
            await _mint(store, guards, [Set(path, changed, found[1].version), *news, *also])
            return account_record
        except VersionError:
            await store.sync()


def assign(mints: Mints, amount: int, live: Sequence[str]) -> Mints:
    """Which ledgers take a change in. A ledger that was told of a cut pays it out of what is unspent,
    and may owe some of it still, because it was used: new units go there first, to be netted. So what
    is out, total + owed, never passes the highest total that the account ever had."""
    owed: dict[str, int] = {}
    for ledger, units in mints:
        if not is_ledger(ledger):
            continue
        owed[ledger] = max(0, owed.get(ledger, 0) - units)
    entries = []
    for ledger in sorted(owed, key=lambda each: each not in live):
        part = min(owed[ledger], amount)
        if part > 0:
            entries.append((ledger, part))
            amount -= part
    if amount:
        entries.append((live[0], amount))
    return entries


def total(mints: Mints) -> int:
    """All that the account ever had to spend: the policy's limit, and what was topped up."""
    return sum(amount for _, amount in mints)
