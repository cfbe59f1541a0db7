"""Books that break a rule: the searches and the seeds must catch every one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bursar.book import Effects
from bursar.errors import NodeExistsError, StoreError
from bursar.quotas.accounts import Guards, Opening
from bursar.quotas.balances import Account, Hold
from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.entries import Entry, Settled
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


class HearsFirst(QuotaCourier):
    """Mutation: a node says that it has carried a change out before it has read of it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.registry._read_changed = self._read_late  # type: ignore[method-assign]

    async def _read_late(self, shard: str) -> Any:
        self.world.spawn(self._read(shard), "late")
        return await self.world.store.exists(shard)

    async def _read(self, shard: str) -> None:
        try:
            await type(self.registry)._read_changed(self.registry, shard)
        except StoreError:
            return  # the mutation is about when, not about whether


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

    async def open_account(self, opening: Opening, guards: Guards) -> None:
        await super().open_account(opening._replace(carried=False), guards)


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


class GrowsUnwritten(NodeBook):
    """Mutation: what a hold grew by is not written down, so a crash forgets it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = _Unwritten(self.ledger.identity)


class _Unwritten(Ledger):
    def grow(self, hold: Hold, chain: Sequence[Account], amount: int, *, ahead: bool) -> bool:
        written, hold.written = hold.written, False
        grown = super().grow(hold, chain, amount, ahead=ahead)
        hold.written = written
        return grown


class GrowsForNothing(NodeBook):
    """Mutation: a hold grows by units that nobody has."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = _Generous(self.ledger.identity)


class _Generous(Ledger):
    def grow(self, hold: Hold, chain: Sequence[Account], amount: int, *, ahead: bool) -> bool:
        for account in chain:
            lacking = max(0, amount - (account.block if ahead else account.unspent))
            account.unspent += 0 if ahead else lacking
            account.block += lacking if ahead else 0
            account.endowment += lacking
        return super().grow(hold, chain, amount, ahead=ahead)


class ForgetsUnpaid(NodeBook):
    """Mutation: what could not be charged is known to nobody after a restart."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = _Forgetful(self.ledger.identity)


class _Forgetful(Ledger):
    def _write(self, entry: Entry, *, credits: bool = False) -> int:
        if isinstance(entry, Settled):
            entry = Settled(entry.hold, entry.used)
        return super()._write(entry, credits=credits)


class ForgetsExtensions(NodeBook):
    """Mutation: a hold that was extended has the policy's time again after a restart."""

    def extend(self, now: int, hold: Hold, hold_ns: int) -> Effects:
        hold.hold_ns = hold_ns
        return self.flush()


class ChargesMore(NodeBook):
    """Mutation: a hold that is settled is charged a unit more, where it has one."""

    def _settle(self, now: int, hold: Hold, used: int, unpaid: int = 0) -> None:
        super()._settle(now, hold, min(hold.size, used + 1) if used else used, unpaid)


class KeepsRefunds(NodeBook):
    """Mutation: what comes back from a hold stays held, by nobody."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = KeepingLedger(self.ledger.identity)


class KeepingLedger(Ledger):
    def _refund(self, hold: Hold, entry: Settled) -> list[Account]:
        gained = super()._refund(hold, entry)
        for name, reserved, spent in hold.split(entry.used):
            account = self.account(name)
            account.unspent -= reserved - spent
            account.held += reserved - spent
        return gained
