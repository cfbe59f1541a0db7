"""Every order of operations of a small pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from bursar.book import Effects
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import perform
from bursar.pools.monitor_book import MonitorBook
from bursar.sim.scenario import require
from bursar.sim.search import Budget, Move, SmallWorld, State
from bursar.world import MILLISECOND_NS, Add, Read, Swap, WordOperation, Words, Write


class Ground(NamedTuple):
    """What is true: the shared words, and what was spent in each period, both in order."""

    words: tuple[tuple[str, int], ...] = ()
    spent: tuple[tuple[int, int], ...] = ()


def apply(words: dict[str, int], operation: WordOperation) -> int:
    """One operation on words that are a plain dict; what the word was."""
    before = words.get(operation.word, 0)
    match operation:
        case Write(word, value):
            words[word] = value
            return 0
        case Add(word, amount):
            words[word] = before + amount
        case Swap(word, expected, value) if before == expected:
            words[word] = value
        case Read() | Swap():
            return before
    return before


class Stepped:
    """A book whose every operation on a word is a step of its own, so that all others may come in
    between."""

    def __init__(self, book: Any) -> None:
        self.book = book
        self.doing: WordOperation | None = None

    def step(self, now_ns: int, words: dict[str, int]) -> None:
        assert self.doing is not None, "there is an operation to do"
        self._receive(now_ns, apply(words, self.doing))

    def perform(self, now_ns: int, words: Words) -> None:
        assert self.doing is not None, "there is an operation to do"
        self._receive(now_ns, perform(words, self.doing))

    def _receive(self, now_ns: int, value: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.book.receive(now_ns, self.doing, value)  # type: ignore[arg-type]
        else:
            self.book.receive(now_ns, value)
        self._plan(now_ns)

    def begin(self, now_ns: int, wanted: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.book.begin(now_ns)
        else:
            self.book.begin(now_ns, wanted)
        self._plan(now_ns)

    def _plan(self, now_ns: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.doing = self.book.operation(now_ns)
        else:
            self.doing = self.book.operation()

    def is_quiet(self) -> bool:
        """Whether the next operation is on a word that no other book's choice depends on here:
        nothing that may come before it is lost by doing it at once."""
        return self.doing is not None and ("/report/" in self.doing.word or "/asked" in self.doing.word)

    def spend(self, now_ns: int) -> int:
        """Spend everything there is; how much that was."""
        book: EngineBook = self.book
        usable = book.usable(now_ns)
        book.take(now_ns, usable)
        return usable

    # What a book of messages has, and this one has not.

    def receive(self, now: int, sender: str, message: object) -> Effects:
        raise AssertionError("nobody sends messages here")

    def synced(self, now: int, records: int) -> Effects:
        return []

    def tick(self, now: int) -> Effects:
        return []

    def wake_at(self) -> int | None:
        return None

    def replay(self, records: Iterable[bytes]) -> None:
        """It remembers nothing across its lives but what the words say."""


class SmallPool(SmallWorld):
    """Two clients that have spent their reservations and race for the pool, and the monitor that
    fills it: in a period that is open already, and into the next. A client spends what it gets at
    once. One of them may crash."""

    capacity = 40
    reservations: Mapping[str, int] = {"a": 18, "b": 18}
    batch = 2
    period_ns = 100 * MILLISECOND_NS
    horizon_ns = 100 * MILLISECOND_NS
    budget = Budget(crashes=1, duplicates=0, moves=12)
    stable = frozenset({"monitor"})
    engine_book: type[EngineBook] = EngineBook
    monitor_book: type[MonitorBook] = MonitorBook

    def __init__(self) -> None:
        words: dict[str, int] = {}
        self._monitor = Stepped(self._make_monitor())
        self._run(self._monitor, words)
        self._clients = {name: Stepped(self._make_engine(name)) for name in self.reservations}
        for client in self._clients.values():
            self._run(client, words)
            client.spend(0)
            self._run(client, words)
        self.ground = Ground(tuple(sorted(words.items())), ((1, sum(self.reservations.values())),))

    def _make_monitor(self) -> MonitorBook:
        book = self.monitor_book("pool", FixedCapacity(self.capacity), period_ns=self.period_ns)
        for tenant, reservation in self.reservations.items():
            book.join(tenant, reservation)
        return book

    def _make_engine(self, name: str) -> EngineBook:
        return self.engine_book("pool", name, period_ns=self.period_ns, batch=self.batch, adaptive=False)

    def _run(self, stepped: Stepped, words: dict[str, int]) -> None:
        stepped.begin(0, 0)
        while stepped.doing is not None:
            stepped.step(0, words)

    def nodes(self) -> Mapping[str, Callable[[int], Any]]:
        def make_client(name: str) -> Callable[[int], Stepped]:
            return lambda life: self._clients[name] if life == 1 else Stepped(self._make_engine(name))

        return {"monitor": lambda life: self._monitor, **{name: make_client(name) for name in self._clients}}

    def moves(self, name: str, book: Stepped, now_ns: int) -> Iterable[Move]:
        if book.doing is not None:
            yield Move(" ".join(map(str, book.doing)), _step)
        else:
            yield Move("looks", _look)

    def moments(self, state: State) -> Iterable[int]:
        return (self.period_ns,)

    def check(self, state: State) -> None:
        for period, spent in state.ground.spent:
            require(spent <= self.capacity, f"{spent} spent in period {period}, of {self.capacity}")
        book: MonitorBook = state.nodes[0].book.book  # type: ignore[attr-defined]
        require(book.accounts.issued() <= book.accounts.capacity, "more was issued than there is")


def _look(book: Stepped, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    """Begin a round, and do its first operation: beginning touches no word."""
    book.begin(now_ns, 1)
    return _step(book, now_ns, ground)


def _step(book: Stepped, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    words = dict(ground.words)
    book.step(now_ns, words)
    while book.doing is not None and book.is_quiet():
        book.step(now_ns, words)
    spent = dict(ground.spent)
    if book.doing is None and isinstance(book.book, EngineBook):
        spent[book.book.period] = spent.get(book.book.period, 0) + book.spend(now_ns)
    return [], Ground(tuple(sorted(words.items())), tuple(sorted(spent.items())))
