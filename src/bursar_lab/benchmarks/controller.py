"""A round of a rate's controller at the paper's size: from the servers' reports to their grants.

The real books, the real placement and the real words on the wire, with terms as the front door makes them
of a policy; only sockets and requests are missing: what each server would have seen of its tenants is
written into its book. The opening of a period is measured and three rounds of it, after two in which all
tenants are seen first.
Milliseconds are of processor time.

    controller ms  a round: decoding 64 reports, placing, encoding 64 grants, taking 64 acknowledgements
    stretch ms     the longest that the granting thread was at it without a pause
    server ms      the slowest server: report, grant and acknowledgement
    opening ms     what comes before the first round of a period: opening it, and granting by what was seen
                   before; and the longest stretch of that
    kernel ms      the allocation alone, of the same demand: the floor
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from bursar.allocation.reservations import allocate
from bursar.book import Send
from bursar.policy.values import RatePolicy, RateTenant
from bursar.rates.controller import Commit, ControllerBook
from bursar.rates.messages import Grant, Poll, State, ToController, ToServer
from bursar.rates.placement import Placement
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.rates.terms import PolicyTerms
from bursar.units import Rate
from bursar.world import SECOND_NS
from bursar_lab.experiments.instances import Instance, draw_instance

SEED = 1
PERIOD_NS, INTERVAL_NS = SECOND_NS, SECOND_NS // 5
SERVERS, ACTIVE = 64, 10_000
LIMIT_OVER_RESERVATION = 2
ROUNDS = 3

T = TypeVar("T")
Row = dict[str, Any]

_encode = msgspec.msgpack.Encoder().encode
_to_controller = msgspec.msgpack.Decoder(ToController).decode
_to_server = msgspec.msgpack.Decoder(ToServer).decode


def run(quick: bool) -> dict[str, Any]:
    """One row a size; in `bars` what was to be reached."""
    sizes = [(SERVERS, 1_000, 1_000)] if quick else [(SERVERS, ACTIVE, ACTIVE), (SERVERS, ACTIVE, 100_000)]
    rows = [_measure(*size) for size in sizes]
    bars = [bar for row, most_ms in zip(rows, (30, 60), strict=False) for bar in _judge(row, most_ms)]
    return {"seed": SEED, "table": rows, "bars": bars, "ok": all(bar["met"] for bar in bars)}


def _judge(row: Row, most_ms: float) -> list[dict[str, Any]]:
    return [
        {
            "bar": f"{row['case']}: {column} at most {most}",
            "found": row[column],
            "met": row[column] <= most,
        }
        for column, most in (("controller ms", most_ms), ("stretch ms", 5), ("server ms", 3))
    ]


def _measure(servers: int, active: int, tenants: int) -> Row:
    case = f"{servers} x {tenants:,}, {active:,} active"
    print(f"  {case}", file=sys.stderr, flush=True)
    cluster = Cluster(draw_instance(SEED, servers=servers, tenants=active, reserved=0.8), tenants)
    cluster.open()
    for _ in range(2):  # who asks is seen for the first time, and has names; and kernels are compiled
        cluster.run_round()
    opening = cluster.run_opening()
    found = [cluster.run_round() for _ in range(ROUNDS)]
    return {
        "case": case,
        **{name: round(value, 2) for name, value in opening.items()},
        **{name: round(statistics.median(each[name] for each in found), 2) for name in found[0]},
        "kernel ms": round(cluster.time_kernel(), 2),
    }


class Cluster:
    """A controller and its servers, in one process, in a period that all of them are in."""

    def __init__(self, instance: Instance, tenants: int) -> None:
        self._instance = instance
        names = [f"tenant-{k:06d}" for k in range(tenants)]
        self._policy = _make_policy(instance, names)
        terms = PolicyTerms(self._policy)
        servers = [f"server-{k:02d}" for k in range(instance.capacity.size)]
        self._now = 1_000 * SECOND_NS
        self._place = Placement(dict(zip(servers, instance.capacity.tolist(), strict=True)))
        self._book = ControllerBook(
            "controller",
            servers,
            terms,
            self._place,
            period_ns=PERIOD_NS,
            interval_ns=INTERVAL_NS,
            drift_ppm=self._policy.drift_ppm,
            digest=terms.digest,
        )
        self._book.find_short = lambda: self._place.shortfall
        columns = instance.demand.tocsc()
        self._servers: dict[str, ServerBook] = {}
        self._demand: dict[str, Any] = {}
        for column, name in enumerate(servers):
            cells = slice(columns.indptr[column], columns.indptr[column + 1])
            here = [names[number] for number in columns.indices[cells]]
            self._servers[name] = _make_server(name, here, terms, float(instance.capacity[column]))
            self._demand[name] = columns.data[cells]
        self._stretches: list[float] = []
        self._spent: dict[str, float] = {}
        self._granted = 0

    def open(self) -> None:
        """Take the lead, hear everybody, open a period."""
        self._perform(self._book.lead(State(0, "", 0, ())))
        while self._book.state.period == 0:
            self._now = max(self._now + 1, self._book.wake_at() or 0)
            self._perform(self._book.tick(self._now))

    def run_opening(self) -> dict[str, float]:
        """The next period, up to the acknowledgements of its first grants."""
        before = self._book.state.period
        while self._book.state.period == before or self._book.wake_at() == 0:
            if self._book.state.period == before:
                self._stretches = []
            self._now = max(self._now + 1, self._book.wake_at() or 0)
            self._perform(self._time(lambda: self._book.tick(self._now)))
        return {"opening ms": sum(self._stretches), "opening stretch ms": max(self._stretches)}

    def run_round(self) -> dict[str, float]:
        """The next round in which every server has a grant: the last of a period has none."""
        while True:
            found = self._try_round()
            if self._granted >= len(self._servers):
                return found

    def _try_round(self) -> dict[str, float]:
        """From the next poll to the acknowledgements. If a period is opened first, that is no part of it."""
        effects: list[Any] = []
        while not any(isinstance(effect, Send) and isinstance(effect.message, Poll) for effect in effects):
            self._perform(effects)
            self._now = max(self._now + 1, self._book.wake_at() or 0)
            effects = self._book.tick(self._now)
        self._see_requests()
        self._stretches, self._spent, self._granted = [], {}, 0
        self._perform(effects)
        return {
            "controller ms": sum(self._stretches),
            "stretch ms": max(self._stretches),
            "server ms": max(self._spent.values()),
        }

    def _see_requests(self) -> None:
        """What arrived since the last report, and went as far as there were tokens; some still wait."""
        for name, book in self._servers.items():
            arrived = self._demand[name] * INTERVAL_NS // PERIOD_NS + 1
            tokens = book.scheduler
            left = np.asarray(tokens.allowance) - np.asarray(tokens.dispatched)
            for index, (came, may) in enumerate(zip(arrived.tolist(), left.tolist(), strict=True)):
                book.observed.arrived[index] += came
                book.observed.queued[index] = max(1, came - may)
                tokens.spend(index, min(came, may))

    def _perform(self, effects: list[Any]) -> None:
        """Carry messages until there are none. What one message leads to is a stretch: the thread that
        grants turns to others before the next."""
        flying = list(effects)
        while flying:
            effect = flying.pop(0)
            if isinstance(effect, Commit):
                flying += self._time(lambda state=effect.state: self._book.committed(self._now, state))  # type: ignore[misc]
                continue
            self._now += 1
            for answer in self._deliver(effect):
                flying += self._time(lambda answer=answer: self._hear(answer))  # type: ignore[misc]
            while self._book.leading and self._book.wake_at() == 0:
                flying += self._time(self._go_on)

    def _go_on(self) -> list[Any]:
        """A piece of a round that the book did not do at a stretch."""
        return self._encode_grants(self._book.tick(self._now))

    def _hear(self, answer: bytes) -> list[Any]:
        message = _to_controller(answer)
        return self._encode_grants(self._book.receive(self._now, "", message))

    def _encode_grants(self, effects: list[Any]) -> list[Any]:
        grants = [each for each in effects if isinstance(each, Send) and isinstance(each.message, Grant)]
        rest = [each for each in effects if not (isinstance(each, Send) and isinstance(each.message, Grant))]
        self._granted += len(grants)
        return rest + [Encoded(each.to, _encode(each.message)) for each in grants]

    def _deliver(self, effect: Any) -> list[bytes]:
        body = effect.body if isinstance(effect, Encoded) else _encode(effect.message)
        book = self._servers[effect.to]
        before_ns = time.thread_time_ns()
        answers = book.receive(self._now, "controller", _to_server(body))
        encoded = [_encode(answer.message) for answer in answers if isinstance(answer, Send)]
        spent_ms = (time.thread_time_ns() - before_ns) / 1e6
        self._spent[effect.to] = self._spent.get(effect.to, 0.0) + spent_ms
        return encoded

    def _time(self, work: Callable[[], T]) -> T:
        before_ns = time.thread_time_ns()
        result = work()
        self._stretches.append((time.thread_time_ns() - before_ns) / 1e6)
        return result

    def time_kernel(self) -> float:
        """The allocation of the reservations alone, in milliseconds: the median of ten."""
        instance, taken = self._instance, []
        for _ in range(10):
            before_ns = time.thread_time_ns()
            allocate(instance.demand, instance.capacity, instance.reservation)
            taken.append((time.thread_time_ns() - before_ns) / 1e6)
        return statistics.median(taken)


class Encoded(NamedTuple):
    """A grant, as it goes out."""

    to: str
    body: bytes


def _make_policy(instance: Instance, names: list[str]) -> RatePolicy:
    reservations = instance.reservation.tolist()
    tenants = {
        name: RateTenant(reservation=Rate(tokens), limit=Rate(max(1, LIMIT_OVER_RESERVATION * tokens)))
        for name, tokens in zip(names, reservations, strict=False)
    }
    idle = RateTenant(reservation=Rate(0), limit=Rate(100))
    tenants |= dict.fromkeys(names[len(reservations) :], idle)
    return RatePolicy(name="bench", servers={}, tenants=tenants, period_ns=PERIOD_NS)


def _make_server(name: str, tenants: list[str], terms: PolicyTerms, capacity: float) -> ServerBook:
    scheduler = Scheduler([1] * len(tenants), period_ns=PERIOD_NS)
    book = ServerBook(name, 1, tenants, scheduler, period_ns=PERIOD_NS)
    book.set_terms(terms.find, terms.digest)
    book.observed.capacity = capacity
    return book
