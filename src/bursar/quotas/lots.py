"""Lots of a quota: units handed out ahead of use, in `fast` mode only.

They come out of the block, so they are charged on every level of the chain, and a crash leaves them
spent. All lots together take at most an eighth of what is left at this node. Whoever holds one spends or
gives back; what is neither by the end of the lot is spent. Before anything is refused, lots are recalled:
the root decides nothing while one is out (`statement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bursar.book import Effects
from bursar.quotas.balances import Account, Lot
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.quotas.book import NodeBook

LOT_NS = SECOND_NS
"""A lot ends after this, or at the end of the window."""

LOTS_PART = 8
"""All lots together have at most this part of what is left here: so much may be out when others ask."""


def issue(
    book: NodeBook, now: int, names: Sequence[str], wanted: int, until: int
) -> tuple[Lot | None, Effects]:
    """Up to so many units ahead of use, if nobody waits for any."""
    chain = book.chain(names)
    size = min(wanted, *(_find_room(book, account) for account in chain))
    if size <= 0:
        return None, []
    lot = book.ledger.issue_lot(chain, size, until)
    book.set_timer(until, chain[0], "lot", "")
    for account in chain:
        if size < wanted and account.block < account.unspent:
            book.grow_block(account, size)  # the last lot was used up, and this one is no larger
        book.keep_block(now, account)
    return lot, book.flush()


def _find_room(book: NodeBook, account: Account) -> int:
    """Half of what lots may still take, so that others find some too."""
    if book.demand(account).waiting or account.name in book.stopped:
        return 0
    left = account.unspent + account.block + account.ahead
    return (min(left // LOTS_PART - account.ahead, account.block) + 1) // 2


def spend(book: NodeBook, now: int, lot: Lot, amount: int) -> Effects:
    """So many of it were spent: ask for more units in time."""
    if _is_kept(book, lot):
        book.ledger.spend_lot(lot, amount)
        book.look_for_need(now, book.chain(lot.accounts))
    return book.flush()


def give_back(book: NodeBook, now: int, lot: Lot, amount: int) -> Effects:
    """So many of it were not spent, and will not be."""
    if _is_kept(book, lot):
        back = book.ledger.return_lot(lot, amount)
        for name in lot.accounts:
            book.take_in(now, name, back, served=True)
    return book.flush()


def _is_kept(book: NodeBook, lot: Lot) -> bool:
    """Whether its accounts were not forgotten with their window: what comes after that is nothing."""
    return all(name in book.ledger.accounts for name in lot.accounts)


def end_due(book: NodeBook, now: int) -> None:
    """What nobody gave back in time is spent."""
    for lot in [lot for lot in book.ledger.lots.values() if lot.until <= now]:
        book.ledger.spend_lot(lot, lot.out)


def recall(book: NodeBook, account: Account) -> None:
    """The account's lots are wanted back: the courier sees to it."""
    if account.ahead:
        book.recalls[account.name] = None
