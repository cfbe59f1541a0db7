"""Books that break a rule: the searches and the seeds must catch every one."""

from __future__ import annotations

from typing import Any

import msgspec

from bursar.book import Effects
from bursar.errors import NodeExistsError
from bursar.quotas.accounts import Guards
from bursar.quotas.balances import Account, Hold
from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.ledger import Ledger
from bursar.quotas.messages import Statement
from bursar.quotas.requests import Refusal
from bursar.quotas.round import Round


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


class MintsAgain(QuotaCourier):
    """Mutation: in an adopted store accounts are opened as if they had never been."""

    async def open_account(self, account: str, limit: int, guards: Guards) -> None:
        self.is_carried = lambda: False
        await super().open_account(account, limit, guards)


class Recredits(NodeBook):
    """Mutation: the id of a transfer is not written with its credit."""

    def receive(self, now: int, sender: str, message: Any) -> Effects:
        account = self.ledger.account(message.account)
        channel = account.channel(message.source)
        if message.units and channel.received == channel.receiving:
            channel.received = channel.receiving = message.units[0][0] - 1
        return super().receive(now, sender, message)


class TellsUnasked(NodeBook):
    """Mutation: a hold with a key is told before the store said whose the key is."""

    def _ask_home(self, now: int, number: int) -> None:
        super()._ask_home(now, number)
        hold = self.ledger.holds[number]
        entry = self.keys.find(hold.key or "")
        assert entry is not None
        self.win_key(now, hold.key or "", number)


class TrustsItsLedger(NodeBook):
    """Mutation: a node that comes back takes the keys of its open holds for its own."""

    def open(self, now: int, generation: int) -> Effects:
        effects = super().open(now, generation)
        for key, hold in self.ledger.keys.items():
            effects += self.win_key(now, key, hold.number)
        return effects


class KeepsBoth(NodeBook):
    """Mutation: what was held for a key that has another home stays held."""

    def lose_key(self, now: int, key: str, number: int) -> Effects:
        return self.win_key(now, key, number)


class FreesFirst(NodeBook):
    """Mutation: a key is free before it is durable that its hold was given back."""

    def _settle(self, now: int, hold: Hold, used: int) -> None:
        super()._settle(now, hold, used)
        if hold.key is not None and used == 0:
            self.keys.settle(now, hold)


class KeepsGivenBack(NodeBook):
    """Mutation: whoever repeats a key whose hold was given back is told of that hold: a free pass."""

    def _settle(self, now: int, hold: Hold, used: int) -> None:
        key, hold.key = hold.key, None
        super()._settle(now, hold, used)
        hold.key = key


class DecidesOverLots(NodeBook):
    """Mutation: the root decides while lots are out."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.round_class = _Hasty


class _Hasty(Round):
    def _state(self, book: NodeBook) -> Statement:
        return msgspec.structs.replace(super()._state(book), ahead=0)


class StatesEarly(NodeBook):
    """Mutation: a node whose disk is slow states all it has before its block is back."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.round_class = _Early


class _Early(Round):
    def prepare_full(self, book: NodeBook, now: int) -> None:
        super().prepare_full(book, now)
        self.emptied = True


class RefusesLocally(NodeBook):
    """Mutation: what is not here is refused (the root's verdict is not waited for)."""

    def look_for_need(self, now: int, chain: Any) -> None:
        for request in list(self.requests.values()):
            self._refuse(request, Refusal("acme", 0, request.amount))
