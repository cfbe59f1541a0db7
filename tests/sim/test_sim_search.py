"""The exhaustive search: that it visits what it should, and finds the shortest way to a fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from bursar.book import Book, Effects, Record, Send
from bursar.sim.copying import clone, freeze
from bursar.sim.scenario import require
from bursar.sim.search import Budget, Move, Search, SmallWorld, State
from bursar.world import Message

NOTHING = Budget(crashes=0, duplicates=0, drops=0, delays=0, moves=0)


class Count(Message, frozen=True):
    number: int


class Counter:
    """Sends its peers a number each; counts what it receives, and what of that is durable."""

    def __init__(self, peers: tuple[str, ...] = ()) -> None:
        self.received = 0
        self.durable = 0
        self._to_send = peers

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        self.received += 1
        return [Record(b"one")]

    def synced(self, now: int, records: int) -> Effects:
        self.durable = records
        return []

    def tick(self, now: int) -> Effects:
        peers, self._to_send = self._to_send, ()
        return [Send(peer, Count(number)) for number, peer in enumerate(peers)]

    def wake_at(self) -> int | None:
        return None

    def replay(self, records: Iterable[bytes]) -> None:
        self.received = self.durable = sum(1 for _ in records)


class Counting(SmallWorld):
    """`a` sends three messages to `b`."""

    budget = NOTHING
    received_max = 3
    ground = 0

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        return {"a": lambda life: Counter(("b", "b", "b")), "b": lambda life: Counter()}

    def check(self, state: State) -> None:
        received = state.books[1].received
        require(received <= self.received_max, f"b received {received}")


def search(world: SmallWorld, **given: Any) -> Any:
    for name, value in given.items():
        setattr(world, name, value)
    return Search(world).run()


def test_every_order_is_visited_once() -> None:
    """Of three messages, any subset may have arrived, and of its records any number be durable:
    1*1 + 3*2 + 3*3 + 1*4 states."""
    found = search(Counting())
    assert (found.states, found.why, found.complete) == (20, None, True)


def test_a_duplicate_is_delivered_once_more() -> None:
    found = search(Counting(), budget=NOTHING._replace(duplicates=1))
    assert found.why == "b received 4"
    assert sum("<-" in step for step in found.steps) == 4
    assert sum("once more" in step for step in found.steps) == 1


def test_dropping_all_leaves_nothing() -> None:
    class Lossy(Counting):
        def check(self, state: State) -> None:
            require(bool(state.flight) or state.books[1].received > 0, "nothing arrives any more")

    assert search(Lossy(), budget=NOTHING._replace(drops=2)).why is None
    found = search(Lossy(), budget=NOTHING._replace(drops=3))
    assert found.why == "nothing arrives any more"
    assert len(found.steps) == 4


def test_a_crash_keeps_the_durable_records_and_any_prefix_of_the_rest() -> None:
    kept: set[tuple[int, int]] = set()

    class Crashing(Counting):
        def crashed(self, name: str, book: Any, ground: Any) -> Any:
            return (book.received, book.durable)

        def check(self, state: State) -> None:
            if state.ground and not state.budget.crashes and state.nodes[1].life == 2:
                received, durable = state.ground
                kept.add((received, durable))
                require(state.books[1].received >= durable, "a durable record is lost")

    assert search(Crashing(), budget=NOTHING._replace(crashes=1)).why is None
    assert kept >= {(3, 0), (3, 1), (3, 2), (3, 3)}


def test_a_stable_node_never_crashes() -> None:
    class Reliable(Counting):
        stable = frozenset({"b"})

        def check(self, state: State) -> None:
            require(state.nodes[1].life == 1, "b crashed")
            require(state.nodes[0].life == 1, "a crashed")

    assert search(Reliable(), budget=NOTHING._replace(crashes=2)).why == "a crashed"


def test_the_path_to_a_violation_is_a_shortest_one() -> None:
    found = search(Counting(), received_max=1)
    assert [step.split()[2:5] for step in found.steps] == [["begin"], ["b", "<-", "a"], ["b", "<-", "a"]]
    assert found.depth == 2


def test_an_error_in_a_book_is_a_finding_with_its_path() -> None:
    class Broken(Counter):
        def synced(self, now: int, records: int) -> Effects:
            raise KeyError("forgotten")

    class World(Counting):
        def nodes(self) -> Mapping[str, Callable[[int], Book]]:
            return {"a": lambda life: Counter(("b",)), "b": lambda life: Broken()}

    found = search(World())
    assert found.why == "KeyError: 'forgotten'"
    assert len(found.steps) == 3


def test_a_bound_on_states_is_told() -> None:
    found = Search(Counting(), states_max=5).run()
    assert not found.complete
    assert "NOT complete" in str(found)


def test_messages_beyond_the_bound_lose_the_oldest() -> None:
    found = search(Counting(), flight_max=1, received_max=0)
    assert found.steps[-1].endswith("Count(number=2)")


class Timed:
    """Wakes at 100 and 200 by its own clock."""

    def __init__(self) -> None:
        self.woken = 0

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        return []

    def synced(self, now: int, records: int) -> Effects:
        return []

    def tick(self, now: int) -> Effects:
        self.woken += now >= 100 * (self.woken + 1)
        return []

    def wake_at(self) -> int | None:
        return 100 * (self.woken + 1) if self.woken < 2 else None

    def replay(self, records: Iterable[bytes]) -> None:
        return


class Timing(SmallWorld):
    budget = NOTHING
    horizon_ns = 1_000
    seen: set[int]

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        self.seen = set()
        return {"fast": lambda life: Timed(), "slow": lambda life: Timed()}

    def check(self, state: State) -> None:
        self.seen.add(state.now_ns)


def test_time_goes_to_the_next_moment_that_matters_by_each_clock() -> None:
    world = Timing()
    search(world, drift_ppm={"fast": 250_000, "slow": -200_000})
    assert world.seen == {0, 80, 125, 160, 250}
    search(world, horizon_ns=130)
    assert world.seen == {0, 80, 125}


def test_a_tick_is_late_only_at_the_price_of_a_delay() -> None:
    class Late(Timing):
        def check(self, state: State) -> None:
            fast, slow = state.books
            require(not (slow.woken == 2 and fast.woken == 0), "fast was forgotten")

    assert search(Late()).why is None
    assert search(Late(), budget=NOTHING._replace(delays=1)).why == "fast was forgotten"


def test_a_move_changes_the_ground_and_costs_its_budget() -> None:
    class Moving(Counting):
        def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
            if name == "b":
                yield Move(
                    "counts itself", lambda book, now, ground: (book.receive(now, "b", Count(0)), ground + 1)
                )

        def check(self, state: State) -> None:
            require(state.books[1].received <= 3 + state.ground, "a move was not noted")
            require(state.ground < 2, "two moves")

    assert search(Moving(), budget=NOTHING._replace(moves=1)).why is None
    found = search(Moving(), budget=NOTHING._replace(moves=2))
    assert found.why == "two moves"
    assert [step.endswith("b counts itself") for step in found.steps] == [False, True, True]


# Copies and fingerprints


class Plain:
    def __init__(self) -> None:
        self.number = 1
        self.shared = [1]
        self.again = self.shared
        self.table = {"a": [2], "b": {"c": deque([3], maxlen=4)}}
        self.names = {"x", "y"}
        self.inner: Any = Slotted()


class Slotted:
    __slots__ = ("items", "unset")

    def __init__(self) -> None:
        self.items = [1]


@dataclass(frozen=True)
class Frozen:
    number: int


class Wire(msgspec.Struct, frozen=True):
    number: int


def test_a_clone_is_equal_and_independent() -> None:
    book = Plain()
    copy = clone(book)
    assert freeze(copy) == freeze(book)
    assert copy.again is copy.shared is not book.shared
    for change in (
        lambda it: it.shared.append(5),
        lambda it: it.table["b"]["c"].append(5),
        lambda it: it.names.add("z"),
        lambda it: it.inner.items.append(5),
        lambda it: setattr(it, "number", 2),
        lambda it: setattr(it, "new", None),
    ):
        changed = clone(book)
        change(changed)
        assert freeze(changed) != freeze(book) == freeze(copy)


def test_frozen_values_are_shared() -> None:
    for value in (Frozen(1), Wire(1), (1, "a"), b"x", None, frozenset({1})):
        assert clone([value])[0] is value
        assert hash(freeze([value])) == hash(freeze([value]))
    assert freeze(Frozen(1)) != freeze(Wire(1))


def test_what_cannot_be_copied_is_refused() -> None:
    class Named(dict):  # type: ignore[type-arg]
        pass

    for value in (Named(), [].append, Plain().__init__):
        with pytest.raises(TypeError, match="a book keeps"):
            clone([value])
