"""What is asked of a node's book, and how it answers."""

from __future__ import annotations

from dataclasses import dataclass

from bursar.quotas.balances import Hold

LEDGER_MARK = "~"
"""Separates a node's name from the number of its ledger, from the second one on: "b~2"."""


def node_of(ledger: str) -> str:
    """The machine on which a ledger is kept."""
    return ledger.partition(LEDGER_MARK)[0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Decided: `left` units of `account` were unspent anywhere, and `asked` is more. None: so many were
    never there at all."""

    account: str
    left: int | None
    asked: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Its key was used before, and another ledger is its home."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request: the number of a hold, which is durable; a refusal; or that it is no first request."""

    request: int
    outcome: int | Refusal | Taken


class Request:
    """An acquisition that waits for units of one or more accounts: a hold of its own, or more for one that
    is open (`grows`)."""

    __slots__ = ("accounts", "amount", "grows", "hold_ns", "key", "number", "tenant")

    def __init__(
        self,
        number: int,
        tenant: str,
        accounts: tuple[str, ...],
        amount: int,
        key: str | None,
        hold_ns: int = 0,
        grows: Hold | None = None,
    ) -> None:
        self.number = number
        self.tenant = tenant
        self.accounts = accounts
        self.amount = amount
        self.key = key
        self.hold_ns = hold_ns
        self.grows = grows
