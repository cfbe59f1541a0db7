"""Accounts in the store: opened once, added to, and watched by every node.

An account's list of mints is the only place where units come from. Adding to the list is one
compare-and-set; each entry names the ledger that takes it in, which does so once, by number. So a
top-up that was cut off by a crash is there or not, and a node that was away takes in its part when
it returns.

Units are minted by the terms in force and by no others: whoever mints by the policy hands over the
fleet's guards, taken at the moment at which it read the limit. If newer terms stand in the store by
then, nothing is minted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from bursar.errors import (
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    UsageError,
    VersionError,
)
from bursar.quotas.layout import (
    ELSEWHERE,
    FOUND,
    WARNING_MARK,
    AccountRecord,
    Layout,
    Mints,
    is_ledger,
    read_account,
    read_name,
    split_evenly,
    write_account,
)
from bursar.quotas.windows import add_horizon, is_over
from bursar.resource import AMOUNT_MAX
from bursar.world import MILLISECOND_NS, Check, Create, Operation, Set, Store, World

RETRY_NS = 50 * MILLISECOND_NS


Guards = Sequence[Check]
"""Of the terms that a limit was read from (`Fleet.guards`)."""


class WindowOverError(StoreError):
    """The account is of a window that every node has left behind."""


class OldTermsError(StoreError):
    """Newer terms stand in the store than those that the limit was read from. Nothing was minted."""


async def open_account(
    store: Store,
    layout: Layout,
    account: str,
    limit: int,
    ledgers: Sequence[str],
    guards: Guards = (),
    *,
    carried: bool = False,
) -> Mints:
    """The account's mints; the first to ask for it makes them, spread over `ledgers`. One that is `carried`
    may have been open in an earlier epoch of the store: nothing is minted for it, its units are where the
    ledgers of that time have them. Raises OldTermsError."""
    path = layout.account(account)
    while True:
        horizons, stat = await store.get(layout.accounts)
        if is_over(account, horizons.decode()):
            raise WindowOverError(
                f"the window of {account} is over, kept is what begins with {horizons.decode()}: "
                "is this node's clock right?"
            )
        try:
            data, _ = await store.get(path)
            return read_account(data).mints
        except NodeMissingError:
            mints = [(ELSEWHERE, limit)] if carried else split_evenly(limit, ledgers)
        made = Create(path, write_account(AccountRecord(limit, mints)))
        try:
            await _mint(store, account, guards, [Check(layout.accounts, stat.version), made])
            return mints
        except (NodeExistsError, VersionError):
            await store.sync()  # somebody else was faster


async def _mint(store: Store, account: str, guards: Guards, operations: Sequence[Operation]) -> None:
    """Only under the terms that the guards stand for."""
    try:
        await store.transact([*guards, *operations])
    except VersionError as error:
        if error.position is not None and error.position < len(guards):
            raise OldTermsError(
                f"newer terms are in force than those this node runs, so it mints nothing for {account} "
                "until it has taken them"
            ) from error
        raise


async def read_horizons(store: Store, layout: Layout) -> str:
    data, _ = await store.get(layout.accounts)
    return data.decode()


async def forget(store: Store, layout: Layout, horizon: str) -> None:
    """Accounts of windows before the horizon are over: delete them, and let nobody open them again.
    With an empty one: go on with what was begun."""
    data, stat = await store.get(layout.accounts)
    horizons = add_horizon(data.decode(), horizon)
    if horizons != data.decode():
        await store.set(layout.accounts, horizons.encode(), stat.version)
    for node in await store.children(layout.accounts):
        if is_over(read_name(node), horizons):
            await _delete(store, f"{layout.accounts}/{node}")
    for node in await store.children(layout.warnings):
        if is_over(read_name(node.rpartition(WARNING_MARK)[0]), horizons):
            await _delete(store, f"{layout.warnings}/{node}")


async def _delete(store: Store, path: str) -> None:
    try:
        await store.delete(path)
    except NodeMissingError:
        return


async def change_limit(
    store: Store,
    layout: Layout,
    account: str,
    limit: int,
    live: Sequence[str],
    guards: Guards = (),
    also: Sequence[Operation] = (),
) -> Mints:
    """The policy says `limit` now: bring the account's total to it, at ledgers that are up. Where that
    was done before (by another node), what was topped up since stays. Of an account that was carried into
    this epoch of the store nobody knows how much there is, so it is only ever cut: whoever knows tops it up.
    `also` is done with it. Raises OldTermsError."""

    def change(record: AccountRecord) -> int:
        if record.limit == limit:
            return 0
        record.limit = limit
        more = limit - total(record.mints)
        carried = any(ledger == ELSEWHERE for ledger, _ in record.mints)
        return min(0, more) if carried else more

    return (await _change(store, layout, account, live, change, guards, also))[0]


async def read_limit(store: Store, layout: Layout, account: str) -> int | None:
    """The limit that was last carried out; None if the account is not open."""
    try:
        data, _ = await store.get(layout.account(account))
    except NodeMissingError:
        return None
    return read_account(data).limit


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
    return await _change(
        store, layout, account, live, lambda record: max(amount, -total(record.mints)), also=also
    )


async def _change(
    store: Store,
    layout: Layout,
    account: str,
    live: Sequence[str],
    change: Callable[[AccountRecord], int],
    guards: Guards = (),
    also: Sequence[Operation] = (),
) -> tuple[Mints, Mints]:
    """Add what `change` says to the account; it may change the record too. One compare-and-set, with
    `also` in its transaction. All mints, and those added."""
    while True:
        data, stat = await store.get(layout.account(account))
        record = read_account(data)
        amount = change(record)
        if total(record.mints) + amount > AMOUNT_MAX:
            raise UsageError(f"{account} has {total(record.mints)} units: {amount} more would pass 2^63 - 1")
        added = assign(record.mints, amount, live)
        record.mints += added
        changed = write_account(record)
        if changed == data:
            return record.mints, added
        try:
            made = Set(layout.account(account), changed, stat.version)
            await _mint(store, account, guards, [made, *also])
        except VersionError:
            continue
        return record.mints, added


async def fence(store: Store, layout: Layout, account: str, why: str) -> None:
    """Nothing is granted of the account any more, at any node: its audit found what cannot be."""
    await _mark(store, layout, account, why, 0)


async def let_stand(
    store: Store, layout: Layout, account: str, excess: int, also: Sequence[Operation] = ()
) -> None:
    """What was found beyond all mints counts as minted, and the account is granted of again."""
    await _mark(store, layout, account, "", excess, also)


async def _mark(
    store: Store,
    layout: Layout,
    account: str,
    why: str,
    excess: int,
    also: Sequence[Operation] = (),
) -> None:
    while True:
        data, stat = await store.get(layout.account(account))
        record = read_account(data)
        record.fenced = why
        record.mints += [(FOUND, excess)] if excess else []
        try:
            await store.transact([Set(layout.account(account), write_account(record), stat.version), *also])
            return
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


class AccountWatcher:
    """Tells `minted(account, mints)` of every account, and of every change to one; `fenced(account, why)` of
    what nothing may be granted of; and `ended(horizons)` of the windows before which accounts were
    forgotten."""

    def __init__(
        self,
        world: World,
        layout: Layout,
        minted: Callable[[str, Mints], None],
        fenced: Callable[[str, str], None],
        ended: Callable[[str], None],
    ) -> None:
        self._world = world
        self._layout = layout
        self._minted = minted
        self._fenced = fenced
        self._ended = ended
        self._known: dict[str, int] = {}
        self._looked: dict[str, None] = {}

    def start(self) -> None:
        self._world.spawn(
            self._follow(self._layout.accounts, self._look_at_all), f"{self._layout.accounts}.watch"
        )

    async def _look_at_all(self) -> bool:
        horizons = await read_horizons(self._world.store, self._layout)
        for account in [account for account in {**self._looked, **self._known} if is_over(account, horizons)]:
            self._looked.pop(account, None)
            self._known.pop(account, None)
        self._ended(horizons)
        for account in map(read_name, await self._world.store.children(self._layout.accounts)):
            if account not in self._looked and not is_over(account, horizons):
                self._looked[account] = None
                path = self._layout.account(account)
                self._world.spawn(self._follow(path, self._look_at(account)), f"{path}.watch")
        return True

    def _look_at(self, account: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            if account not in self._looked:
                return False
            data, _ = await self._world.store.get(self._layout.account(account))
            record = read_account(data)
            self.learn(account, record.mints)
            self._fenced(account, record.fenced)
            return True

        return look

    def learn(self, account: str, mints: Mints) -> None:
        """A stale list is a shorter one: it says nothing."""
        if len(mints) > self._known.get(account, 0):
            self._known[account] = len(mints)
            self._minted(account, mints)

    async def _follow(self, path: str, look: Callable[[], Awaitable[bool]]) -> None:
        """Look, and look again after every change, until there is no more to see. Watch first, so that
        no change is missed."""
        while True:
            try:
                watch = await self._world.store.watch(path)
                try:
                    await self._world.store.sync()  # what a watch told of may not be seen otherwise
                    if not await look():
                        return
                    await watch.changed()
                finally:
                    watch.close()
            except (SessionExpiredError, StoreUnknownError, NodeMissingError):
                await self._world.clock.sleep(RETRY_NS)
