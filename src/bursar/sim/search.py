"""Every order of events of a small world of books.

The world is the books of a few nodes, the messages in flight, the journals with what of them is
durable, and the time. From every state, everything that could happen next is tried: a message
arrives, arrives and will arrive again, or is lost; a journal is synced as far as any record; a
node crashes, keeps any allowed prefix of its journal and comes back at once; a tick is due; time
passes to the next moment at which anything is due; a tenant does something. States that were seen
before are not walked again. The walk goes breadth first, so the first violation found is one with
the fewest steps.

What is bounded: how often each kind of trouble happens (`Budget`), the time (`horizon_ns`), and
the messages in flight (`flight_max`: one more, and the oldest is lost). Within these bounds the
search is complete: a clear answer, where seeds give a likely one. The network holds a message
once however often it was sent; a second arrival costs a duplicate. Time passes only when no tick
is due, or at the price of a delay. Clocks drift as `drift_ppm` says and begin at zero with each
life.

What one node does depends on that node alone, so each of its steps is made once and remembered:
states of the world are many, states of a node are few.

To search a protocol, derive from `SmallWorld`: see `sim.scenarios.lease`.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from bursar.book import Book, Effects, Record, Send
from bursar.errors import UsageError
from bursar.sim.clock import PPM
from bursar.sim.copying import clone, freeze
from bursar.world import MILLISECOND_NS, Message

STATES_MAX = 2_000_000


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
    """What is searched. A subclass says which books there are and what must hold."""

    horizon_ns: int = 1_000 * MILLISECOND_NS
    flight_max: int = 6
    budget: Budget = Budget()
    drift_ppm: Mapping[str, int] = MappingProxyType({})
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


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has to say. `steps` lead to the violation `why`, if there is one; `complete`
    is false when the bound on states ended the search early."""

    states: int
    transitions: int
    depth: int
    complete: bool
    why: str | None = None
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} steps deep"
        if self.why is None:
            return f"{size}: nothing found" + ("" if self.complete else ", NOT complete")
        return "\n".join([f"{size}: {self.why}", *self.steps])


Label = tuple[Any, ...]
"""What happened, as values: written out only for the path to a violation."""

Sent = tuple[int, ...]
Step = tuple[NodeState, Sent]
Queue = deque[tuple[State, int, int]]


class Search:
    """One search of one small world."""

    def __init__(self, world: SmallWorld, states_max: int = STATES_MAX) -> None:
        self._world = world
        self._states_max = states_max
        self._names = world.prepare()
        self._stepper = Stepper(world, self._names)
        self._parents: list[tuple[int, int, Label]] = []
        self._seen: dict[Hashable, int] = {}
        self._transitions = 0

    def run(self) -> Found:
        """Walk until a violation, the end, or the bound on states."""
        collecting = gc.isenabled()
        gc.disable()  # nothing here is garbage, and looking for it takes most of the time
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Found:
        first = self._stepper.begin()
        queue: Queue = deque([(first, self._enter(first, -1, ("begin",)), 0)])
        why = self._judge(first)
        depth = 0
        while queue and why is None and len(self._parents) < self._states_max:
            state, parent, depth = queue.popleft()
            why = self._expand(state, parent, depth, queue)
        if why is not None:
            return self._found(depth + 1, True, why)
        return self._found(depth, not queue, None)

    def _expand(self, state: State, parent: int, depth: int, queue: Queue) -> str | None:
        """Enter every new successor; stop at the first that violates something."""
        successors = self._stepper.successors(state)
        while True:
            try:
                label, successor = next(successors)
            except StopIteration:
                return None
            except Exception as error:  # noqa: BLE001  # whatever a book raises is a finding
                self._parents.append((parent, state.now_ns, ("the step after this one",)))
                return f"{type(error).__name__}: {error}"
            self._transitions += 1
            number = self._enter(successor, parent, label)
            if number < 0:
                continue
            why = self._judge(successor)
            if why is not None:
                return why
            queue.append((successor, number, depth + 1))

    def _judge(self, state: State) -> str | None:
        try:
            self._world.check(state)
        except AssertionError as error:
            return str(error)
        return None

    def _enter(self, state: State, parent: int, label: Label) -> int:
        """The number of a new state, -1 for one that was seen before."""
        now_ns, nodes, flight, ground, budget = state
        key = (now_ns, tuple([node.number for node in nodes]), flight, ground, budget)
        number = len(self._parents)
        if self._seen.setdefault(key, number) != number:
            return -1
        self._parents.append((parent, now_ns, label))
        return number

    def _found(self, depth: int, complete: bool, why: str | None) -> Found:
        steps = tuple(self._trace_back()) if why is not None else ()
        return Found(len(self._seen), self._transitions, depth, complete, why, steps)

    def _trace_back(self) -> list[str]:
        steps = []
        number = len(self._parents) - 1
        while number >= 0:
            number, now_ns, label = self._parents[number]
            steps.append(f"{now_ns / 1e9:>13.9f} {' '.join(map(str, label))}")
        return [f"{count:>4} {step}" for count, step in enumerate(reversed(steps))]


class Stepper:
    """Everything that can happen next in a state."""

    def __init__(self, world: SmallWorld, names: tuple[str, ...]) -> None:
        self._world = world
        self._names = names
        self._makers = world.nodes()
        self._positions = {name: position for position, name in enumerate(names)}
        self._nodes: dict[Hashable, NodeState] = {}
        self._steps: dict[Hashable, Step] = {}
        self._flying: list[Flying] = []
        self._flying_numbers: dict[Flying, int] = {}

    def begin(self) -> State:
        booted = [self._boot(name, 1, 0, ()) for name in self._names]
        flight: tuple[int, ...] = ()
        for _, sent in booted:
            flight = self._add(flight, sent)
        nodes = tuple(node for node, _ in booted)
        return State(0, nodes, flight, self._world.ground, self._world.budget)

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        yield from self._deliveries(state)
        ticking = False
        for position, node in enumerate(state.nodes):
            local_ns = self._world.local_ns(state, position)
            yield from self._syncs(state, position, local_ns)
            if node.wake_at is not None and node.wake_at <= local_ns:
                ticking = True
                yield self._tick(state, position, local_ns)
            if state.budget.moves:
                yield from self._moves(state, position, local_ns)
            if state.budget.crashes:
                yield from self._crashes(state, position)
        yield from self._times(state, ticking)

    def _deliveries(self, state: State) -> Iterator[tuple[Label, State]]:
        budget = state.budget
        for number in state.flight:
            flying = self._flying[number]
            position = self._positions[flying.to]
            local_ns = self._world.local_ns(state, position)
            rest = tuple([other for other in state.flight if other != number])
            step = self._receive(state.nodes[position], number, flying, local_ns)
            label = (flying.to, "<-", *flying[::2])
            yield label, self._after(state, position, step, rest)
            if budget.duplicates:
                fewer = budget._replace(duplicates=budget.duplicates - 1)
                again = self._after(state, position, step)
                yield (*label, "(and once more later)"), again._replace(budget=fewer)
            if budget.drops:
                fewer = budget._replace(drops=budget.drops - 1)
                yield (*label, "is lost"), state._replace(flight=rest, budget=fewer)

    def _receive(self, node: NodeState, number: int, flying: Flying, local_ns: int) -> Step:
        sender, _, message = flying
        return self._step(
            node,
            ("receive", number, local_ns),
            lambda book: book.receive(local_ns, sender, message),
            flying.to,
        )

    def _syncs(self, state: State, position: int, local_ns: int) -> Iterator[tuple[Label, State]]:
        node, name = state.nodes[position], self._names[position]
        for durable in range(node.durable + 1, len(node.records) + 1):
            records = durable - node.replayed
            step = self._sync(node, name, durable, records, local_ns)
            yield (name, "synced", records), self._after(state, position, step)

    def _sync(self, node: NodeState, name: str, durable: int, records: int, local_ns: int) -> Step:
        key = ("sync", durable, local_ns)
        return self._step(node, key, lambda book: book.synced(local_ns, records), name, durable)

    def _tick(self, state: State, position: int, local_ns: int) -> tuple[Label, State]:
        node, name = state.nodes[position], self._names[position]
        step = self._step(node, ("tick", local_ns), lambda book: book.tick(local_ns), name)
        return (name, "tick"), self._after(state, position, step)

    def _moves(self, state: State, position: int, local_ns: int) -> Iterator[tuple[Label, State]]:
        node, name = state.nodes[position], self._names[position]
        fewer = state.budget._replace(moves=state.budget.moves - 1)
        for move in self._world.moves(name, node.book, local_ns):
            book = clone(node.book)
            effects, ground = move.apply(book, local_ns, state.ground)
            step = self._changed(node, book, effects, name, node.durable)
            moved = self._after(state, position, step)
            yield (name, move.label), moved._replace(ground=ground, budget=fewer)

    def _crashes(self, state: State, position: int) -> Iterator[tuple[Label, State]]:
        node, name = state.nodes[position], self._names[position]
        fewer = state.budget._replace(crashes=state.budget.crashes - 1)
        ground = self._world.crashed(name, node.book, state.ground)
        for kept in range(node.durable, len(node.records) + 1):
            step = self._boot(name, node.life + 1, state.now_ns, node.records[:kept])
            label = (name, "crashes, loses", len(node.records) - kept, "records")
            crashed = self._after(state, position, step)
            yield label, crashed._replace(ground=ground, budget=fewer)

    def _times(self, state: State, ticking: bool) -> Iterator[tuple[Label, State]]:
        budget = state.budget
        if ticking:
            if not budget.delays:
                return
            budget = budget._replace(delays=budget.delays - 1)
        due = [
            self._world.true_ns(state, position, node.wake_at)
            for position, node in enumerate(state.nodes)
            if node.wake_at is not None
        ]
        later = [moment for moment in (*due, *self._world.moments(state)) if moment > state.now_ns]
        if later and min(later) <= self._world.horizon_ns:
            yield ("time passes",), state._replace(now_ns=min(later), budget=budget)

    def _after(self, state: State, position: int, step: Step, flight: tuple[int, ...] | None = None) -> State:
        node, sent = step
        nodes = (*state.nodes[:position], node, *state.nodes[position + 1 :])
        flight = state.flight if flight is None else flight
        return State(state.now_ns, nodes, self._add(flight, sent), state.ground, state.budget)

    def _add(self, flight: tuple[int, ...], sent: Sent) -> tuple[int, ...]:
        if all(number in flight for number in sent):
            return flight
        return tuple(sorted({*flight, *sent})[-self._world.flight_max :])

    # -- the steps of one node, each made once

    def _step(
        self,
        node: NodeState,
        key: Hashable,
        act: Callable[[Any], Effects],
        name: str,
        durable: int | None = None,
    ) -> Step:
        key = (node.number, key)
        step = self._steps.get(key)
        if step is None:
            book = clone(node.book)
            effects = act(book)
            step = self._changed(node, book, effects, name, node.durable if durable is None else durable)
            self._steps[key] = step
        return step

    def _changed(self, node: NodeState, book: Any, effects: Effects, name: str, durable: int) -> Step:
        records = node.records + _written(effects)
        changed = NodeState(book, node.life, node.booted_ns, records, durable, node.replayed)
        return self._known(name, changed), self._numbers(name, effects)

    def _boot(self, name: str, life: int, now_ns: int, records: tuple[bytes, ...]) -> Step:
        """As `Courier.start` does it: replay, then a first tick. A new life's clock begins at 0."""
        key = (name, life, now_ns, records)
        if key not in self._steps:
            book = self._makers[name](life)
            book.replay(records)
            effects = book.tick(0)
            written = records + _written(effects)
            booted = NodeState(book, life, now_ns, written, len(records), len(records))
            self._steps[key] = self._known(name, booted), self._numbers(name, effects)
        return self._steps[key]

    def _known(self, name: str, node: NodeState) -> NodeState:
        """The one object that stands for this state of this node."""
        known = self._nodes.setdefault((name, node.key()), node)
        if known is node:
            node.number = len(self._nodes)
        return known

    def _numbers(self, name: str, effects: Effects) -> Sent:
        sent = [Flying(name, effect.to, effect.message) for effect in effects if isinstance(effect, Send)]
        return tuple([self._number(flying) for flying in sent])

    def _number(self, flying: Flying) -> int:
        number = self._flying_numbers.setdefault(flying, len(self._flying))
        if number == len(self._flying):
            if flying.to not in self._positions:
                raise UsageError(f"{flying.sender} sends to {flying.to}, which is no node of this world")
            self._flying.append(flying)
        return number


def _written(effects: Effects) -> tuple[bytes, ...]:
    return tuple([effect.data for effect in effects if isinstance(effect, Record)])
