"""Many quota books in virtual time: the same books as in production, on a counted network.

Requests between two messages of a node are granted in bulk, a part of its units at a time, as
`fast` mode does with blocks; whatever touches the protocol goes through the book. Each node handles
one message after the other, each taking `handling_ns`, so that a coordinator with many children is
as slow as it would be.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bursar.book import Effects, Record, Send
from bursar.quotas.book import NodeBook
from bursar.quotas.messages import Credit
from bursar.quotas.round import Round
from bursar.quotas.rules import Rules
from bursar_lab.experiments.quotas.traces import Trace

ACCOUNT = "quota"
FANOUT = 5
CHUNK_MAX = 64
SHARE_OF_UNITS = 8
"""A chunk takes at most this part of the units that are there."""

Latency = Callable[[int, int], int]


@dataclass(slots=True)
class Outcome:
    """What a run counted. `costs` weigh a message by the steps between its ends in the tree."""

    granted: int = 0
    refused: int = 0
    waited: int = 0
    early: int = 0
    early_waited: int = 0
    messages: int = 0
    acks: int = 0
    cost: int = 0
    spent: int = 0
    durations_ns: list[int] = field(default_factory=list)
    waits_ns: list[int] = field(default_factory=list)
    curve: list[tuple[float, int, int]] = field(default_factory=list)


class Turn:
    """Whose turn it is to coordinate. `wake(identity)` makes a node look at its needs again."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._holder: str | None = None
        self._queue: deque[str] = deque()

    def take(self, identity: str) -> bool:
        if self._holder is None:
            self._holder = identity
        elif self._holder != identity and identity not in self._queue:
            self._queue.append(identity)
        return self._holder == identity

    def give_up(self, identity: str) -> None:
        if self._holder == identity:
            self._holder = None
            if self._queue:
                self._wake(self._queue.popleft())


class MeteredRound(Round):
    """Notes how long the re-allocations took that this node began for itself."""

    durations: list[int]
    turn: Turn
    own = False

    def begin(self, book: NodeBook, now: int) -> None:
        self.own = not self.gathering.offers and self.gathering.asked_by is None
        super().begin(book, now)

    def learn_duration(self, duration_ns: int) -> None:
        super().learn_duration(duration_ns)
        if self.own and duration_ns > 0:
            self.durations.append(duration_ns)
            self.own = False


class MeteredBook(NodeBook):
    round_class = MeteredRound


def tree_parents(nodes: int) -> list[int | None]:
    """A full tree: node 0 is the root, each has up to FANOUT children."""
    return [None if node == 0 else (node - 1) // FANOUT for node in range(nodes)]


def tree_distance(parents: Sequence[int | None], a: int, b: int) -> int:
    """Steps between two nodes along the tree."""
    above: dict[int, int] = {}
    steps, node = 0, a
    while True:
        above[node] = steps
        parent = parents[node]
        if parent is None:
            break
        node, steps = parent, steps + 1
    steps, node = 0, b
    while node not in above:
        node, steps = int(parents[node] or 0), steps + 1
    return steps + above[node]


class Grid:
    """One run. `mesh` connects every node with every other (the baseline); otherwise a tree."""

    def __init__(
        self,
        trace: Trace,
        quota: int,
        rules: Rules,
        latency: Latency,
        *,
        seed: int,
        handling_ns: int = 20_000,
        mesh: bool = False,
        book_class: type[NodeBook] = MeteredBook,
        parents: Sequence[int | None] | None = None,
    ) -> None:
        self.outcome = Outcome()
        self.quota = quota
        self._trace = trace
        self._latency = latency
        self._handling_ns = handling_ns
        self._parents = list(parents or tree_parents(trace.nodes))
        self._mesh = mesh
        self._distances: dict[tuple[int, int], int] = {}
        self.books = [book_class(str(node), rules) for node in range(trace.nodes)]
        self._lines = [0] * trace.nodes
        self._busy = [0] * trace.nodes
        self._ticks: list[int | None] = [None] * trace.nodes
        self._next = [0] * trace.nodes
        self._sums = [np.concatenate(([0], np.cumsum(sizes))) for sizes in trace.sizes]
        self._asked: dict[tuple[int, int], tuple[int, bool]] = {}
        self._events: list[tuple[int, int, int, int, Any]] = []
        self._count = 0
        self._now = 0
        self._curve_at = quota
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        nodes, names = self._trace.nodes, [str(node) for node in range(self._trace.nodes)]
        rng = np.random.default_rng(seed)
        cuts = np.sort(rng.integers(0, self.quota, size=nodes - 1, endpoint=True))
        parts = np.diff(np.concatenate(([0], cuts, [self.quota])))
        members = frozenset(names)
        children: list[list[str]] = [[] for _ in range(nodes)]
        for child, parent in enumerate(self._parents):
            if parent is not None:
                children[parent].append(names[child])
        turn = Turn(self._wake)
        for node, book in enumerate(self.books):
            self._prepare(book, turn)
            self._perform(0, node, book.open(0, 1))
            above = self._parents[node]
            if self._mesh:
                effects = book.join(0, None, [name for name in names if name != names[node]], members)
            else:
                effects = book.join(0, None if above is None else names[above], children[node], members)
            self._perform(0, node, effects)
            self._perform(0, node, book.mint(0, ACCOUNT, [(names[node], int(parts[node]))]))
            if len(self._trace.times[node]):
                self._push(int(self._trace.times[node][0]), _ARRIVE, node, None)

    def _prepare(self, book: NodeBook, turn: Turn) -> None:
        round_ = book.round(book.ledger.account(ACCOUNT))
        assert isinstance(round_, MeteredRound), "a grid meters its rounds"
        round_.durations = self.outcome.durations_ns
        round_.turn = turn

    def _wake(self, identity: str) -> None:
        book = self.books[int(identity)]
        book.wake_round(self._now, book.ledger.account(ACCOUNT))
        self._set_tick(self._now, int(identity))

    # -- events

    def run(self, until_part: float = 1.0) -> Outcome:
        """Until every request is answered, or that part of the quota is spent."""
        stop = int(self.quota * (1 - until_part))
        while self._events:
            now, _, kind, node, data = heapq.heappop(self._events)
            self._now = now
            if kind == _ARRIVE:
                self._arrive(now, node)
            elif kind == _TICK:
                self._tick(now, node)
            else:
                self._receive(now, node, data)
            if until_part < 1.0 and self.quota - self.outcome.spent <= stop:
                break
        return self.outcome

    def _push(self, when: int, kind: int, node: int, data: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, kind, node, data))

    def _receive(self, now: int, node: int, data: tuple[int, Any]) -> None:
        if self._busy[node] > now:
            self._push(self._busy[node], _MESSAGE, node, data)
            return
        self._busy[node] = now + self._handling_ns
        sender, message = data
        book = self.books[node]
        self._perform(
            now + self._handling_ns, node, book.receive(now + self._handling_ns, str(sender), message)
        )

    def _tick(self, now: int, node: int) -> None:
        if self._ticks[node] == now:
            self._ticks[node] = None
            self._perform(now, node, self.books[node].tick(now))

    def _perform(self, now: int, node: int, effects: Effects) -> None:
        book = self.books[node]
        while effects:
            lines = 0
            for effect in effects:
                if isinstance(effect, Send):
                    self._send(now, node, int(effect.to), effect.message)
                elif isinstance(effect, Record):
                    lines += 1
            self._lines[node] += lines
            effects = book.synced(now, self._lines[node]) if lines else []
        if book.answers:
            self._hand_out(now, node, book)
        self._set_tick(now, node)

    def _set_tick(self, now: int, node: int) -> None:
        wake_at = self.books[node].wake_at()
        if wake_at is not None and (self._ticks[node] is None or wake_at < (self._ticks[node] or 0)):
            self._ticks[node] = max(wake_at, now)
            self._push(max(wake_at, now), _TICK, node, None)

    def _send(self, now: int, node: int, to: int, message: Any) -> None:
        outcome = self.outcome
        if isinstance(message, Credit):
            outcome.acks += 1
        else:
            outcome.messages += 1
        outcome.cost += self._distance(node, to)
        leaves = max(now, self._busy[node]) + self._handling_ns
        self._busy[node] = leaves
        self._push(leaves + self._latency(node, to), _MESSAGE, to, (node, message))

    def _distance(self, a: int, b: int) -> int:
        key = (a, b) if a < b else (b, a)
        if key not in self._distances:
            self._distances[key] = tree_distance(self._parents, *key)
        return self._distances[key]

    # -- requests

    def _arrive(self, now: int, node: int) -> None:
        book, place = self.books[node], self._next[node]
        account = book.ledger.account(ACCOUNT)
        demand = book.demand(account)
        count = self._choose_chunk(node, place, account.unspent, demand.threshold(now))
        if count == 0:
            self._ask(now, node, place)
            count = 1
        else:
            units = int(self._sums[node][place + count] - self._sums[node][place])
            account.unspent -= units
            account.spent += units
            demand.see_request(units // count)
            self._granted(units, count)
        self._next[node] = place + count
        if place + count < len(self._trace.times[node]):
            self._push(int(self._trace.times[node][place + count]), _ARRIVE, node, None)

    def _choose_chunk(self, node: int, place: int, unspent: int, kept: int) -> int:
        """How many requests can be granted at once, leaving the threshold and most of the rest."""
        sums = self._sums[node]
        count = min(CHUNK_MAX, len(sums) - 1 - place)
        while count > 1 and int(sums[place + count] - sums[place]) > (unspent - kept) // SHARE_OF_UNITS:
            count //= 2
        return count if int(sums[place + count] - sums[place]) <= unspent - kept else 0

    def _ask(self, now: int, node: int, place: int) -> None:
        amount = int(self._trace.sizes[node][place])
        early = self.outcome.spent < 0.9 * self.quota
        number, effects = self.books[node].request(now, "t", (ACCOUNT,), amount)
        self._asked[node, number] = (now, early)
        self._perform(now, node, effects)

    def _hand_out(self, now: int, node: int, book: NodeBook) -> None:
        answers, book.answers = book.answers, []
        for answer in answers:
            asked_at, early = self._asked.pop((node, answer.request))
            if not isinstance(answer.outcome, int):
                self.outcome.refused += 1
                continue
            hold = book.ledger.holds[answer.outcome]
            self._granted(hold.amount, 1)
            if now > asked_at:
                self.outcome.waited += 1
                self.outcome.early_waited += early
                self.outcome.waits_ns.append(now - asked_at)
            self._perform(now, node, book.settle(now, hold, hold.amount))

    def _granted(self, units: int, count: int) -> None:
        outcome = self.outcome
        outcome.granted += count
        outcome.spent += units
        if outcome.spent < 0.9 * self.quota:
            outcome.early += count
        left = self.quota - outcome.spent
        if left <= self._curve_at:
            self._curve_at = left - self.quota // 200
            outcome.curve.append((left / self.quota, outcome.messages + outcome.acks, outcome.cost))

    def unspent(self) -> int:
        return sum(book.ledger.account(ACCOUNT).unspent for book in self.books)


_ARRIVE, _TICK, _MESSAGE = range(3)
