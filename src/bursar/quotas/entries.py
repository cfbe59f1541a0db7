"""The lines of a node's journal: everything that happened to its units, oldest first.

A line is written before anybody is told what it says. Debits count from the writing, credits
from the moment the line is durable: a crash in between leaves every unit where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import JournalError


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """A life of this ledger began, with this generation. `identity` names the ledger; `store` and `epoch`
    say which store its units are counted in ("" and 0 in lines of earlier versions)."""

    generation: int
    identity: str
    store: str = ""
    epoch: int = 0


class Minted(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """Entry `number` of the account's list in the store is taken in: units came into being here,
    or (negative) are to be taken out of the world."""

    account: str
    number: int
    amount: int


class Burned(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Units were taken out of the world, for a cut."""

    account: str
    amount: int


class Held(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Units of every account in the chain are reserved for one acquisition. `ahead`: they were charged
    before, in a block."""

    hold: int
    tenant: str
    accounts: tuple[str, ...]
    amount: int
    key: str | None
    ahead: bool = False
    hold_ns: int = 0


class Grown(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A hold has more units: charged to these accounts, which may be overdrafts."""

    hold: int
    accounts: tuple[str, ...]
    amount: int
    ahead: bool = False


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """A hold expires so long after it was last heard of."""

    hold: int
    hold_ns: int


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A hold is over: so much was charged, the rest is unspent again. `unpaid` was used beyond that."""

    hold: int
    used: int
    unpaid: int = 0


class Late(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """After a hold had expired, and was charged in full, it was found that so much more had been used."""

    hold: int
    accounts: tuple[str, ...]
    unpaid: int


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The key of a hold that is over is free: this ledger is no longer its home."""

    hold: int


class Blocked(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Charged ahead: a block that is spent as far as a crash can tell. Negative: given back."""

    account: str
    amount: int


class Sent(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Transfer `number` on the way to `to`: debited here, to be resent until acknowledged."""

    account: str
    to: str
    number: int
    amount: int


class Received(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Credit and id in one line: everything from `sender` up to `number` has been taken in."""

    account: str
    sender: str
    number: int
    amount: int


class Balance(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """One account of a compacted journal, with its channels: (peer, sent, received, outbox).
    Units of open holds are in the `Kept` lines that follow."""

    account: str
    unspent: int
    spent: int
    debt: int
    mints: int
    channels: tuple[tuple[str, int, int, tuple[tuple[int, int], ...]], ...]
    carried: int = 0
    unpaid: int = 0


class Kept(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """A hold of a compacted journal: open, or (`used` is a number) over and remembered. `more`: what it grew
    by, as (accounts, amount)."""

    hold: int
    tenant: str
    accounts: tuple[str, ...]
    amount: int
    key: str | None
    used: int | None
    more: tuple[tuple[tuple[str, ...], int], ...] = ()
    unpaid: int = 0
    hold_ns: int = 0


OfHold = Held | Grown | Extended | Settled | Late | Kept | Forgotten
OfAccount = Minted | Burned | Blocked | Sent | Received
Entry = Opened | OfHold | OfAccount | Balance

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def read(records: Iterable[bytes]) -> Iterator[Entry]:
    """Raises JournalError that says which line cannot be read."""
    for position, record in enumerate(records):
        try:
            yield _decode(record)
        except DECODE_ERRORS as error:
            raise JournalError(f"line {position} of the ledger cannot be read: {error}") from error


def read_identity(records: Iterable[bytes]) -> str | None:
    """The name of the ledger that these lines belong to; None if there are none. Raises JournalError."""
    for entry in read(records):
        if isinstance(entry, Opened):
            return entry.identity
    return None
