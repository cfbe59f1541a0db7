"""The ledger: units are in one place at a time, whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.quotas import ledger as ledger_module
from bursar.quotas.balances import Account
from bursar.quotas.ledger import Ledger
from bursar.quotas.replay import compact, replay

QUOTA = 100
ACCOUNT = "acme"

Step = tuple[str, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("hold", "block", "fast", "settle", "send", "deliver", "sync", "crash", "compact", "ack"),
                *("key", "write", "memory", "forget", "lot", "spend", "return"),
            )
        ),
        st.integers(0, 12),
        st.booleans(),
    ),
    max_size=60,
)


class Disk:
    """A ledger and its journal; a crash keeps the durable prefix, and more of it by chance."""

    def __init__(self, name: str, units: int) -> None:
        self.name = name
        self.lines: list[bytes] = []
        self.durable = 0
        self.before = 0
        self.told = 0
        self.ledger = Ledger(name)
        self.ledger.open(1)
        self.ledger.mint(ACCOUNT, 1, units)
        self.sync()

    @property
    def account(self) -> Account:
        return self.ledger.account(ACCOUNT)

    def append(self) -> None:
        self.lines += self.ledger.take_lines()

    def sync(self) -> None:
        self.append()
        self.durable = len(self.lines)
        self.ledger.synced(self.durable - self.before)

    def crash(self, kept_more: int) -> None:
        self.append()
        self.lines = self.lines[: max(self.durable, min(len(self.lines), self.durable + kept_more))]
        self._begin(self.ledger.generation + 1)

    def _begin(self, generation: int) -> None:
        self.ledger = Ledger(self.name)
        replay(self.ledger, self.lines)
        self.before = self.durable = len(self.lines)
        self.ledger.open(generation)
        self.sync()

    def compact(self) -> None:
        """The journal is replaced; it must replay to what the old one would have."""
        self.append()
        old, new = Ledger(self.name), Ledger(self.name)
        replay(old, self.lines)
        for name, account in self.ledger.accounts.items():  # acknowledgements are not written
            for peer, channel in account.channels.items():
                outbox = old.account(name).channel(peer).outbox
                old.account(name).channel(peer).outbox = {n: outbox[n] for n in channel.outbox}
        self.lines = compact(self.ledger)
        replay(new, self.lines)
        assert picture(new) == picture(old)
        self.before = len(self.lines) - self.ledger.written
        self.durable = len(self.lines)
        self.ledger.synced(self.ledger.written)


def picture(ledger: Ledger) -> list[tuple[object, ...]]:
    lines = []
    for account in ledger.accounts.values():
        assert account.endowment == account.unspent + account.block + account.held + account.spent
        channels = {
            peer: (channel.sent, channel.received, {n: amount for n, (amount, _) in channel.outbox.items()})
            for peer, channel in account.channels.items()
            if channel.sent or channel.received
        }
        assert 0 <= account.ahead <= account.held
        lines.append((account.name, account.unspent, account.held, account.spent, account.debt, channels))
    keys = {key: (hold.number, hold.used) for key, hold in ledger.keys.items()}
    closed = {number: hold.used for number, hold in ledger.closed.items() if hold.written}
    return [*lines, (sorted(keys.items()), sorted(closed.items()), sorted(ledger.holds))]


def in_flight(disks: list[Disk]) -> int:
    units = 0
    for here, there in (disks, disks[::-1]):
        received = there.account.channel(here.name).received
        outbox = here.account.channel(there.name).outbox
        units += sum(amount for number, (amount, _) in outbox.items() if number > received)
    return units


def step(disks: list[Disk], here: Disk, there: Disk, what: str, amount: int) -> None:
    ledger, account = here.ledger, here.account
    match what:
        case "hold" if amount:
            ledger.hold("t", [account], amount, None)
        case "block" if 0 < amount <= account.unspent:
            ledger.charge_block(account, amount)
        case "fast" if amount:
            ledger.hold_from_block("t", [account], amount, None)
        case "key" if amount:
            ledger.hold("t", [account], amount, f"k{ledger.written}")
        case "write":
            for hold in ledger.holds.values():
                if not hold.written:
                    ledger.write_hold(hold)
        case "memory":
            ledger.write_memory()
        case "forget":
            for hold in [hold for hold in ledger.keys.values() if hold.used is not None]:
                ledger.forget_key(hold.number)
        case "lot" if 0 < amount <= account.block:
            ledger.issue_lot([account], amount, until=0)
        case "spend" if ledger.lots:
            ledger.spend_lot(next(iter(ledger.lots.values())), amount)
        case "return" if ledger.lots:
            ledger.return_lot(next(iter(ledger.lots.values())), amount)
        case "settle" if ledger.holds:
            hold = next(iter(ledger.holds.values()))
            ledger.settle(hold, min(amount, hold.amount))
        case "send" if 0 < amount <= account.unspent:
            ledger.send(account, there.name, amount)
        case "deliver":
            there.ledger.receive(there.account, here.name, ledger.pending(account, there.name))
        case "ack":
            there.ledger.acknowledge(there.account, here.name, account.channel(there.name).received)
        case "sync":
            here.sync()
        case "crash":
            here.crash(amount)
        case "compact":
            here.compact()


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_units_are_never_made_nor_lost(steps: list[Step]) -> None:
    disks = [Disk("a", QUOTA // 2), Disk("b", QUOTA // 2)]
    for what, amount, second in steps:
        here, there = disks[second], disks[not second]
        step(disks, here, there, what, amount)
        for disk in disks:
            disk.append()
            picture(disk.ledger)
        assert disks[0].account.endowment + disks[1].account.endowment + in_flight(disks) == QUOTA


def open_ledger(units: int = 10) -> Ledger:
    ledger = Ledger("a")
    ledger.open(1)
    ledger.mint(ACCOUNT, 1, units)
    ledger.synced(ledger.written)
    return ledger


def test_a_mint_counts_once_and_is_written_before_what_is_made_of_it() -> None:
    ledger = Ledger("a")
    account = ledger.account(ACCOUNT)
    ledger.mint(ACCOUNT, 1, 10)
    assert account.unspent == 10
    assert ledger.hold("t", [account], 4, None) is not None
    ledger.send(account, "b", 3)
    assert ledger.pending(account, "b") == ()  # it may leave when the mint is durable
    ledger.mint(ACCOUNT, 1, 10)
    lines = ledger.take_lines()
    for kept, left in enumerate((0, 10, 6, 3)):
        found = Ledger("a")
        replay(found, lines[:kept])
        found.mint(ACCOUNT, 1, 10)  # what a crash forgot is taken in anew
        assert found.account(ACCOUNT).unspent == (left if kept else 10)


def test_a_refund_counts_when_durable() -> None:
    ledger = open_ledger()
    account = ledger.account(ACCOUNT)
    hold = ledger.hold("t", [account], 4, None)
    assert hold is not None
    ledger.settle(hold, 1)
    assert (account.unspent, account.held, account.spent) == (6, 3, 1)
    ledger.synced(ledger.written)
    assert (account.unspent, account.held, account.spent) == (9, 0, 1)


def test_a_block_is_spent_as_far_as_a_crash_can_tell() -> None:
    ledger = open_ledger()
    lines = ledger.take_lines()
    account = ledger.account(ACCOUNT)
    ledger.charge_block(account, 6)
    ledger.synced(ledger.written)
    ledger.hold_from_block("t", [account], 2, None)
    again = Ledger("a")
    replay(again, lines + ledger.take_lines())
    assert (again.account(ACCOUNT).unspent, again.account(ACCOUNT).spent) == (4, 6)


def test_an_old_message_credits_nothing() -> None:
    ledger = open_ledger(0)
    account = ledger.account(ACCOUNT)
    assert ledger.receive(account, "b", [(1, 3), (2, 4)])
    assert not ledger.receive(account, "b", [(1, 3)])
    assert ledger.receive(account, "b", [(2, 4), (3, 5)])
    assert not ledger.receive(account, "b", [(9, 5)]), "a gap: something of ours was forged or lost"
    ledger.synced(ledger.written)
    assert account.unspent == 12


def test_a_cut_takes_what_is_unspent_now_and_later() -> None:
    ledger = open_ledger(10)
    account = ledger.account(ACCOUNT)
    hold = ledger.hold("t", [account], 8, None)
    assert hold is not None
    ledger.mint(ACCOUNT, 2, -5)
    assert (account.unspent, account.debt) == (0, 3)
    ledger.settle(hold, 4)
    ledger.synced(ledger.written)
    assert (account.unspent, account.spent, account.debt, account.endowment) == (1, 4, 0, 5)


def test_a_cut_whose_payment_a_crash_forgot_is_paid_before_anything_else() -> None:
    disk = Disk("a", 10)
    disk.ledger.mint(ACCOUNT, 2, -4)
    disk.crash(kept_more=1)  # the cut was written, that it was paid was not
    assert (disk.account.unspent, disk.account.debt) == (6, 0)


def crash(ledger: Ledger) -> Ledger:
    """What the next life finds, if everything that was written is on disk."""
    again = Ledger(ledger.identity)
    replay(again, ledger.take_lines())
    return again


def open_block() -> Ledger:
    ledger = open_ledger()
    ledger.charge_block(ledger.account(ACCOUNT), 6)
    ledger.synced(ledger.written)
    return ledger


def test_a_hold_out_of_a_block_that_is_written_down_is_open_in_the_next_life() -> None:
    ledger = open_block()
    hold = ledger.hold_from_block("t", [ledger.account(ACCOUNT)], 4, None)
    assert hold is not None
    ledger.write_hold(hold)
    again = crash(ledger)
    account = again.account(ACCOUNT)
    assert (account.unspent, account.held, account.spent) == (4, 4, 2), "the rest of the block is lost"
    again.open(2)
    again.settle(again.holds[hold.number], 1)
    again.synced(again.written)
    assert (account.unspent, account.held, account.spent) == (7, 0, 3)


def test_what_was_settled_is_remembered_in_the_next_life() -> None:
    ledger = open_block()
    account = ledger.account(ACCOUNT)
    exact, fast = ledger.hold("t", [account], 2, None), ledger.hold_from_block("t", [account], 3, None)
    assert exact is not None and fast is not None
    ledger.settle(exact, 1)
    ledger.settle(fast, 2)
    ledger.write_memory()
    again = crash(ledger)
    found = [again.find_hold(number) for number in (exact.number, fast.number)]
    assert [(hold.amount, hold.used) for hold in found if hold is not None] == [(2, 1), (3, 2)]


def test_only_the_latest_settlements_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SETTLED_MAX", 3)
    ledger = open_ledger()
    account = ledger.account(ACCOUNT)
    numbers = []
    for key in (None, "k", None, None, None):
        hold = ledger.hold("t", [account], 1, key)
        assert hold is not None
        ledger.settle(hold, 1)
        numbers.append(hold.number)
    assert [ledger.find_hold(number) is not None for number in numbers] == [False, True, True, True, True]


def test_a_forgotten_key_is_free_and_its_settlement_still_known() -> None:
    ledger = open_ledger()
    first = ledger.hold("t", [ledger.account(ACCOUNT)], 1, "k")
    assert first is not None
    ledger.settle(first, 0)
    ledger.forget_key(first.number)
    second = ledger.hold("t", [ledger.account(ACCOUNT)], 1, "k")
    assert second is not None
    again = crash(ledger)
    assert again.keys["k"].number == second.number
    found = again.find_hold(first.number)
    assert found is not None and found.used == 0


@pytest.mark.parametrize("ahead", [True, False])
def test_what_a_hold_grows_by_is_taken_from_where_it_was_or_not_at_all(ahead: bool) -> None:
    disk = Disk("a", 10)
    ledger, account = disk.ledger, disk.account
    ledger.charge_block(account, 5)
    disk.sync()
    hold = ledger.hold("t", [account], 1, None)
    assert (account.unspent, account.block, account.held) == (4, 5, 1)
    assert ledger.grow(hold, [account], 3, ahead=ahead)
    assert (account.unspent, account.block, account.held) == ((4, 2, 4) if ahead else (1, 5, 4))
    assert not ledger.grow(hold, [account], 6, ahead=ahead) and hold.size == 4
    assert picture(ledger)
