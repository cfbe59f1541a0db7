"""What is asked of a node's book, and how it answers."""

from __future__ import annotations

from dataclasses import dataclass

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
    """An acquisition that waits for units of one or more accounts."""

    __slots__ = ("accounts", "amount", "key", "number", "tenant")

    def __init__(
        self, number: int, tenant: str, accounts: tuple[str, ...], amount: int, key: str | None
    ) -> None:
        self.number = number
        self.tenant = tenant
        self.accounts = accounts
        self.amount = amount
        self.key = key
