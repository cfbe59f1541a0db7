"""The ledger: units are in one place at a time, whatever is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.quotas.balances import Account
from bursar.quotas.ledger import Ledger
from bursar.quotas.replay import compact, replay

QUOTA = 100
ACCOUNT = "acme"

Step = tuple[str, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("hold", "block", "fast", "settle", "send", "deliver", "sync", "crash", "compact", "ack")
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
        lines.append((account.name, account.unspent, account.held, account.spent, account.debt, channels))
    return lines


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


def test_a_mint_counts_once_and_when_durable() -> None:
    ledger = Ledger("a")
    ledger.mint(ACCOUNT, 1, 10)
    assert ledger.account(ACCOUNT).unspent == 0
    ledger.synced(ledger.written)
    ledger.mint(ACCOUNT, 1, 10)
    ledger.synced(ledger.written)
    assert ledger.account(ACCOUNT).unspent == 10


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
