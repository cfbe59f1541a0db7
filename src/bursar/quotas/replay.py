"""A ledger out of its journal, and the journal made short again.

`replay` reads every line as it would be found after a crash: a block is spent, a hold whose end
was not written is open. `compact` writes the present state as lines that replay to what the
journal before it would have replayed to, so the two may be swapped at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bursar.errors import JournalError
from bursar.quotas import entries
from bursar.quotas.balances import Account, Channel, Hold, Part
from bursar.quotas.entries import (
    Balance,
    Blocked,
    Burned,
    Entry,
    Extended,
    Forgotten,
    Grown,
    Held,
    Kept,
    Late,
    Minted,
    Opened,
    Received,
    Sent,
    Settled,
)
from bursar.quotas.ledger import Ledger, keep

DURABLE = 0
"""The line of an outbox entry that an earlier life wrote: sent at once."""


def replay(ledger: Ledger, records: Iterable[bytes]) -> None:
    """Take in what earlier lives of this ledger wrote. Raises JournalError."""
    for position, entry in enumerate(entries.read(records)):
        try:
            _apply(ledger, entry)
        except KeyError as error:
            raise JournalError(
                f"line {position} of the ledger {ledger.identity} speaks of hold {error}, which is not open"
            ) from error


def _apply(ledger: Ledger, entry: Entry) -> None:
    match entry:
        case Opened(generation, _, store, epoch):
            ledger.generation = generation
            ledger.enter(store, epoch)
        case Held() | Kept():
            _apply_hold(ledger, entry)
        case Grown():
            _apply_growth(ledger, ledger.holds[entry.hold], entry)
        case Extended(number, hold_ns):
            ledger.holds[number].hold_ns = hold_ns
        case Settled():
            _apply_settled(ledger, entry)
        case Late():
            _apply_late(ledger, entry)
        case Forgotten(number):
            ledger.drop_key(number)
        case Balance():
            _apply_balance(ledger, entry)
        case _:
            _apply_units(ledger.account(entry.account), entry)


def _apply_units(account: Account, entry: Minted | Burned | Blocked | Sent | Received) -> None:
    match entry:
        case Minted(_, number, amount):
            account.mints = max(account.mints, number)
            account.debt += max(-amount, 0)
            _gain(account, max(amount, 0))
        case Burned(_, amount):
            account.debt -= amount
            _gain(account, -amount)
        case Blocked(_, amount):
            account.unspent -= amount
            account.spent += amount
        case Sent(_, to, number, amount):
            channel = account.channel(to)
            channel.sent = number
            channel.outbox[number] = (amount, DURABLE)
            _gain(account, -amount)
        case Received(_, sender, number, amount):
            channel = account.channel(sender)
            channel.received = channel.receiving = number
            _gain(account, amount)


def _gain(account: Account, amount: int) -> None:
    account.unspent += amount
    account.endowment += amount


def _apply_hold(ledger: Ledger, entry: Held | Kept) -> None:
    hold = Hold(
        entry.hold, entry.tenant, entry.accounts, entry.amount, entry.key, written=True, hold_ns=entry.hold_ns
    )
    ledger.add_hold(hold)
    if isinstance(entry, Held):
        _reserve(ledger, hold.parts()[0], ahead=entry.ahead)
        return
    hold.more = tuple(Part(*part) for part in entry.more)
    if entry.used is not None:
        ledger.close_hold(hold, entry.used, entry.unpaid)
        return
    for name, reserved, _ in hold.split(0):
        account = ledger.account(name)
        account.held += reserved
        account.endowment += reserved


def _reserve(ledger: Ledger, part: Part, *, ahead: bool) -> None:
    for account in map(ledger.account, part.accounts):
        account.held += part.amount
        if ahead:
            account.spent -= part.amount
        else:
            account.unspent -= part.amount


def _apply_growth(ledger: Ledger, hold: Hold, entry: Grown) -> None:
    part = Part(entry.accounts, entry.amount)
    hold.more += (part,)
    _reserve(ledger, part, ahead=entry.ahead)


def _apply_settled(ledger: Ledger, entry: Settled) -> None:
    hold = ledger.holds[entry.hold]
    ledger.close_hold(hold, entry.used, entry.unpaid)
    for name, reserved, spent in hold.split(entry.used):
        account = ledger.account(name)
        account.held -= reserved
        account.spent += spent
        account.unspent += reserved - spent
    for account in map(ledger.account, hold.accounts):
        account.unpaid += entry.unpaid


def _apply_late(ledger: Ledger, entry: Late) -> None:
    """The hold itself may be one that nothing is remembered of: an earlier life's, in mode `fast`."""
    hold = ledger.closed.get(entry.hold)
    if hold is not None:
        hold.unpaid = entry.unpaid
    for account in map(ledger.account, entry.accounts):
        account.unpaid += entry.unpaid


def _apply_balance(ledger: Ledger, entry: Balance) -> None:
    account = ledger.account(entry.account)
    account.unspent = entry.unspent
    account.spent = entry.spent
    account.endowment = entry.unspent + entry.spent
    account.debt = entry.debt
    account.mints = entry.mints
    account.carried = entry.carried
    account.unpaid = entry.unpaid
    for peer, sent, received, outbox in entry.channels:
        channel = account.channel(peer)
        channel.sent = sent
        channel.received = channel.receiving = received
        channel.outbox = {number: (amount, DURABLE) for number, amount in outbox}


def compact(ledger: Ledger) -> list[bytes]:
    """The journal that says the same in as few lines as there are accounts, holds and keys, and
    the credits that do not count yet."""
    waiting = list(ledger.pending_credits())
    settling = {entry.hold for entry in waiting if isinstance(entry, Settled)}
    holds = [*ledger.settling_holds(), *(hold for hold in ledger.holds.values() if hold.written)]
    lines: list[Entry] = [Opened(ledger.generation, ledger.identity, ledger.store, ledger.epoch)]
    kept: Counter[str] = Counter()
    for hold in holds:
        for name, reserved, _ in hold.split(0):
            kept[name] += reserved
    lines += [_balance(account, kept[account.name]) for account in ledger.accounts.values()]
    lines += [keep(hold, None) for hold in holds]
    lines += [keep(hold, hold.used) for hold in ledger.closed_holds() if hold.number not in settling]
    lines += [entry for entry in waiting if not isinstance(entry, Blocked) or entry.amount < 0]
    return [entries.encode(line) for line in lines]


def _balance(account: Account, kept: int) -> Balance:
    """As a crash would find it: what is neither unspent nor in a written hold is spent."""
    spent = account.endowment - account.unspent - kept
    channels = tuple((peer, *_channel(channel)) for peer, channel in account.channels.items())
    return Balance(
        account.name,
        account.unspent,
        spent,
        account.debt,
        account.mints,
        channels,
        account.carried,
        account.unpaid,
    )


def _channel(channel: Channel) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    outbox = tuple((number, amount) for number, (amount, _) in channel.outbox.items())
    return channel.sent, channel.received, outbox
