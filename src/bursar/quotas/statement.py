"""What a full wave found: is it everything there is? (DESIGN: a refusal is decided, not guessed.)

Each ledger, as it hands over all its units, says how many transfers it ever sent on each channel
and how many it received. If every ledger has spoken and both ends of every channel said the same
number, then no transfer was under way across the line drawn by the answers: the line is a state
that the whole could have been in at one moment, with nothing in flight. In that state every unit
that is not held or spent was on its way to the root, and has arrived.

A subtree drops the channels whose two ends it has heard, so a statement stays small.
"""

from __future__ import annotations

from collections.abc import Iterable

from bursar.quotas.balances import Account
from bursar.quotas.messages import Pair, Statement

Counts = tuple[int, int]


def merge(identity: str, account: Account, mints: int, parts: Iterable[Statement]) -> Statement:
    """This ledger's statement, and those of its children. What a hold gave back to the block too late to
    be handed over counts as held: it may yet be had."""
    members, held, ahead = [identity], account.held + account.block, account.ahead
    loose = _own_pairs(identity, account)
    for part in parts:
        members += part.members
        held += part.held
        ahead += part.ahead
        mints = min(mints, part.mints)
        for source, target, sent, received in part.loose:
            other = loose.get((source, target), (-1, -1))
            loose[source, target] = (max(sent, other[0]), max(received, other[1]))
    pairs: list[Pair] = [(*ends, *counts) for ends, counts in loose.items() if counts[0] != counts[1]]
    return Statement(tuple(members), tuple(pairs), held, ahead, mints)


def _own_pairs(identity: str, account: Account) -> dict[tuple[str, str], Counts]:
    pairs: dict[tuple[str, str], Counts] = {}
    for peer, channel in account.channels.items():
        if channel.sent:
            pairs[identity, peer] = (channel.sent, -1)
        if channel.received:
            pairs[peer, identity] = (-1, channel.received)
    return pairs


def is_complete(statement: Statement, members: frozenset[str], fenced: frozenset[str], mints: int) -> bool:
    """Whether everybody has spoken and nothing was in flight or out in lots. What a fenced ledger has,
    and what is on the way to or from it, is written off; a ledger that nobody here has heard of shows as
    the other end of a channel."""
    if statement.mints < mints or statement.ahead or not (members - fenced).issubset(statement.members):
        return False
    return all(source in fenced or target in fenced for source, target, _, _ in statement.loose)
