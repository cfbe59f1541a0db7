"""Rounds of a few books whose messages are delivered by hand, in any order, in no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bursar.book import Effects, Record, Send
from bursar.quotas import lots
from bursar.quotas.allocation import Burn
from bursar.quotas.book import NodeBook
from bursar.quotas.messages import Collect, Offer, Share
from bursar.quotas.requests import Refusal
from bursar.quotas.windows import Window, account_name
from bursar.world import MILLISECOND_NS

ACCOUNT = "acme"
NOW = 1_000_000


class Office:
    """A root "a" and its children; every line is durable at once."""

    def __init__(self, units: dict[str, int], *, block: int = 0) -> None:
        self.books = {name: NodeBook(name, block=block) for name in units}
        self.flying: list[tuple[str, str, Any]] = []
        self.sent: list[Any] = []
        self._lines = dict.fromkeys(units, 0)
        children = [name for name in units if name != "a"]
        for name, book in self.books.items():
            self.perform(name, book.open(NOW, 1))
            place = (None, children) if name == "a" else ("a", [])
            self.perform(name, book.join(NOW, *place, list(units)))
            self.perform(name, book.mint(NOW, ACCOUNT, list(units.items())))

    def perform(self, name: str, effects: Effects) -> None:
        while effects:
            for effect in effects:
                if isinstance(effect, Send):
                    self.flying.append((name, effect.to, effect.message))
                    self.sent.append(effect.message)
            written = sum(isinstance(effect, Record) for effect in effects)
            self._lines[name] += written
            effects = self.books[name].synced(NOW, self._lines[name]) if written else []

    def ask(self, name: str, amount: int) -> int:
        number, effects = self.books[name].request(NOW, "t", (ACCOUNT,), amount)
        self.perform(name, effects)
        return number

    def deliver(self, place: int = 0) -> None:
        sender, to, message = self.flying.pop(place)
        self.perform(to, self.books[to].receive(NOW, sender, message))

    def deliver_all(self) -> None:
        for _ in range(200):
            if not self.flying:
                return
            self.deliver()
        raise AssertionError("they never stop talking")

    def find(self, wanted: Callable[[str, str, Any], bool]) -> int:
        return next(place for place, flying in enumerate(self.flying) if wanted(*flying))

    def outcome(self, name: str, number: int) -> int | Refusal | None:
        """The units granted, a refusal, or None while it waits."""
        for answer in self.books[name].answers:
            if answer.request == number:
                found = answer.outcome
                return found if isinstance(found, Refusal) else self.books[name].ledger.holds[found].amount
        return None


def test_units_are_taken_only_from_whom_they_belong_to_and_by_whom_they_are_meant_for() -> None:
    office = Office({"a": 10, "b": 0})
    book, over = office.books["a"], account_name(ACCOUNT, Window(0, 3600))
    office.perform("a", book.forget(NOW, 3600))

    def arrive(sender: str, source: str, target: str, account: str = ACCOUNT) -> int:
        share = Share(account, source, target, ((1, 5),), 0, offer=0, lifetime_ns=0, scarce=False)
        office.perform("a", book.receive(NOW, sender, share))
        return book.ledger.account(ACCOUNT).unspent

    assert arrive("c", "b", "a") == 10, "c says that it is b"
    assert arrive("b", "b", "c") == 10, "they are c's"
    arrive("b", "b", "a", over)
    assert over not in book.ledger.accounts, "its window was forgotten"
    assert arrive("b", "b", "a") == 15


def test_units_whose_message_was_lost_are_sent_again_until_it_is_known_that_they_arrived() -> None:
    office = Office({"a": 10, "b": 0})
    root, child = office.books["a"], office.books["b"]
    wanted = office.ask("b", 5)
    while not any(sender == "a" and note.units for sender, _, note in office.flying):
        office.deliver()
    office.flying.clear()
    office.perform("a", root.tick(NOW + root.rules.resend_ns - 1))
    assert office.flying == []
    office.perform("a", root.tick(NOW + root.rules.resend_ns))
    assert [(to, sum(amount for _, amount in note.units)) for _, to, note in office.flying] == [("b", 5)]
    office.deliver()
    assert child.ledger.account(ACCOUNT).channel("a").received == 1
    office.perform("b", child.tick(NOW + child.rules.resend_max_ns))
    office.deliver_all()
    assert root.is_handed_over("b", ACCOUNT), "b has said that they are there"
    assert office.outcome("b", wanted) == 5


def test_a_root_that_is_alone_refuses_more_than_is_left_and_says_how_much() -> None:
    for block in (0, 4):
        office = Office({"a": 10}, block=block)
        assert office.outcome("a", office.ask("a", 7)) == 7
        assert office.outcome("a", office.ask("a", 4)) == Refusal(ACCOUNT, left=3, asked=4), f"block {block}"
        assert office.outcome("a", office.ask("a", 3)) == 3


def test_more_than_all_nodes_have_is_refused_after_one_wave_and_told_to_the_next_without_one() -> None:
    office = Office({"a": 5, "b": 5, "c": 5})
    first = office.ask("b", 16)
    office.deliver_all()
    assert office.outcome("b", first) == Refusal(ACCOUNT, left=15, asked=16)
    waves = len([note for note in office.sent if isinstance(note, Collect)])
    second = office.ask("c", 20)
    office.deliver_all()
    assert office.outcome("c", second) == Refusal(ACCOUNT, left=15, asked=20)
    assert len([note for note in office.sent if isinstance(note, Collect)]) == waves
    third = office.ask("c", 15)
    office.deliver_all()
    assert office.outcome("c", third) == 15


def test_units_that_came_back_since_a_decision_are_not_refused() -> None:
    office = Office({"a": 10})
    office.ask("a", 7)
    book = office.books["a"]
    (hold,) = book.ledger.holds.values()
    assert office.outcome("a", office.ask("a", 8)) == Refusal(ACCOUNT, left=3, asked=8)
    office.perform("a", book.settle(NOW, hold, 2))
    assert office.outcome("a", office.ask("a", 8)) == 8


def test_a_request_that_overtakes_the_answer_to_a_wave_is_not_lost() -> None:
    office = Office({"a": 0, "b": 2, "c": 9})
    office.ask("c", 12)
    while not any(to == "b" and isinstance(note, Collect) and note.full for _, to, note in office.flying):
        office.deliver()
    office.deliver(office.find(lambda _, to, note: to == "b"))
    late = office.ask("b", 3)  # b has handed over everything
    asking = office.find(
        lambda _, to, note: isinstance(note, Offer) and note.source == "b" and bool(note.wants)
    )
    answer = office.find(lambda _, to, note: isinstance(note, Offer) and note.statement is not None)
    assert answer < asking
    office.deliver(asking)
    office.deliver_all()
    assert office.outcome("b", late) == 3, "in no time: nobody had to be patient"


def test_a_block_that_is_being_charged_when_everything_is_gathered_is_gathered_too() -> None:
    office = Office({"a": 0, "b": 6}, block=4)
    book = office.books["b"]
    effects = book.request(NOW, "t", (ACCOUNT,), 1)[1]  # charges a block: written, not durable yet
    wanted = office.ask("a", 6)
    while office.flying:
        office.deliver()
    office.perform("b", effects)
    office.deliver_all()
    assert office.outcome("a", wanted) == Refusal(ACCOUNT, left=5, asked=6)
    rest = office.ask("a", 5)
    office.deliver_all()
    assert office.outcome("a", rest) == 5


def cut_while_a_hold_is_open(amount: int) -> Office:
    """The root has a hold out of its block when a cut leaves "b" with a debt of 9, and has just asked "b"
    for everything."""
    office = Office({"a": amount, "b": 10}, block=8)
    assert office.outcome("b", office.ask("b", 10)) == 10
    [hold] = office.books["b"].ledger.holds.values()
    office.perform("b", office.books["b"].settle(NOW, hold, 10))
    office.deliver_all()
    assert office.outcome("a", office.ask("a", amount)) == amount
    office.deliver_all()
    for name, book in office.books.items():
        office.perform(name, book.mint(NOW, ACCOUNT, [("a", amount), ("b", 10), ("b", -9)]))
    while not any(isinstance(note, Collect) and note.full for _, _, note in office.flying):
        office.deliver()
    return office


def test_what_a_hold_gives_back_to_its_block_during_a_wave_is_gathered_too() -> None:
    office = cut_while_a_hold_is_open(3)
    [hold] = office.books["a"].ledger.holds.values()
    office.perform("a", office.books["a"].settle(NOW, hold, 1))
    office.deliver_all()
    accounts = {name: book.ledger.account(ACCOUNT) for name, book in office.books.items()}
    assert accounts["b"].debt == 9 - 2
    assert accounts["a"].block == accounts["a"].unspent == 0, "a cut takes what is left anywhere"


def test_what_is_left_is_not_final_while_a_block_has_what_came_too_late_for_the_wave() -> None:
    office = Office({"a": 7, "b": 0}, block=8)
    root = office.books["a"]
    for amount in (3, 4):
        office.ask("a", amount)
        office.deliver_all()
    first, second = root.ledger.holds.values()
    for name, book in office.books.items():  # so that what was decided so far is forgotten
        office.perform(name, book.mint(NOW, ACCOUNT, [("a", 7), ("b", 0), ("a", 1)]))
    refused = office.ask("b", 7)
    while not any(isinstance(note, Collect) and note.full for _, _, note in office.flying):
        office.deliver()
    office.perform("a", root.settle(NOW, first, 1))
    office.deliver(office.find(lambda _, to, note: isinstance(note, Collect) and note.full))
    sender, _, offer = office.flying.pop(office.find(lambda _, to, note: isinstance(note, Offer)))
    effects = root.receive(NOW, sender, offer)  # gathers what came back: written, not durable yet
    effects += root.settle(NOW, second, 1)
    office.perform("a", effects)
    office.deliver_all()
    assert office.outcome("b", refused) == Refusal(ACCOUNT, left=3, asked=7)
    book = office.books["b"]
    number, effects = book.request(NOW + book.rules.memory_ns, "t", (ACCOUNT,), 6)
    office.perform("b", effects)
    assert office.outcome("b", number) is None, "the root is asked again"


def test_what_came_back_after_a_refusal_is_granted_to_who_asks_for_it_elsewhere() -> None:
    office = Office({"a": 10, "b": 0})
    root, child = office.books["a"], office.books["b"]
    office.ask("a", 4)
    [hold] = root.ledger.holds.values()
    refused = office.ask("b", 7)
    office.deliver_all()
    assert office.outcome("b", refused) == Refusal(ACCOUNT, left=6, asked=7)
    office.perform("a", root.settle(NOW, hold, 0))
    number, effects = child.request(NOW + child.rules.memory_ns, "t", (ACCOUNT,), 9)
    office.perform("b", effects)
    office.deliver_all()
    assert office.outcome("b", number) == 9


def test_a_lot_that_comes_back_during_a_wave_is_granted_to_who_waits_for_it() -> None:
    office = Office({"a": 400, "b": 0}, block=400)
    root = office.books["a"]
    root.keep_block(NOW, root.ledger.account(ACCOUNT))
    office.perform("a", root.flush())
    lot, effects = lots.issue(root, NOW, (ACCOUNT,), 8, NOW + lots.LOT_NS)
    assert lot is not None
    office.perform("a", effects)
    wanted = office.ask("b", 400)
    while not any(isinstance(note, Collect) and note.full for _, _, note in office.flying):
        office.deliver()
    office.perform("a", lots.give_back(root, NOW, lot, lot.out))
    office.deliver_all()
    assert office.outcome("b", wanted) == 400


def test_a_top_up_that_is_not_durable_yet_is_not_refused() -> None:
    office = Office({"a": 10})
    assert office.outcome("a", office.ask("a", 11)) == Refusal(ACCOUNT, left=10, asked=11)
    topping = office.books["a"].mint(NOW, ACCOUNT, [("a", 10), ("a", 5)])
    wanted = office.ask("a", 11)
    assert office.outcome("a", wanted) is None
    office.perform("a", topping)
    assert office.outcome("a", wanted) == 11


def test_a_cut_below_what_was_used_takes_all_that_is_left_anywhere_and_then_rests() -> None:
    office = Office({"a": 32, "b": 40, "c": 2})
    assert office.outcome("b", office.ask("b", 37)) == 37
    [hold] = office.books["b"].ledger.holds.values()
    office.perform("b", office.books["b"].settle(NOW, hold, 37))
    mints = [("a", 32), ("b", 40), ("c", 2), ("b", -67)]
    for name, book in office.books.items():
        office.perform(name, book.mint(NOW, ACCOUNT, mints))
    office.deliver_all()
    accounts = {name: book.ledger.account(ACCOUNT) for name, book in office.books.items()}
    assert sum(account.unspent for account in accounts.values()) == 0
    assert accounts["b"].debt == 67 - (32 + 3 + 2)
    asked = office.ask("c", 1)
    office.deliver_all()
    assert office.outcome("c", asked) == Refusal(ACCOUNT, left=0, asked=1)
    assert not office.books["b"].demands[ACCOUNT].is_in_need(NOW), "nothing is left: only new units can pay"


def test_a_root_that_is_alone_survives_a_cut_below_what_was_used() -> None:
    office = Office({"a": 10})
    assert office.outcome("a", office.ask("a", 9)) == 9
    office.perform("a", office.books["a"].mint(NOW, ACCOUNT, [("a", 10), ("a", -6)]))
    account = office.books["a"].ledger.account(ACCOUNT)
    assert (account.unspent, account.debt) == (0, 5)
    office.perform("a", office.books["a"].mint(NOW, ACCOUNT, [("a", 10), ("a", -6), ("a", 7)]))
    assert (account.unspent, account.debt) == (2, 0), "new units pay for the cut first"


def test_that_nothing_is_left_is_not_final_while_units_may_come_late_from_a_fenced_ledger() -> None:
    office = Office({"a": 1, "b": 0})

    def arrive(*units: tuple[int, int]) -> None:
        share = Share(ACCOUNT, "gone", "b", units, 0, offer=0, lifetime_ns=0, scarce=False)
        office.perform("b", office.books["b"].receive(NOW, "gone", share))

    arrive((1, 5))
    for name, place in (("a", (None, ["b"])), ("b", ("a", []))):
        office.perform(name, office.books[name].join(NOW, *place, ["a", "b"], ["gone"]))
    assert office.outcome("b", office.ask("b", 5)) == 5
    [hold] = office.books["b"].ledger.holds.values()
    office.perform("b", office.books["b"].settle(NOW, hold, 5))
    refused = office.ask("a", 2)
    office.deliver_all()
    assert office.outcome("a", refused) == Refusal(ACCOUNT, left=1, asked=2)
    arrive((1, 5), (2, 4))  # sent before its disk was lost
    book = office.books["a"]
    number, effects = book.request(NOW + book.rules.memory_ns, "t", (ACCOUNT,), 2)
    office.perform("a", effects)
    office.deliver_all()
    assert office.outcome("a", number) == 2


def test_the_rate_of_a_moment_is_forgotten_with_the_first_whole_sample() -> None:
    burn = Burn(0.5, 500 * MILLISECOND_NS)
    assert burn.sample(0, 0) == 0
    assert burn.sample(MILLISECOND_NS, 2) == 2000, "all there is to go by"
    assert burn.sample(600 * MILLISECOND_NS, 3) == 5, "3 units in 0.6 s"
    assert burn.sample(1600 * MILLISECOND_NS, 3) == 2.5, "averaged from then on"
