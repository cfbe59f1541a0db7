"""Worlds of two and three quota nodes, small enough to be searched in every order of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from bursar.book import Book, Effects
from bursar.quotas import lots
from bursar.quotas.book import NodeBook
from bursar.quotas.requests import Refusal
from bursar.quotas.rules import Rules
from bursar.sim.scenario import require
from bursar.sim.search import Budget, Move, SmallWorld, State
from bursar.world import MILLISECOND_NS

ACCOUNT = "acme"

SMALL_RULES = Rules(
    patience_ns=20 * MILLISECOND_NS,
    waiting_ns=30 * MILLISECOND_NS,
    retry_ns=10 * MILLISECOND_NS,
    retry_max_ns=10 * MILLISECOND_NS,
    resend_ns=20 * MILLISECOND_NS,
    resend_max_ns=20 * MILLISECOND_NS,
    ack_ns=20 * MILLISECOND_NS,
)


class Place(NamedTuple):
    """A node of the small tree, and the units that are minted there."""

    parent: str | None
    children: tuple[str, ...]
    units: int


TWO = {"a": Place(None, ("b",), 1), "b": Place("a", (), 1)}
THREE = {"a": Place(None, ("b", "c"), 0), "b": Place("a", (), 1), "c": Place("a", (), 1)}
CHAIN = {"a": Place(None, ("b",), 1), "b": Place("a", ("c",), 0), "c": Place("b", (), 1)}


class Ground(NamedTuple):
    """What lives that are over left behind: units that tenants were told they have, and units
    that requests were waiting for."""

    granted: int = 0
    waited: int = 0


class SmallQuota(SmallWorld):
    """Nodes with a unit or two each, and tenants that ask for more than one node has."""

    places: Mapping[str, Place] = TWO
    amounts: tuple[int, ...] = (2,)
    askers: tuple[str, ...] = ("a", "b")
    settles: bool = False
    block = 0
    rules = SMALL_RULES
    horizon_ns = 25 * MILLISECOND_NS
    flight_max = 4
    budget = Budget(crashes=1, duplicates=1, moves=2)
    ground = Ground()
    book: type[NodeBook] = NodeBook

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        return {name: self._maker(name) for name in self.places}

    def _maker(self, name: str) -> Callable[[int], Book]:
        def make(life: int) -> Book:
            return endow(self.book)(name, self.rules, self.block, life, self.places)

        return make

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if name in self.askers:
            for amount in self.amounts:
                yield Move(f"is asked for {amount}", _ask(amount))
        if self.settles and book.ledger.holds:
            yield Move("settles with nothing used", _settle)

    def crashed(self, name: str, book: Any, ground: Ground) -> Ground:
        return Ground(ground.granted + granted(book), ground.waited + waited(book) + untold(book))

    def check(self, state: State) -> None:
        books: dict[str, NodeBook] = dict(zip(self.places, state.books, strict=True))
        accounts = {name: book.ledger.account(ACCOUNT) for name, book in books.items()}
        quota = sum(place.units for place in self.places.values())
        for account in accounts.values():
            kept = account.unspent + account.block + account.held + account.spent
            require(account.endowment == kept, f"{account.endowment} units, {kept} accounted for")
            require(min(account.unspent, account.block, account.held, account.spent) >= 0, "below zero")
        known = sum(account.endowment for account in accounts.values()) + in_flight(books)
        require(known == quota, f"{known} units are known of; the quota is {quota}")
        told = state.ground.granted + sum(granted(book) for book in books.values())
        charged = sum(account.held + account.spent for account in accounts.values())
        require(self.settles or told <= charged, f"{told} units were granted, {charged} charged")
        require(told <= quota or self.settles, f"{told} units were granted of {quota}")
        if not self.settles:
            spoken_for = state.ground.waited + sum(waited(book) for book in books.values())
            self._check_refusals(books, known - charged - spoken_for)

    def _check_refusals(self, books: Mapping[str, NodeBook], unspent: int) -> None:
        """Units that older requests wait for may be refused to younger ones."""
        for book in books.values():
            for answer in book.answers:
                if isinstance(answer.outcome, Refusal):
                    asked = answer.outcome.asked
                    require(asked > unspent, f"{asked} were refused while {unspent} were unspent")


class SmallLots(SmallQuota):
    """One node is asked for all that there is; the other hands out a lot, which may come back."""

    places: Mapping[str, Place] = {"a": Place(None, ("b",), 8), "b": Place("a", (), 8)}
    amounts: tuple[int, ...] = (16,)
    askers: tuple[str, ...] = ("a",)
    block = 8
    budget = Budget(crashes=0, duplicates=0, moves=3)
    horizon_ns = 22 * MILLISECOND_NS  # a little beyond patience

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        yield from super().moves(name, book, now_ns)
        if name == "b" and book.ledger.lots:
            yield Move("gets its lot back", _return_lot)
        elif name == "b":
            yield Move("hands out a lot", _issue_lot)

    def _check_refusals(self, books: Mapping[str, NodeBook], unspent: int) -> None:
        """What is out in lots is unspent, as far as anybody knows."""
        ahead = sum(book.ledger.account(ACCOUNT).ahead for book in books.values())
        super()._check_refusals(books, unspent + ahead)


def _issue_lot(book: NodeBook, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    """Once there is a block, which a lot comes out of."""
    book.keep_block(now_ns, book.ledger.account(ACCOUNT))
    return lots.issue(book, now_ns, (ACCOUNT,), 8, now_ns + MILLISECOND_NS)[1] + book.flush(), ground


def _return_lot(book: NodeBook, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    lot = next(iter(book.ledger.lots.values()))
    return lots.give_back(book, now_ns, lot, lot.out), ground


def in_flight(books: Mapping[str, NodeBook], name: str = ACCOUNT) -> int:
    """Units that one ledger debited and the other has not credited; what an outbox still has
    although it was credited is not in flight."""
    total = 0
    for identity, book in books.items():
        for peer, channel in book.ledger.account(name).channels.items():
            there = books[peer].ledger.account(name).channel(identity).received if peer in books else 0
            require(
                there <= channel.sent,
                f"{peer} was sent {there} transfers by {identity}, which knows {channel.sent}",
            )
            total += sum(amount for number, (amount, _) in channel.outbox.items() if number > there)
    return total


def granted(book: NodeBook) -> int:
    """What tenants of this life were told they have."""
    holds = {answer.outcome for answer in book.answers if isinstance(answer.outcome, int)}
    return sum(hold.amount for number, hold in book.ledger.holds.items() if number in holds)


def waited(book: NodeBook) -> int:
    """What requests of this life wait for."""
    return sum(request.amount for request in book.requests.values())


def untold(book: NodeBook) -> int:
    """Units of holds that are written and not durable: a crash may undo them."""
    told = {answer.outcome for answer in book.answers}
    return sum(hold.amount for number, hold in book.ledger.holds.items() if number not in told)


def _ask(amount: int) -> Callable[[Any, int, Any], tuple[Effects, Any]]:
    def apply(book: NodeBook, now_ns: int, ground: Any) -> tuple[Effects, Any]:
        return book.request(now_ns, "acme", (ACCOUNT,), amount)[1], ground

    return apply


def _settle(book: NodeBook, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    return book.settle(now_ns, next(iter(book.ledger.holds.values())), 0), ground


def endow(kind: type[NodeBook], *more: type[NodeBook]) -> Callable[..., NodeBook]:
    """The book, with the part of the courier that the search does not have: every life begins
    with the units that the first one was given, and learns the tree at its first tick."""
    bases: tuple[type[NodeBook], ...] = (_Endowed, *more, kind)
    found = _ENDOWED.get(bases)
    if found is None:
        found = _ENDOWED[bases] = type(f"Endowed{kind.__name__}", bases, {})
    return found


class _Endowed(NodeBook):
    def __init__(self, name: str, rules: Rules, block: int, life: int, places: Mapping[str, Place]) -> None:
        super().__init__(name, rules, block=block)
        self._life = life
        account = self.ledger.account(ACCOUNT)
        account.unspent = account.endowment = places[name].units
        self._places = tuple(places.items())

    def tick(self, now: int) -> Effects:
        effects: Effects = []
        if self._places:
            places, self._places = dict(self._places), ()
            place = places[self.identity]
            effects += self.open(now, self._life)
            effects += self.join(now, place.parent, place.children, places)
        return effects + super().tick(now)


_ENDOWED: dict[tuple[type[NodeBook], ...], type[NodeBook]] = {}
