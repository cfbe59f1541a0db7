"""Two quota nodes that are asked for one key, and the store that says whose it is: every order of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bursar.book import Book, Effects, Send
from bursar.quotas.book import NodeBook
from bursar.quotas.keys import Home
from bursar.sim.scenario import require
from bursar.sim.scenarios.quota.small import ACCOUNT, SMALL_RULES, TWO, Place, endow
from bursar.sim.search import Budget, Move, SmallWorld, State
from bursar.world import MILLISECOND_NS, Message

KEY = "k"
STORE = "store"

Told = frozenset[tuple[str, int]]
"""(ledger, number) of the holds that tenants were told of."""


class Take(Message, frozen=True):
    """Make this hold stand for the key. (`homes.take`)"""

    key: str
    ledger: str
    hold: int


class Free(Message, frozen=True):
    """Forget the key, if this hold stands for it. (`homes.free`)"""

    key: str
    ledger: str
    hold: int


class Said(Message, frozen=True):
    """To a Take: whether it is so; to a Free (`won` None): done."""

    key: str
    hold: int
    won: bool | None


class StoreBook:
    """The part of the store that keys need."""

    def __init__(self) -> None:
        self.homes: dict[str, tuple[str, int]] = {}

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        match message:
            case Take(key, ledger, hold):
                if self.homes.get(key, (ledger, 0))[0] == ledger:
                    self.homes[key] = (ledger, hold)
                return [Send(sender, Said(key, hold, self.homes[key] == (ledger, hold)))]
            case Free(key, ledger, hold):
                if self.homes.get(key) == (ledger, hold):
                    del self.homes[key]
                return [Send(sender, Said(key, hold, None))]
        return []

    def synced(self, now: int, records: int) -> Effects:
        return []

    def tick(self, now: int) -> Effects:
        return []

    def wake_at(self) -> int | None:
        return None

    def replay(self, records: Iterable[bytes]) -> None:
        return


class SmallKeys(SmallWorld):
    """All that is told of one key, at both nodes and in all their lives, is one hold, unless it was given
    back."""

    places: Mapping[str, Place] = TWO
    rules = SMALL_RULES
    horizon_ns = 5 * MILLISECOND_NS
    flight_max = 4
    budget = Budget(crashes=1, duplicates=1, moves=3)
    stable = frozenset((STORE,))
    ground: Told = frozenset()
    block = 0
    book: type[NodeBook] = NodeBook

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        makers: dict[str, Callable[[int], Book]] = {name: self._maker(name) for name in self.places}
        return {**makers, STORE: lambda life: StoreBook()}

    def _maker(self, name: str) -> Callable[[int], Book]:
        def make(life: int) -> Book:
            return endow(self.book, _Asking)(name, self.rules, self.block, life, self.places)

        return make

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if name == STORE:
            return
        entry = book.keys.find(KEY)
        if entry is None and not any(request.key for request in book.requests.values()):
            yield Move("is asked", _ask)
        elif entry is not None and entry.home is Home.OURS:
            yield Move("is asked again", _ask_again)
            if entry.hold.used is None:
                yield Move("is given back", _give_back)

    def crashed(self, name: str, book: Any, ground: Told) -> Told:
        return ground | told_by(name, book)

    def check(self, state: State) -> None:
        told: Told = state.ground
        books = dict(zip([*self.places, STORE], state.books, strict=True))
        for name in self.places:
            told |= told_by(name, books[name])
        charged = [(name, number) for name, number in told if _is_charged(books[name], number)]
        require(len(charged) <= 1, f"told and charged for one key: {sorted(charged)}")


def told_by(name: str, book: NodeBook) -> Told:
    return frozenset((name, answer.outcome) for answer in book.answers if isinstance(answer.outcome, int))


def _is_charged(book: NodeBook, number: int) -> bool:
    hold = book.ledger.find_hold(number)
    require(hold is not None, f"{number} was told, and its ledger does not know it")
    return hold is not None and hold.used != 0


def _ask(book: NodeBook, now_ns: int, ground: Told) -> tuple[Effects, Told]:
    return book.request(now_ns, "acme", (ACCOUNT,), 1, KEY)[1], ground


def _ask_again(book: NodeBook, now_ns: int, ground: Told) -> tuple[Effects, Told]:
    entry = book.keys.find(KEY)
    assert entry is not None, "it may be asked again"
    return [], ground | {(book.identity, entry.hold.number)}


def _give_back(book: NodeBook, now_ns: int, ground: Told) -> tuple[Effects, Told]:
    entry = book.keys.find(KEY)
    assert entry is not None, "it may be given back"
    return book.settle(now_ns, entry.hold, 0), ground


class _Asking(NodeBook):
    """The part of the courier that asks the store, as messages."""

    _freed: tuple[int, ...] = ()

    def flush(self) -> Effects:
        effects = super().flush()
        asking, self.keys.asking = self.keys.asking, []
        effects += [Send(STORE, Take(key, self.identity, number)) for key, number in asking]
        for key, number in self.keys.freeing.items():
            if number not in self._freed:
                self._freed += (number,)
                effects.append(Send(STORE, Free(key, self.identity, number)))
        return effects

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if not isinstance(message, Said):
            return super().receive(now, sender, message)
        if message.won is None:
            return self.end_key(now, message.key, message.hold)
        tell = self.win_key if message.won else self.lose_key
        return tell(now, message.key, message.hold)
