"""A node's ledger: every unit this node answers for, and how units leave and arrive.

**Invariants.** For each account, in each ledger, after every method:

- `endowment = unspent + block + held + spent`: what came in less what went out is all accounted for;
- a debit counts from the moment it is written, a credit from the moment its line is durable (units that are
  minted count at once: whatever is made of them is written behind their own line, and is told, or sent, when
  that is durable; a crash that forgets them forgets it too, and they are taken in anew);
- nothing is unspent while there is `debt`: what a cut takes is taken before anybody else has it;
- transfer `number` on a channel is credited once, in order, and in the same line that says so.

Over all ledgers of a resource, endowments + units in flight = units minted - units burned. A unit
in flight is one that its sender wrote and its receiver has not made durable; the sender's outbox
keeps it until the receiver said that it did. No clock can bring it back.

Sending is cumulative: a message carries every transfer that is not acknowledged yet, so the
newest message says all that the lost ones did, and one integer a channel tells old from new.

A crash keeps a durable prefix of the lines. What it can lose: lines nobody was told about, and
(in `fast` mode) a block with what was granted from it, which was charged before it was used and stays
spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from bursar.quotas import entries
from bursar.quotas.balances import Account, Hold, Lot, Part
from bursar.quotas.entries import (
    Blocked,
    Burned,
    Entry,
    Extended,
    Forgotten,
    Grown,
    Held,
    Kept,
    Late,
    Minted,
    Opened,
    Received,
    Sent,
    Settled,
)

SETTLED_MAX = 100_000
"""Holds without a key that are remembered when they are over, so that settling one again can be answered;
the oldest are forgotten first. (Those with a key are remembered as long as the key.)"""


class Ledger:
    """The units of one node. `identity` names the ledger, not the machine: a node whose disk was
    lost begins another ledger, and transfers to the old one never reach it."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.generation = 0
        self.store = ""
        self.epoch = 0
        self.accounts: dict[str, Account] = {}
        self.holds: dict[int, Hold] = {}
        self.closed: dict[int, Hold] = {}
        self.keys: dict[str, Hold] = {}
        self.lots: dict[int, Lot] = {}
        self.written = 0
        self.durable = 0
        self._hold_number = 0
        self._closed_plain: deque[int] = deque()
        self._lines: list[bytes] = []
        self._credits: deque[tuple[int, Entry]] = deque()
        self._settling: dict[int, Hold] = {}

    def account(self, name: str) -> Account:
        found = self.accounts.get(name)
        if found is None:
            found = self.accounts[name] = Account(name)
        return found

    # -- the journal

    def take_lines(self) -> list[bytes]:
        """The lines written since the last call, to be appended to the journal in this order."""
        lines, self._lines = self._lines, []
        return lines

    def synced(self, lines: int) -> list[Account]:
        """The first `lines` lines of this life are durable: their credits count. Returns the
        accounts that gained."""
        self.durable = max(self.durable, lines)
        gained: dict[str, Account] = {}
        while self._credits and self._credits[0][0] <= self.durable:
            _, entry = self._credits.popleft()
            gained.update((account.name, account) for account in self._credit(entry))
        for account in gained.values():
            self._burn(account)
        return list(gained.values())

    def pending_credits(self) -> Iterator[Entry]:
        """The lines whose credits do not count yet."""
        return (entry for _, entry in self._credits)

    def open(self, generation: int, store: str = "", epoch: int = 0) -> None:
        """Begin a life, after the replay, in an epoch of the store."""
        self.generation = generation
        self._hold_number = generation << 32
        self.enter(store, epoch)
        self._write(Opened(generation, self.identity, self.store, self.epoch))
        for account in self.accounts.values():
            self._burn(account)

    def enter(self, store: str, epoch: int) -> None:
        """The units of this ledger count in that epoch. In a new one the lists of mints begin anew."""
        if self.epoch and epoch > self.epoch:
            for account in self.accounts.values():
                account.mints = 0
                account.carried = account.endowment + account.in_outbox()
        self.store, self.epoch = store or self.store, epoch or self.epoch

    def _write(self, entry: Entry, *, credits: bool = False) -> int:
        self.written += 1
        self._lines.append(entries.encode(entry))
        if credits:
            self._credits.append((self.written, entry))
        return self.written

    # -- units come into being, and leave the world

    def mint(self, name: str, number: int, amount: int) -> None:
        """Take in entry `number` of the account's list in the store, once. A negative amount is a
        cut: a debt that this ledger pays out of whatever is unspent here, now and later."""
        account = self.account(name)
        if number <= account.mints:
            return
        account.mints = number
        account.debt += max(-amount, 0)
        account.endowment += max(amount, 0)
        account.unspent += max(amount, 0)
        self._write(Minted(name, number, amount))
        self._burn(account)

    def _burn(self, account: Account) -> None:
        """Pay as much of the account's debt as is unspent here."""
        amount = min(account.debt, account.unspent)
        if amount > 0:
            account.debt -= amount
            account.unspent -= amount
            account.endowment -= amount
            self._write(Burned(account.name, amount))

    # -- transfers

    def send(self, account: Account, to: str, amount: int) -> int:
        """Debit units that go to another ledger. They may be sent once the line is durable;
        returns the line."""
        assert 0 < amount <= account.unspent and to != self.identity, "sends what is here, elsewhere"
        channel = account.channel(to)
        channel.sent += 1
        account.unspent -= amount
        account.endowment -= amount
        line = self._write(Sent(account.name, to, channel.sent, amount))
        channel.outbox[channel.sent] = (amount, line)
        return line

    def pending(self, account: Account, peer: str) -> tuple[tuple[int, int], ...]:
        """(number, amount) of every transfer to `peer` that is durable and not acknowledged."""
        channel = account.channels.get(peer)
        if channel is None:
            return ()
        return tuple((n, amount) for n, (amount, line) in channel.outbox.items() if line <= self.durable)

    def receive(self, account: Account, sender: str, units: Sequence[tuple[int, int]]) -> bool:
        """Write down what is new among the transfers that a message carries; True if anything."""
        channel = account.channel(sender)
        last, total = channel.receiving, 0
        for number, amount in units:
            if number == last + 1 and amount > 0:
                last, total = number, total + amount
        if total == 0:
            return False
        channel.receiving = last
        self._write(Received(account.name, sender, last, total), credits=True)
        return True

    def acknowledge(self, account: Account, peer: str, number: int) -> None:
        """`peer` has made every transfer up to `number` durable: they need no resending. Nothing
        is written: forgetting it in a crash costs a repeated message."""
        channel = account.channels.get(peer)
        if channel is None or number > channel.sent:
            return
        for done in [n for n in channel.outbox if n <= number]:
            del channel.outbox[done]
        if not channel.outbox:
            channel.resend_at = None
            channel.resend_ns = 0

    # -- holds

    def hold(
        self, tenant: str, chain: Sequence[Account], amount: int, key: str | None, hold_ns: int = 0
    ) -> Hold | None:
        """Reserve `amount` in every account of the chain, or in none. The grant may be told once
        the line (`written`) is durable."""
        for account in chain:
            if account.unspent < amount:
                return None
        hold = self._make_hold(tenant, chain, amount, key, hold_ns, written=True)
        for account in chain:
            account.unspent -= amount
            account.held += amount
        self._write(Held(hold.number, tenant, hold.accounts, amount, key, hold_ns=hold_ns))
        return hold

    def hold_from_block(
        self, tenant: str, chain: Sequence[Account], amount: int, key: str | None, hold_ns: int = 0
    ) -> Hold | None:
        """The same from units that were charged ahead: nothing to write, the grant stands."""
        for account in chain:
            if account.block < amount:
                return None
        for account in chain:
            account.block -= amount
            account.held += amount
        return self._make_hold(tenant, chain, amount, key, hold_ns, written=False)

    def grow(self, hold: Hold, chain: Sequence[Account], amount: int, *, ahead: bool) -> bool:
        """Reserve so much more for an open hold, in every account of the chain or in none; `ahead`: from what
        was charged in blocks. It counts once the line is durable, if the hold has lines."""
        for account in chain:
            if (account.block if ahead else account.unspent) < amount:
                return False
        for account in chain:
            account.held += amount
            if ahead:
                account.block -= amount
            else:
                account.unspent -= amount
        part = Part(tuple([account.name for account in chain]), amount)
        hold.more += (part,)
        if hold.written:
            self._write(Grown(hold.number, *part, ahead=ahead))
        return True

    def extend(self, hold: Hold, hold_ns: int) -> None:
        """It expires so long after it was last heard of, in lives to come too."""
        hold.hold_ns = hold_ns
        if hold.written:
            self._write(Extended(hold.number, hold_ns))

    def write_hold(self, hold: Hold) -> None:
        """Give a hold that came out of a block a line of its own, so that it outlasts this life."""
        assert not hold.written and hold.used is None, "it is open, and only its block paid for it"
        hold.written = True
        line = Held(hold.number, hold.tenant, hold.accounts, hold.amount, hold.key, True, hold.hold_ns)
        self._write(line)
        for part in hold.more:
            self._write(Grown(hold.number, *part, ahead=True))

    def settle(self, hold: Hold, used: int, unpaid: int = 0) -> None:
        """End a hold: `used` is spent, the rest comes back. Told before it is durable: a crash
        that forgets it leaves the hold open, to be charged in full. `unpaid` was used beyond all that could
        be reserved for it."""
        assert hold.used is None and 0 <= used <= hold.size, "settled once, within the hold"
        if unpaid and not hold.written:
            self.write_hold(hold)
        self.close_hold(hold, used, unpaid)
        for name, reserved, spent in hold.split(used):
            account = self.account(name)
            account.spent += spent
            if hold.written:
                # The rest stays held until the line is durable: a crash before that would charge
                # the hold in full, and the rest must not be spent twice.
                account.held -= spent
            else:
                account.held -= reserved
                account.block += reserved - spent
        if hold.written:
            self._settling[hold.number] = hold
            self._write(Settled(hold.number, used, unpaid), credits=True)

    def note_unpaid(self, hold: Hold, unpaid: int) -> None:
        """A hold that had expired, and was charged in full, did not cover what had been used."""
        assert hold.used is not None and not hold.unpaid, "it is over, and this is said once"
        self._remember(hold)
        hold.unpaid = unpaid
        for account in map(self.account, hold.accounts):
            account.unpaid += unpaid
        self._write(Late(hold.number, hold.accounts, unpaid))

    def charge_block(self, account: Account, amount: int) -> None:
        """Charge a block ahead; its units may be granted once the line is durable."""
        assert 0 < amount <= account.unspent
        account.unspent -= amount
        account.spent += amount
        self._write(Blocked(account.name, amount), credits=True)

    def return_block(self, account: Account, amount: int) -> None:
        """Give back units of a block that were not granted."""
        assert 0 < amount <= account.block
        account.block -= amount
        account.spent += amount
        self._write(Blocked(account.name, -amount), credits=True)

    def _make_hold(
        self,
        tenant: str,
        chain: Sequence[Account],
        amount: int,
        key: str | None,
        hold_ns: int,
        *,
        written: bool,
    ) -> Hold:
        self._hold_number += 1
        names = tuple([account.name for account in chain])
        hold = Hold(self._hold_number, tenant, names, amount, key, written, hold_ns)
        self.add_hold(hold)
        return hold

    def add_hold(self, hold: Hold) -> None:
        self.holds[hold.number] = hold
        if hold.key is not None:
            self.keys[hold.key] = hold

    def close_hold(self, hold: Hold, used: int, unpaid: int = 0) -> None:
        """It is over, and remembered for whoever settles it again."""
        hold.used, hold.unpaid = used, unpaid
        del self.holds[hold.number]
        self.closed[hold.number] = hold
        if hold.key is None:
            self._limit_memory(hold)

    def _limit_memory(self, hold: Hold) -> None:
        self._closed_plain.append(hold.number)
        if len(self._closed_plain) > SETTLED_MAX:
            del self.closed[self._closed_plain.popleft()]

    def find_hold(self, number: int) -> Hold | None:
        """Open, or over and remembered."""
        return self.holds.get(number) or self.closed.get(number)

    def forget_key(self, number: int) -> None:
        """The key of a hold that is over may be used anew, anywhere."""
        self.drop_key(number)
        self._write(Forgotten(number))

    def drop_key(self, number: int) -> None:
        hold = self.closed.get(number)
        if hold is not None and hold.key is not None:
            if self.keys.get(hold.key) is hold:
                del self.keys[hold.key]
            hold.key = None
            self._limit_memory(hold)

    def write_memory(self) -> None:
        """What was settled and has no line of its own, for the next life."""
        for hold in self.closed.values():
            self._remember(hold)

    def _remember(self, hold: Hold) -> None:
        if not hold.written:
            hold.written = True
            self._write(keep(hold, hold.used))

    def closed_holds(self) -> Iterator[Hold]:
        """Those that are over and have lines of their own."""
        return (hold for hold in self.closed.values() if hold.written)

    def settling_holds(self) -> Iterator[Hold]:
        """Those whose end is written and not durable yet."""
        return iter(self._settling.values())

    # -- lots, out of blocks: nothing is written, a crash leaves all of it spent

    def issue_lot(self, chain: Sequence[Account], amount: int, until: int) -> Lot:
        self._hold_number += 1
        lot = Lot(self._hold_number, tuple([account.name for account in chain]), amount, until)
        for account in chain:
            assert 0 < amount <= account.block, "a lot comes out of the block"
            account.block -= amount
            account.held += amount
            account.ahead += amount
        self.lots[lot.number] = lot
        return lot

    def spend_lot(self, lot: Lot, amount: int) -> None:
        """So many of it were spent."""
        spent = min(amount, lot.out)
        lot.out -= spent
        for account in map(self.account, lot.accounts):
            account.held -= spent
            account.ahead -= spent
            account.spent += spent
        if not lot.out:
            self.lots.pop(lot.number, None)

    def return_lot(self, lot: Lot, amount: int) -> int:
        """So many of it come back, also of what was taken for spent; how many that are."""
        amount = min(amount, lot.size - lot.back)
        out = min(amount, lot.out)
        lot.back += amount
        lot.out -= out
        for account in map(self.account, lot.accounts):
            account.held -= out
            account.ahead -= out
            account.spent -= amount - out
            account.block += amount
        if not lot.out:
            self.lots.pop(lot.number, None)
        return amount

    # -- credits, when durable

    def _credit(self, entry: Entry) -> list[Account]:
        if isinstance(entry, Settled):
            return self._refund(self._settling.pop(entry.hold), entry)
        assert isinstance(entry, Received | Blocked), "the other lines credit nothing"
        account = self.account(entry.account)
        if isinstance(entry, Blocked):
            account.spent -= abs(entry.amount)
            account.block += max(entry.amount, 0)
            account.unspent += max(-entry.amount, 0)
            return [account]
        if isinstance(entry, Received):
            account.channel(entry.sender).received = entry.number
        account.endowment += entry.amount
        account.unspent += entry.amount
        return [account]

    def _refund(self, hold: Hold, entry: Settled) -> list[Account]:
        gained = []
        for name, reserved, spent in hold.split(entry.used):
            account = self.account(name)
            account.held -= reserved - spent
            account.unspent += reserved - spent
            gained.append(account)
        for account in map(self.account, hold.accounts):
            account.unpaid += entry.unpaid
        return gained


def keep(hold: Hold, used: int | None) -> Kept:
    """The line that says all of a hold: open, where `used` is None."""
    more = tuple((part.accounts, part.amount) for part in hold.more)
    unpaid = 0 if used is None else hold.unpaid
    return Kept(
        hold.number, hold.tenant, hold.accounts, hold.amount, hold.key, used, more, unpaid, hold.hold_ns
    )
