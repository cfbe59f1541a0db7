"""The engines of one process: one for each tenant that reserves something, and for the others while they
ask for tokens.

A tenant without a reservation takes from the pool alone. It needs no word of its own and no ticks, so
its engine is made at its first request and forgotten once it was idle for two periods: nothing of a
period that is over is owed to it, and no limit reaches from one period into the next. What such tenants
have and use together is reported in the name of this process, so that the monitor can see how much of
the data node they use. (A monitor in another process cannot: there it shows only in what they take.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bursar.errors import NetworkError
from bursar.policy import PoolPolicy
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook, OpenedAt
from bursar.pools.layout import TICK_NS, Names, pack_report
from bursar.pools.waiting import WaitingLine
from bursar.resource import Answer, Ticket
from bursar.world import SECOND_NS, World

SWEEP_NS = SECOND_NS
IDLE_PERIODS = 2
REPORTED_A_TICK = 1_000
"""Adding up more engines than this is done at fewer ticks."""


class Client:
    """A tenant's engine and who waits for its tokens. `is_lent`: code outside has the engine, so that it
    is not forgotten: another one would begin with the tenant's whole limit."""

    __slots__ = ("engine", "is_lent", "line")

    def __init__(self, engine: Engine, line: WaitingLine) -> None:
        self.engine = engine
        self.line = line
        self.is_lent = False

    @property
    def ticks(self) -> bool:
        """Whether it has, or is about to have, reserved tokens."""
        return self.engine.book.reserves or self.engine.book.claimed


class Engines:
    def __init__(
        self,
        world: World,
        pool: str,
        policy: PoolPolicy,
        book_class: type[EngineBook],
        opened_at: OpenedAt,
        answer: Callable[[Ticket], Answer | None],
    ) -> None:
        self.name = f"*{world.name}"
        """The client in whose name those without a reservation are reported."""

        self._world = world
        self._pool = pool
        self._policy = policy
        self._book_class = book_class
        self._opened_at = opened_at
        self._answer = answer
        self._clients: dict[str, Client] = {}
        self._ticking: dict[str, Client] = {}
        self._waiting: dict[WaitingLine, None] = {}
        self._names = Names(pool)
        self._swept_at = world.clock.now()
        self._reported_at = 0
        for tenant in find_reservations(policy):
            self.open(tenant)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._clients

    def get(self, tenant: str) -> Client | None:
        return self._clients.get(tenant)

    @property
    def by_tenant(self) -> Mapping[str, Engine]:
        return {tenant: client.engine for tenant, client in self._clients.items()}

    @property
    def ticking(self) -> list[Engine]:
        return [client.engine for client in self._ticking.values()]

    def is_anybody_waiting(self) -> bool:
        return bool(self._waiting)

    def open(self, tenant: str) -> Client:
        """The tenant's, made if it has none."""
        found = self._clients.get(tenant)
        if found is None:
            engine = Engine(self._world.clock, self._world.words, self._make_book(tenant))
            name = f"pool.{self._pool}.{tenant}.waiting"
            line = WaitingLine(self._world, name, engine, self._answer, self._waiting)
            found = self._clients[tenant] = Client(engine, line)
            if found.ticks:
                self._ticking[tenant] = found
        return found

    def _make_book(self, tenant: str) -> EngineBook:
        policy = self._policy
        return self._book_class(
            self._pool,
            tenant,
            period_ns=policy.period_ns,
            batch=policy.batch,
            adaptive=policy.adaptive_batch,
            limit=limit_of(policy, tenant),
            paced=policy.pacing,
            reserves=bool(reservation_of(policy, tenant)),
            opened_at=self._opened_at,
        )

    def set_policy(self, policy: PoolPolicy) -> None:
        """Limits and reservations hold from the next period on, the rest at once."""
        old, self._policy = self._policy, policy
        for tenant in find_reservations(policy):
            self.open(tenant)
        for tenant, client in self._clients.items():
            book = client.engine.book
            if policy.find(tenant) is None:
                book.reserves = False  # it was removed: its engine is forgotten when it has been idle
                continue
            book.set_limit(limit_of(policy, tenant))
            book.reserves = bool(reservation_of(policy, tenant))
            if book.reserves:
                self._ticking[tenant] = client
            book.paced = policy.pacing
            if (old.batch, old.adaptive_batch) != (policy.batch, policy.adaptive_batch):
                book.set_batch(policy.batch, policy.adaptive_batch)

    # -- what is done at every tick, besides the ticks of those that reserve

    def look_after(self, period: int) -> list[str]:
        """Report those without a reservation, and forget the idle ones, which are returned."""
        now = self._world.clock.now()
        self._report(now, period)
        if now - self._swept_at < SWEEP_NS:
            return []
        self._swept_at = now
        return self._forget_idle()

    def _report(self, now: int, period: int) -> None:
        due_ns = TICK_NS * (len(self._clients) // REPORTED_A_TICK)
        if not period or now - self._reported_at < due_ns:
            return
        self._reported_at = now
        books = [each.engine.book for each in self._clients.values() if not each.ticks]
        present = [book for book in books if book.period == period]
        if present:
            word = self._names.report(self.name, period)
            self._write(word, _add_up(period, present))

    def _write(self, word: str, report: int) -> None:
        try:
            self._world.words.write(word, report)
        except NetworkError:
            return  # it is said again at the next tick

    def _forget_idle(self) -> list[str]:
        idle_ns = IDLE_PERIODS * self._policy.period_ns
        gone = [
            tenant
            for tenant, client in self._clients.items()
            if not (client.ticks or client.is_lent or client.line or client.engine.idle_ns() < idle_ns)
        ]
        for tenant in gone:
            del self._clients[tenant]
        self._ticking = {tenant: client for tenant, client in self._ticking.items() if client.ticks}
        return gone


def _add_up(period: int, books: Iterable[EngineBook]) -> int:
    unspent = spent = 0
    waiting = False
    for book in books:
        unspent += book.hand + book.lent
        spent += book.spent - book.lent
        waiting |= book.pending > 0 and book.spent < book.limit
    return pack_report(period, unspent, spent, waiting)


def find_reservations(policy: PoolPolicy) -> dict[str, int]:
    """Tokens a period, of those that reserve any. (Templates reserve nothing.)"""
    period_ns = policy.period_ns
    return {
        tenant: terms.reservation.per(period_ns)
        for tenant, terms in policy.tenants.items()
        if terms.reservation.count
    }


def reservation_of(policy: PoolPolicy, tenant: str) -> int:
    terms = policy.find(tenant)
    return 0 if terms is None else int(terms.reservation.per(policy.period_ns))


def limit_of(policy: PoolPolicy, tenant: str) -> int | None:
    """Tokens a period; None for no limit."""
    limit = policy.tenant(tenant).limit
    return None if limit is None else limit.per(policy.period_ns)
