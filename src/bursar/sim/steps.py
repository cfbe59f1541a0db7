"""Everything that can happen next in a state of a small world."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from bursar.book import Effects, Record, Send
from bursar.errors import UsageError
from bursar.sim.copying import clone
from bursar.sim.smallworld import Flying, NodeState, SmallWorld, State

Label = tuple[Any, ...]
"""What happened, as values: written out only for the path to a violation."""

Sent = tuple[int, ...]
Step = tuple[NodeState, Sent]


class Stepper:
    """What one node does depends on that node alone, so each of its steps is made once."""

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
            if state.budget.crashes and self._names[position] not in self._world.stable:
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
