"""A small world of books, as `search` walks it: what it consists of, and its state at one moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bursar.book import Book, Effects
from bursar.sim.clock import PPM
from bursar.sim.copying import freeze
from bursar.world import MILLISECOND_NS, Message


class Budget(NamedTuple):
    """How often each kind of trouble may still happen. Every one multiplies the states."""

    crashes: int = 1
    duplicates: int = 1
    drops: int = 0
    delays: int = 0
    moves: int = 2


class Move(NamedTuple):
    """Something that a tenant may do at a node. `apply(book, now_ns, ground)` returns the effects
    and the new ground; it is handed a copy of the book."""

    label: str
    apply: Callable[[Any, int, Any], tuple[Effects, Any]]


class Flying(NamedTuple):
    """A message in flight."""

    sender: str
    to: str
    message: Message


class NodeState:
    """A node at one moment; never changed once made.

    records     the journal; the first `durable` of them survive a crash for sure
    replayed    how many of them an earlier life wrote
    """

    __slots__ = ("book", "booted_ns", "durable", "life", "number", "records", "replayed", "wake_at")

    def __init__(
        self, book: Book, life: int, booted_ns: int, records: tuple[bytes, ...], durable: int, replayed: int
    ) -> None:
        self.book = book
        self.life = life
        self.booted_ns = booted_ns
        self.records = records
        self.durable = durable
        self.replayed = replayed
        self.wake_at = book.wake_at()
        self.number = -1

    def key(self) -> Hashable:
        return freeze(self.book), self.life, self.booted_ns, self.records, self.durable, self.replayed


class State(NamedTuple):
    """The whole world at one moment.

    now_ns      true time
    nodes       by position, as in `SmallWorld.nodes()`
    flight      the numbers of the messages in flight; a message first sent later has a larger one
    ground      the truth that no node knows, as the model keeps it: any hashable value
    """

    now_ns: int
    nodes: tuple[NodeState, ...]
    flight: tuple[int, ...]
    ground: Any
    budget: Budget

    @property
    def books(self) -> list[Any]:
        return [node.book for node in self.nodes]


class SmallWorld:
    """What is searched. A subclass says which books there are and what must hold. `stable` names
    nodes that never crash (one that stands for the coordination store)."""

    horizon_ns: int = 1_000 * MILLISECOND_NS
    flight_max: int = 6
    budget: Budget = Budget()
    drift_ppm: Mapping[str, int] = MappingProxyType({})
    stable: frozenset[str] = frozenset()
    ground: Hashable = ()

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        """For each node, what makes its book for a life (1, 2, ...)."""
        raise NotImplementedError

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        """What a tenant may do at this node now. Must not change the book."""
        return ()

    def crashed(self, name: str, book: Any, ground: Any) -> Any:
        """The ground after the node died with this book."""
        return ground

    def moments(self, state: State) -> Iterable[int]:
        """True times worth a look besides those at which a tick is due."""
        return ()

    def check(self, state: State) -> None:
        """What must hold in every state; raise with `scenario.require`."""

    # -- for subclasses

    def local_ns(self, state: State, position: int) -> int:
        """What the clock of the node at this position shows."""
        return (state.now_ns - state.nodes[position].booted_ns) * self._speeds[position] // PPM

    def true_ns(self, state: State, position: int, local_ns: int) -> int:
        """When that clock shows at least so much."""
        return state.nodes[position].booted_ns - (-local_ns * PPM // self._speeds[position])

    def prepare(self) -> tuple[str, ...]:
        """Called once before the search."""
        names = tuple(self.nodes())
        self._speeds = [PPM + self.drift_ppm.get(name, 0) for name in names]
        return names
