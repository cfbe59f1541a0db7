"""A node's book: its ledger, its place in the tree, the requests that wait, and what is said.

**What rests on what.** That no unit is spent twice or lost rests on the ledger alone (ledger.py);
whatever this book and the rounds decide, units only move by `Ledger.send` and `Ledger.receive`.
Three things more are promised here:

- *charged before it is used*: a grant is told when its line is durable, and a message that carries
  units leaves when the debit is durable;
- *one key, one acquisition*: a grant with a key is told when this ledger is the key's home (keys.py);
- *a refusal is decided*: it is told only after the root, in one full wave, heard every ledger that
  is not fenced, each handing over all it had, and after every channel's two ends agreed on the
  number of transfers. Such a set of answers is a consistent cut with nothing in flight, so what
  arrived at the root is all that was unspent (units still held may come back, and the refusal says
  until when it is remembered). Nothing is decided while lots are out anywhere: they are recalled.

The courier calls `request`, `settle`, `mint` and `join`, and takes `answers`, `recalls` and what `keys`
asks for.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from bursar.book import Effects, Record, Send
from bursar.quotas import lots, replay
from bursar.quotas.balances import Account, Hold
from bursar.quotas.blocks import Block
from bursar.quotas.demand import Demand
from bursar.quotas.gathering import Gathering
from bursar.quotas.keys import Keys
from bursar.quotas.layout import is_ledger
from bursar.quotas.ledger import Ledger
from bursar.quotas.messages import Busy, Collect, Credit, Note, Offer, Parting, Share
from bursar.quotas.requests import Answer, Refusal, Request, Taken, node_of
from bursar.quotas.round import Round
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.windows import is_over
from bursar.world import Message

WAVE_BITS = 32
"""Waves are numbered on from generation to generation, so that a new life's are not taken for old."""


LEARN_MINTS = "_learn_mints"


class NodeBook:
    """One node of one resource. See the module for what it promises."""

    round_class: type[Round] = Round

    def __init__(self, identity: str, rules: Rules = BURSAR, *, block: int = 0) -> None:
        """`block` is 0 in `exact` mode, the units charged ahead for each account in `fast` (or AUTO)."""
        self.ledger = Ledger(identity)
        self.rules = rules
        self.block = block
        self.parent: str | None = None
        self.children: tuple[str, ...] = ()
        self.members: frozenset[str] | None = None
        self.fenced: frozenset[str] = frozenset()
        self.demands: dict[str, Demand] = {}
        self.rounds: dict[str, Round] = {}
        self.blocks: dict[str, Block] = {}
        self.requests: dict[int, Request] = {}
        self.answers: list[Answer] = []
        self.keys = Keys()
        self.recalls: dict[str, None] = {}
        self.stopped: dict[str, str] = {}
        self._numbers = 0
        self._waves = 0
        self._effects: Effects = []
        self._deferred: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._awaited = 0
        self._timers: list[tuple[int, str, str, str]] = []
        self._horizon_s = 0

    @property
    def identity(self) -> str:
        return self.ledger.identity

    @property
    def awaits_sync(self) -> bool:
        """Whether a message, an answer or a step waits for what was written to be durable. (That mints are is
        waited for by nobody: whoever wants their units writes more.)"""
        return self._awaited > 0

    def chain(self, names: Iterable[str]) -> list[Account]:
        return [self.ledger.account(name) for name in names]

    def round(self, account: Account) -> Round:
        found = self.rounds.get(account.name)
        if found is None:
            demand = self.demand(account)
            found = self.rounds[account.name] = self.round_class(demand, Gathering(demand))
        return found

    def demand(self, account: Account) -> Demand:
        found = self.demands.get(account.name)
        if found is None:
            found = self.demands[account.name] = Demand(self.rules, account)
        return found

    # -- what the courier asks for

    def open(self, now: int, generation: int, store: str = "", epoch: int = 0) -> Effects:
        """Begin this life, after the replay, in an epoch of the store."""
        self.ledger.open(generation, store, epoch)
        self._waves = generation << WAVE_BITS
        self.keys.open(now, self.ledger)
        return self.resend(now)

    def resend(self, now: int) -> Effects:
        """What an earlier life sent, and does not know to have arrived, is sent again."""
        for account in self.ledger.accounts.values():
            for peer, channel in account.channels.items():
                if channel.outbox:
                    self._set_resend(now, account, peer)
        return self.flush()

    def join(
        self,
        now: int,
        parent: str | None,
        children: Sequence[str],
        members: Iterable[str],
        fenced: Iterable[str] = (),
    ) -> Effects:
        """The tree, as far as this node is concerned; every ledger that is not fenced; the rest."""
        self.parent = parent
        self.children = tuple(children)
        known, self.members = self.members, frozenset(members)
        self.fenced = frozenset(fenced)
        for round_ in list(self.rounds.values()):
            round_.forget_children(self.children)
            if self.members != known:
                round_.demand.forget_verdict()
            round_.retry_soon(self, now)
        return self.flush()

    def mint(self, now: int, name: str, mints: Sequence[tuple[str, int]]) -> Effects:
        """The account's list in the store, whole: (ledger, amount) of each entry, from the first."""
        account = self.ledger.account(name)
        known = account.mints
        self.demand(account).hear_mints(len(mints))
        for number, (ledger, amount) in enumerate(mints, start=1):
            if ledger == self.identity:
                self.ledger.mint(name, number, amount)
        if account.mints > known:
            self.serve(now, account)
        # Known once the units are here for good: a statement that names a mint must include its units.
        owners = frozenset(ledger for ledger, _ in mints if is_ledger(ledger))
        self.defer(now, LEARN_MINTS, name, len(mints), sum(amount for _, amount in mints), owners)
        return self.flush()

    def stop(self, now: int, name: str, why: str) -> Effects:
        """Nothing is granted of the account, for that reason; "": it is again."""
        if why:
            self.stopped[name] = why
        elif self.stopped.pop(name, None) is not None:
            self.serve(now, self.ledger.account(name))
        return self.flush()

    def is_stopped(self, names: Iterable[str]) -> str:
        """Why nothing is granted of one of these; "" if it is of all."""
        return (
            next((self.stopped[name] for name in names if name in self.stopped), "") if self.stopped else ""
        )

    def forget(self, now: int, horizon_s: int) -> Effects:
        """Accounts of windows that ended by the horizon are over: nothing that is said about them is listened
        to any more. Those with open holds stay until the next call."""
        self._horizon_s = max(self._horizon_s, horizon_s)
        if self._horizon_s:
            self.defer(now, "_forget_accounts")
        return self.flush()

    def is_over(self, name: str) -> bool:
        """Whether the account is of a window that was forgotten."""
        return is_over(name, self._horizon_s)

    def _forget_accounts(self, now: int) -> None:
        self.keys.forget_windows(self._horizon_s)
        for name in [name for name in self.ledger.accounts if self.is_over(name)]:
            if not self.ledger.accounts[name].held:
                del self.ledger.accounts[name]
                self.rounds.pop(name, None)
                self.demands.pop(name, None)
                self.blocks.pop(name, None)

    def _learn_mints(self, now: int, name: str, mints: int, quota: int, owners: frozenset[str]) -> None:
        round_ = self.round(self.ledger.account(name))
        if mints > round_.demand.mints:
            round_.demand.learn_mints(mints, quota, owners)
            round_.retry_soon(self, now)

    def request(
        self,
        now: int,
        tenant: str,
        accounts: Sequence[str],
        amount: int,
        key: str | None = None,
        hold_ns: int = 0,
    ) -> tuple[int, Effects]:
        """Reserve `amount` in every account. The answer, with the number returned, comes when it
        is durable, or decided; until then it waits, and `cancel` ends that. A key that is known here is
        not requested again."""
        return self._begin(now, Request(0, tenant, tuple(accounts), amount, key, hold_ns))

    def grow(self, now: int, hold: Hold, accounts: Sequence[str], amount: int) -> tuple[int, Effects]:
        """The same for an open hold: `amount` more of it. One that ended meanwhile gets nothing, and its
        number is the answer all the same."""
        return self._begin(now, Request(0, hold.tenant, tuple(accounts), amount, None, grows=hold))

    def extend(self, now: int, hold: Hold, hold_ns: int) -> Effects:
        self.ledger.extend(hold, hold_ns)
        return self.flush()

    def _begin(self, now: int, request: Request) -> tuple[int, Effects]:
        self._numbers += 1
        request.number, amount = self._numbers, request.amount
        chain = self.chain(request.accounts)
        self.requests[request.number] = request
        for account in chain:
            self.demand(account).see_request(amount)
        if not self._try_request(now, request):
            for account in chain:
                self.demand(account).waiting[request.number] = request
        self.look_for_need(now, chain)
        return request.number, self.flush()

    def cancel(self, now: int, number: int) -> Effects:
        """The request waits no longer (its deadline passed)."""
        request = self.requests.pop(number, None)
        if request is not None:
            self._forget(request)
        return self.flush()

    def settle(self, now: int, hold: Hold, used: int, unpaid: int = 0) -> Effects:
        self._settle(now, hold, used, unpaid)
        return self.flush()

    def _settle(self, now: int, hold: Hold, used: int, unpaid: int = 0) -> None:
        self.ledger.settle(hold, used, unpaid)
        if hold.key is not None:
            self.keys.close(hold)
            self.defer(now, "_settle_key", hold.number)
        for name, reserved, spent in hold.split(used):
            self.take_in(now, name, reserved - spent, served=not hold.written)

    def note_unpaid(self, now: int, hold: Hold, unpaid: int) -> Effects:
        self.ledger.note_unpaid(hold, unpaid)
        return self.flush()

    def take_in(self, now: int, name: str, units: int, *, served: bool) -> None:
        """Units came back; `served`: into the block, where they may be granted at once."""
        account = self.ledger.account(name)
        self.demand(account).returned += units
        if served:
            self.end_block(account)
            self.serve(now, account)

    def end_block(self, account: Account) -> None:
        """Where nothing is charged ahead (any more), what came back to a block is plainly unspent."""
        if not self.block and account.block > 0:
            self.ledger.return_block(account, account.block)

    def end_blocks(self, now: int) -> Effects:
        """Nothing is charged ahead any more: what is open is written down, and what was charged ahead and
        not granted is given back."""
        assert not self.block, "so no block is filled again"
        for hold in self.ledger.holds.values():
            if not hold.written:
                self.ledger.write_hold(hold)
        self.ledger.write_memory()
        for account in self.ledger.accounts.values():
            self.end_block(account)
        return self.flush()

    def hand_over(self, now: int, to: str, names: Iterable[str]) -> Effects:
        """All that is unspent here of these accounts goes to another ledger: this node leaves."""
        for account in self.chain(names):
            if account.unspent:
                self.ledger.send(account, to, account.unspent)
            self.post(now, Parting, account, to)
        return self.flush()

    def remind(self, now: int, to: str, names: Iterable[str]) -> Effects:
        """The same again: it may have been lost."""
        for account in self.chain(names):
            self.post(now, Parting, account, to)
        return self.flush()

    def is_handed_over(self, to: str, name: str) -> bool:
        """Whether the other ledger has made durable what was sent to it."""
        channel = self.ledger.account(name).channels.get(to)
        return channel is None or not channel.outbox

    # -- keys: what the store said

    def win_key(self, now: int, key: str, number: int) -> Effects:
        """The store names this hold for the key: it may be told."""
        request = self.keys.win(key, number)
        if request:
            self._answer(now, request, number)
        return self.flush()

    def lose_key(self, now: int, key: str, number: int) -> Effects:
        """The key has another home: what was held for it here is given back."""
        entry = self.keys.lose(key, number)
        if entry is not None:
            if entry.hold.used is None:
                self._settle(now, entry.hold, 0)
            self.ledger.forget_key(number)
            if entry.request:
                self.answers.append(Answer(entry.request, Taken()))
        return self.flush()

    def end_key(self, now: int, key: str, number: int) -> Effects:
        """The store has forgotten the key."""
        if self.keys.end(key, number):
            self.ledger.forget_key(number)
        return self.flush()

    def _ask_home(self, now: int, number: int) -> None:
        self.keys.ask(self.ledger.holds[number])

    def _settle_key(self, now: int, number: int) -> None:
        hold = self.ledger.closed.get(number)
        if hold is not None:
            self.keys.settle(now, hold)

    # -- the book

    def replay(self, records: Iterable[bytes]) -> None:
        replay.replay(self.ledger, records)

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if (
            isinstance(message, Note)
            and message.target == self.identity
            and node_of(message.source) == sender
            and not self.is_over(message.account)
        ):
            self._receive_units(now, message)
        return self.flush()

    def synced(self, now: int, records: int) -> Effects:
        gained = self.ledger.synced(records)
        while self._deferred and self._deferred[0][0] <= self.ledger.durable:
            _, (what, *arguments) = self._deferred.popleft()
            self._awaited -= what != LEARN_MINTS
            getattr(self, what)(now, *arguments)
        for account in gained:
            self.serve(now, account)
        return self.flush()

    def tick(self, now: int) -> Effects:
        while self._timers and self._timers[0][0] <= now:
            _, name, what, peer = heapq.heappop(self._timers)
            if name in self.ledger.accounts:
                self._ring(now, self.ledger.accounts[name], what, peer)
        return self.flush()

    def wake_at(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    # -- units that arrive, and are resent

    def _receive_units(self, now: int, note: Note) -> None:
        account = self.ledger.account(note.account)
        self.ledger.acknowledge(account, note.source, note.ack)
        self.ledger.receive(account, note.source, note.units)
        if note.units:
            self._set_ack(now, account, note.source)
        channel = account.channel(note.source)
        if channel.received < channel.receiving:
            # What the message says holds once the units it came with, or came after, are here.
            self.defer(now, "_handle", note)
        else:
            self._handle(now, note)

    def _handle(self, now: int, note: Note) -> None:
        round_ = self.round(self.ledger.account(note.account))
        match note:
            case Collect():
                round_.hear_collect(self, now, note)
            case Offer():
                round_.hear_offer(self, now, note)
            case Share():
                round_.hear_share(self, now, note)
            case Busy():
                round_.hear_busy(self, now, note)
            case Parting():
                # It is waiting to be gone: what came with it is durable here, and that is said at once.
                self._emit(now, Credit, note.account, note.source, {})

    def _ring(self, now: int, account: Account, what: str, peer: str) -> None:
        if what == "round":
            self.round(account).wake(self, now)
            return
        if what == "lot":
            lots.end_due(self, now)
            return
        channel = account.channel(peer)
        due = channel.resend_at if what == "resend" else channel.ack_at
        if due is not None and due <= now:
            self._emit(now, Credit, account.name, peer, {})

    def _set_resend(self, now: int, account: Account, peer: str) -> None:
        channel = account.channel(peer)
        doubled = min(2 * channel.resend_ns, self.rules.resend_max_ns)
        channel.resend_ns = doubled or self.rules.resend_ns
        channel.resend_at = now + channel.resend_ns
        self.set_timer(channel.resend_at, account, "resend", peer)

    def _set_ack(self, now: int, account: Account, peer: str) -> None:
        channel = account.channel(peer)
        if channel.ack_at is None:
            channel.ack_at = now + self.rules.ack_ns
            self.set_timer(channel.ack_at, account, "ack", peer)

    def set_timer(self, when: int, account: Account, what: str, peer: str) -> None:
        heapq.heappush(self._timers, (when, account.name, what, peer))

    # -- what the rounds use

    def next_wave(self) -> int:
        self._waves += 1
        return self._waves

    def begin_full(self, now: int, name: str, wave: int) -> None:
        if name in self.rounds:
            self.rounds[name].begin_full(self, now, wave)

    def conclude_full(self, now: int, name: str, wave: int) -> None:
        if name in self.rounds:
            self.rounds[name].conclude_full(self, now, wave)

    def wake_round(self, when: int, account: Account) -> None:
        self.set_timer(when, account, "round", "")

    def defer(self, now: int, what: str, *arguments: Any) -> None:
        """Call the method once everything written so far is durable."""
        if self.ledger.written <= self.ledger.durable:
            getattr(self, what)(now, *arguments)
        else:
            self._deferred.append((self.ledger.written, (what, *arguments)))
            self._awaited += what != LEARN_MINTS

    def post(self, now: int, kind: type[Note], account: Account, to: str, **fields: Any) -> None:
        """Send, once everything written so far is durable."""
        self.defer(now, "_emit", kind, account.name, to, fields)

    def _emit(self, now: int, kind: type[Note], name: str, to: str, fields: dict[str, Any]) -> None:
        account = self.ledger.account(name)
        channel = account.channel(to)
        units = self.ledger.pending(account, to)
        note = kind(account.name, self.identity, to, units, channel.received, **fields)
        if channel.received == channel.receiving:
            channel.ack_at = None
        if units:
            self._set_resend(now, account, to)
        self._effects.append(Send(node_of(to), note))

    def serve(self, now: int, account: Account) -> None:
        """Units came: grant what waits, refuse what was decided."""
        for request in list(self.demand(account).waiting.values()):
            self._try_request(now, request)
        self.look_for_need(now, (account,))

    def look_for_need(self, now: int, chain: Iterable[Account]) -> None:
        for account in chain:
            self.round(account).look_for_need(self, now)

    def _try_request(self, now: int, request: Request) -> bool:
        """Grant or refuse it if that can be done now."""
        if self.is_stopped(request.accounts):
            return False
        if request.grows is not None and request.grows.used is not None:
            return self._answer_growth(now, request)
        chain = self.chain(request.accounts)
        for account in chain:
            demand = self.demand(account)
            if not demand.may_be_met(now, request.number, request.amount):
                left = demand.left_for(now, request.number) or 0
                return self._refuse(request, Refusal(account.name, left, request.amount))
        hold = self._hold(now, request, chain)
        if hold is None:
            return False
        if request.grows is not None:
            return self._answer_growth(now, request)
        self.requests.pop(request.number)
        self._forget(request)
        if hold.key is not None:
            self.keys.add(hold, request.number)
            self.defer(now, "_ask_home", hold.number)
        elif hold.written:
            self.defer(now, "_answer", request.number, hold.number)
        else:
            self._answer(now, request.number, hold.number)
        return True

    def _answer_growth(self, now: int, request: Request) -> bool:
        assert request.grows is not None
        self.requests.pop(request.number)
        self._forget(request)
        if request.grows.written:
            self.defer(now, "_answer", request.number, request.grows.number)
        else:
            self._answer(now, request.number, request.grows.number)
        return True

    def _hold(self, now: int, request: Request, chain: list[Account]) -> Hold | None:
        """The hold that was made, or that has grown; None where too little is here."""
        if not self.block:
            return self._reserve(request, chain, ahead=False)
        hold = self._reserve(request, chain, ahead=True)
        if hold is not None and hold.key is not None and not hold.written:
            self.ledger.write_hold(hold)  # a retry after a crash must find it
        for account in chain:
            if hold is None:
                self._miss(account, request.amount)
                self._refill(now, account, request.amount)
            else:
                self.keep_block(now, account)
        return hold

    def _miss(self, account: Account, amount: int) -> None:
        """It is not charged ahead; if it is here at all, it will be for the next."""
        if account.block < amount <= account.unspent + account.block:
            self.grow_block(account, amount)

    def grow_block(self, account: Account, missed: int) -> None:
        self._block(account).grow(missed, account.unspent + account.block + account.ahead)

    def _block(self, account: Account) -> Block:
        found = self.blocks.get(account.name)
        if found is None:
            found = self.blocks[account.name] = Block(self.block)
        return found

    def _reserve(self, request: Request, chain: list[Account], *, ahead: bool) -> Hold | None:
        tenant, amount, hold = request.tenant, request.amount, request.grows
        if hold is not None:
            return hold if self.ledger.grow(hold, chain, amount, ahead=ahead) else None
        make = self.ledger.hold_from_block if ahead else self.ledger.hold
        return make(tenant, chain, amount, request.key, request.hold_ns)

    def keep_block(self, now: int, account: Account) -> None:
        """Charge the next block before this one is used up."""
        block = self._block(account)
        block.shrink(now, account.used)
        if account.block + account.ahead < block.size // 2:
            self._refill(now, account)

    def _refill(self, now: int, account: Account, need: int = 0) -> None:
        """Charge units ahead, up to one block unspent by anybody, lots included (more only for a larger
        request): what a crash loses."""
        demand = self.demand(account)
        wanted = max(self._block(account).size - account.ahead, need) - account.block - demand.charging
        amount = min(wanted, account.unspent)
        if amount > 0 and not demand.full:
            demand.charging += amount
            self.ledger.charge_block(account, amount)
            self.defer(now, "_charged", account.name, amount)

    def _charged(self, now: int, name: str, amount: int) -> None:
        if name in self.demands:
            self.demands[name].charging -= amount

    def _refuse(self, request: Request, refusal: Refusal) -> bool:
        self.requests.pop(request.number)
        self._forget(request)
        self.answers.append(Answer(request.number, refusal))
        return True

    def _answer(self, now: int, number: int, hold: int) -> None:
        self.answers.append(Answer(number, hold))

    def _forget(self, request: Request) -> None:
        for account in self.chain(request.accounts):
            self.demand(account).waiting.pop(request.number, None)

    def flush(self) -> Effects:
        effects: Effects = [Record(line) for line in self.ledger.take_lines()]
        effects += self._effects
        self._effects = []
        return effects
