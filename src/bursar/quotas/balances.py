"""What a ledger consists of: accounts with their channels, holds, and lots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Channel:
    """What went to and came from one other ledger, for one account.

    sent       number of the last transfer written here
    outbox     number -> (amount, line that wrote it), not acknowledged yet
    received   number of the last transfer from there that is durable here
    receiving  the same, written and perhaps not durable yet
    """

    __slots__ = ("ack_at", "outbox", "received", "receiving", "resend_at", "resend_ns", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.outbox: dict[int, tuple[int, int]] = {}
        self.received = 0
        self.receiving = 0
        self.resend_at: int | None = None
        self.resend_ns = 0
        self.ack_at: int | None = None


class Account:
    """One account in one ledger. `fast` mode charges ahead: `block` is what was not granted yet, and
    `ahead`, a part of `held`, is out in lots. `carried` is what the ledger had, or had sent, when it came
    from an earlier epoch of the store. `unpaid` was used, as whoever settled said, and could not be charged:
    it is no part of the units."""

    __slots__ = (
        "ahead",
        "block",
        "carried",
        "channels",
        "debt",
        "endowment",
        "held",
        "mints",
        "name",
        "spent",
        "unpaid",
        "unspent",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.endowment = 0
        self.unspent = 0
        self.block = 0
        self.held = 0
        self.ahead = 0
        self.spent = 0
        self.unpaid = 0
        self.debt = 0
        self.mints = 0
        self.carried = 0
        self.channels: dict[str, Channel] = {}

    def channel(self, peer: str) -> Channel:
        found = self.channels.get(peer)
        if found is None:
            found = self.channels[peer] = Channel()
        return found

    @property
    def used(self) -> int:
        """Units that were taken from this account here, for good or for now. Demand is judged by it, so
        a lot counts as far as it is known to be spent."""
        return self.held - self.ahead + self.spent

    def in_outbox(self) -> int:
        return sum(amount for channel in self.channels.values() for amount, _ in channel.outbox.values())


class Part(NamedTuple):
    """Units that a hold grew by, and the accounts that they were charged to: those of the hold, or, for a
    level that had nothing left, its overdraft."""

    accounts: tuple[str, ...]
    amount: int


class Hold:
    """Units reserved for one acquisition: `amount` that were asked for, and what it grew by since. `used` is
    None while it is open, then what was charged; `unpaid` was used as well, and nobody could charge it. A
    hold of `fast` mode has no line of its own: its block paid for it. It expires `hold_ns` after it was told,
    or last extended (0: after what the policy says)."""

    __slots__ = (
        "accounts",
        "amount",
        "expired",
        "expires_at",
        "hold_ns",
        "key",
        "more",
        "number",
        "repeated",
        "tenant",
        "unpaid",
        "used",
        "written",
    )

    def __init__(
        self,
        number: int,
        tenant: str,
        accounts: tuple[str, ...],
        amount: int,
        key: str | None,
        written: bool,
        hold_ns: int = 0,
    ) -> None:
        self.number = number
        self.tenant = tenant
        self.accounts = accounts
        self.amount = amount
        self.more: tuple[Part, ...] = ()
        self.key = key
        self.written = written
        self.hold_ns = hold_ns
        self.used: int | None = None
        self.unpaid = 0
        self.expires_at: int | None = None
        self.expired = False
        self.repeated = False
        """Whether another was told of it, who asked with the same key."""

    @property
    def size(self) -> int:
        """All that is reserved for it."""
        return self.amount + sum(part.amount for part in self.more)

    @property
    def claimed(self) -> int | None:
        """What whoever settled said was used; None while it is open."""
        return None if self.used is None else self.used + self.unpaid

    def parts(self) -> tuple[Part, ...]:
        return (Part(self.accounts, self.amount), *self.more)

    def split(self, used: int) -> Iterator[tuple[str, int, int]]:
        """(account, reserved there, used of it): what came first is used first."""
        for accounts, amount in self.parts():
            spent = min(used, amount)
            used -= spent
            for account in accounts:
                yield account, amount, spent


class Lot:
    """Units handed out ahead of use, until a time: `size` in all, of which `out` may still be spent
    somewhere and `back` came back. The rest counts as spent."""

    __slots__ = ("accounts", "back", "number", "out", "size", "until")

    def __init__(self, number: int, accounts: tuple[str, ...], size: int, until: int) -> None:
        self.number = number
        self.accounts = accounts
        self.size = self.out = size
        self.back = 0
        self.until = until
