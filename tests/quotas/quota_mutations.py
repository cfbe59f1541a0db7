"""Books that break a rule: the searches and the seeds must catch every one."""

from __future__ import annotations

from typing import Any

from bursar.book import Effects
from bursar.errors import NodeExistsError
from bursar.quotas.balances import Account
from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.ledger import Ledger
from bursar.quotas.requests import Refusal


class SendsFirst(NodeBook):
    """Mutation: a message leaves before its debit is durable."""

    def post(self, now: int, kind: Any, account: Account, to: str, **fields: Any) -> None:
        durable, self.ledger.durable = self.ledger.durable, self.ledger.written
        self._emit(now, kind, account.name, to, fields)
        self.ledger.durable = durable


class Reverts(NodeBook):
    """Mutation: a transfer that is not acknowledged in time is taken back."""

    def tick(self, now: int) -> Effects:
        for account in self.ledger.accounts.values():
            for channel in account.channels.values():
                if channel.resend_at is not None and now >= channel.resend_at:
                    for number in list(channel.outbox):
                        amount, _ = channel.outbox.pop(number)
                        account.unspent += amount
                        account.endowment += amount
        return super().tick(now)


class AnswersFirst(NodeBook):
    """Mutation: a grant is told before it is durable."""

    def defer(self, now: int, what: str, *arguments: Any) -> None:
        if what == "_answer":
            self._answer(now, *arguments)
        else:
            super().defer(now, what, *arguments)


class PaysCutsLate(NodeBook):
    """Mutation: units that come may be used or sent on before they pay for a cut."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = LateLedger(self.ledger.identity)


class LateLedger(Ledger):
    def mint(self, name: str, number: int, amount: int) -> None:
        super().mint(name, number, amount)
        super()._burn(self.account(name))

    def _burn(self, account: Account) -> None:
        """Only where a cut is taken in."""


class BeginsAnew(QuotaCourier):
    """Mutation: a node whose ledger is lost takes up its name again, and its mints with it."""

    async def _choose_identity(self) -> str:
        for folder in self.layout.folders():
            await self.world.store.ensure(folder)
        return self.world.name

    async def _check_generation(self) -> None:
        self.book.ledger.generation = self.world.incarnation
        try:
            await self.world.store.create(self.layout.ledger(self.book.identity), b"0")
        except NodeExistsError:
            return


class Recredits(NodeBook):
    """Mutation: the id of a transfer is not written with its credit."""

    def receive(self, now: int, sender: str, message: Any) -> Effects:
        account = self.ledger.account(message.account)
        channel = account.channel(message.source)
        if message.units and channel.received == channel.receiving:
            channel.received = channel.receiving = message.units[0][0] - 1
        return super().receive(now, sender, message)


class RefusesLocally(NodeBook):
    """Mutation: what is not here is refused (the root's verdict is not waited for)."""

    def look_for_need(self, now: int, chain: Any) -> None:
        for request in list(self.requests.values()):
            self._refuse(request, Refusal("acme", 0, request.amount))
