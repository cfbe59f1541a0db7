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

To search a protocol, derive from `SmallWorld`: see `bursar_lab.scenarios.lease`.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from bursar.sim.smallworld import Budget, Move, SmallWorld, State
from bursar.sim.steps import Label, Stepper

__all__ = ["Budget", "Found", "Move", "Search", "SmallWorld", "State"]

STATES_MAX = 2_000_000

Queue = deque[tuple[State, int, int]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has to say. `steps` lead to the violation `why`, if there is one; `complete`
    is false when the bound on states ended the search early; `within` names a bound on what is tried."""

    states: int
    transitions: int
    depth: int
    complete: bool
    why: str | None = None
    steps: tuple[str, ...] = ()
    within: str = ""

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} steps deep"
        size += f" ({self.within})" if self.within else ""
        if self.why is None:
            return f"{size}: nothing found" + ("" if self.complete else ", NOT complete")
        return "\n".join([f"{size}: {self.why}", *self.steps])


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
