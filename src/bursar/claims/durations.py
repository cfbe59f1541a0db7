"""How long tasks take, learned from those that were done (section 6.2.5 of the thesis): pure.

Tasks of one kind, for one tenant, take about as long as the last ones did: what is kept is a running mean of
the logarithm, and of how far they lie from it. A sample counts no further than three such distances, so
that one that hung for an hour does not spoil what a hundred others said; the first ones count more. Where a
tenant has had none of a kind, all tenants' of that kind stand in.

What an instance has learned it shares with the others by way of the store, now and then: of two that know the
same kind, the one that saw more is believed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from bursar.claims.queue import Order, Queue
from bursar.claims.requirements import Counts, Requirements
from bursar.decoding import DECODE_ERRORS
from bursar.world import SECOND_NS

KINDS_MAX = 500
"""The kinds heard of last are kept."""

SHARE_MIN = 0.1
"""The part of a new sample, once there were some."""

CLIP = 3.0
SPREAD_MIN, SPREAD_FIRST = 0.05, 0.5
SHORTEST_S = 1e-4


MEAN_MAX = 50.0
"""What others say is beyond this is no logarithm of a time."""


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """Of one kind: how many were seen, the mean of the logarithm of their seconds, the mean distance."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    mean: Annotated[float, msgspec.Meta(ge=-MEAN_MAX, le=MEAN_MAX)]
    spread: Annotated[float, msgspec.Meta(ge=0, le=2 * MEAN_MAX)]

    def take(self, seconds: float) -> Learned:
        share = max(SHARE_MIN, 1 / (self.count + 1))
        bound = CLIP * max(self.spread, SPREAD_MIN)
        off = max(-bound, min(bound, math.log(max(seconds, SHORTEST_S)) - self.mean))
        spread = self.spread + share * (abs(off) - self.spread)
        return Learned(self.count + 1, self.mean + share * off, spread)

    @property
    def seconds(self) -> float:
        return math.exp(self.mean)


_decode = msgspec.msgpack.Decoder(dict[str, Learned]).decode


class Durations:
    """By kind: what is called, and for whom. `is_new` says that something was learned since it was told."""

    def __init__(self) -> None:
        self._learned: dict[str, Learned] = {}
        self.is_new = False

    def note(self, function: str, tenant: str, seconds: float) -> None:
        for key in (f"{function}/{tenant}", function):
            known = self._learned.pop(key, None)
            if known is None:
                known = Learned(1, math.log(max(seconds, SHORTEST_S)), SPREAD_FIRST)
            else:
                known = known.take(seconds)
            self._learned[key] = known
        while len(self._learned) > KINDS_MAX:
            del self._learned[next(iter(self._learned))]
        self.is_new = True

    def expect(self, function: str, tenant: str) -> float | None:
        """Seconds that such a task takes; None while nobody knows."""
        known = self._learned.get(f"{function}/{tenant}") or self._learned.get(function)
        return None if known is None or not function else known.seconds

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self._learned)

    def merge(self, data: bytes) -> None:
        """What others have learned. Data that is no such thing counts for nothing: all that rests on it is an
        order and a forecast."""
        try:
            found = _decode(data) if data else {}
        except DECODE_ERRORS:
            return
        for key, learned in found.items():
            known = self._learned.get(key)
            if known is None or known.count < learned.count:
                self._learned[key] = learned


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that waits, for a forecast; `after_s`: it is not begun sooner than that."""

    id: str
    needs: Requirements
    counts: Counts
    tenant: str
    priority: int
    created: int
    seconds: float
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """A task or claim that holds its names for so long yet."""

    id: str
    needs: Requirements
    counts: Counts
    left_s: float


def forecast(
    waiting: Iterable[Waiting],
    running: Iterable[Running],
    order: Order,
    capacities: Mapping[str, int],
    weight_of: Callable[[str], int],
    wanted: str,
) -> float | None:
    """In how many seconds a task starts, if the others take as long as is expected and nobody comes: the
    queue itself is asked, event by event. None if that is never."""
    queue, tasks = Queue(order, weight_of), {each.id: each for each in waiting}
    free, ends, now = dict(capacities), list[tuple[float, str]](), 0.0
    held: dict[str, tuple[Requirements, Counts]] = {}

    def hold(id: str, needs: Requirements, counts: Counts, seconds: float) -> None:
        queue.occupy(id, needs)
        for name, units in counts:
            free[name] = free.get(name, 0) - units
            queue.supply(name, free[name])
        held[id] = needs, counts
        heapq.heappush(ends, (now + seconds, id))

    for name, units in free.items():
        queue.supply(name, units)
    for each in running:
        hold(each.id, each.needs, each.counts, each.left_s)
    for task in tasks.values():
        if task.after_s > 0:
            heapq.heappush(ends, (task.after_s, task.id))
        else:
            _enter(queue, task)
    while True:
        while (id := queue.pick()) is not None:
            if id == wanted:
                return now
            task = tasks[id]
            queue.leave(id)
            queue.charge(task.tenant)
            hold(id, task.needs, task.counts, task.seconds)
        if not ends:
            return None
        now, id = heapq.heappop(ends)
        if id not in held:
            _enter(queue, tasks[id])  # its time has come
            continue
        needs, counts = held.pop(id)
        queue.vacate(id, needs)
        for name, units in counts:
            free[name] += units
            queue.supply(name, free[name])


def _enter(queue: Queue, task: Waiting) -> None:
    queue.enter(
        task.id,
        task.needs,
        tenant=task.tenant,
        priority=task.priority,
        submitted=task.created,
        counts=task.counts,
        seconds=task.seconds,
    )


def seconds_left(expected: float, begun: int, wall_ns: int) -> float:
    """Of one that runs; one that took longer already, half as long again."""
    left = expected - (wall_ns - begun) / SECOND_NS
    return left if left > 0 else expected / 2
