"""The engines of one process: one for each tenant that asks for tokens here.

An engine is made at the tenant's first request and forgotten once it was idle for two periods: nothing of
a period that is over is owed to it, and no limit reaches from one period into the next. So a reservation
is claimed by a process in which it is asked for, and by no other.

A tenant without a reservation takes from the pool alone, and needs no word of its own and no ticks. What
such tenants have and use together is told to the monitor of this process, so that it can see how much of
the data node they use. (A monitor in another process cannot: there it shows only in what they take.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bursar.policy.values import OWN_WORDS, PoolPolicy
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook, OpenedAt
from bursar.pools.layout import TICK_NS, pack_report
from bursar.pools.waiting import WaitingLine
from bursar.resource import Answer, Ticket
from bursar.world import SECOND_NS, World

SWEEP_NS = SECOND_NS
IDLE_PERIODS = 2
BUSY_NS = 3 * TICK_NS
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
        """Whether it has, or is about to have, reserved tokens: then it looks at the words by itself."""
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
        report: Callable[[int, int], None],
        hurry: Callable[[], None] | None,
    ) -> None:
        """`report` is told the period and what those without a reservation have and use in it; `hurry`
        calls for a round, where the words are far away."""
        self._world = world
        self._pool = pool
        self._policy = policy
        self._book_class = book_class
        self._opened_at = opened_at
        self._answer = answer
        self._clients: dict[str, Client] = {}
        self._ticking: dict[str, Client] = {}
        self._waiting: dict[WaitingLine, None] = {}
        self._tell = report
        self._hurry = hurry
        self._swept_at = world.clock.now()
        self._reported_at = 0

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

    def of_round(self) -> list[Engine]:
        """Those with something to ask of words that are far away: those that tick, and those that were
        used of late, for whom somebody waits, or who missed tokens."""
        return [each.engine for each in self._clients.values() if each.ticks or each.line or _is_busy(each)]

    def is_anybody_waiting(self) -> bool:
        return bool(self._waiting)

    def open(self, tenant: str) -> Client:
        """The tenant's, made if it has none."""
        found = self._clients.get(tenant)
        if found is None:
            engine = self.make(tenant, reserves=bool(reservation_of(self._policy, tenant)))
            name = f"pool.{self._pool}.{tenant}.waiting"
            line = WaitingLine(self._world, name, engine, self._answer, self._waiting, self._hurry)
            found = self._clients[tenant] = Client(engine, line)
            if found.ticks:
                self._ticking[tenant] = found
        return found

    def make(self, tenant: str, *, reserves: bool) -> Engine:
        """An engine that is nobody's yet; one that reserves nothing leaves what is reserved alone."""
        words = self._world.words if self._hurry is None else None
        return Engine(self._world.clock, words, self._make_book(tenant, reserves))

    def serve_waiting(self) -> None:
        """Answer those who wait, as far as the tokens go."""
        for line in list(self._waiting):
            line.serve()

    def _make_book(self, tenant: str, reserves: bool) -> EngineBook:
        policy = self._policy
        return self._book_class(
            self._pool,
            tenant,
            period_ns=policy.period_ns,
            batch=policy.batch,
            adaptive=policy.adaptive_batch,
            limit=limit_of(policy, tenant),
            paced=policy.pacing,
            reserves=reserves,
            shares_limit=policy.words != OWN_WORDS,
            opened_at=self._opened_at,
            looks_first=self._hurry is not None,
        )

    def set_policy(self, policy: PoolPolicy) -> None:
        """Limits and reservations hold from the next period on, the rest at once."""
        old, self._policy = self._policy, policy
        for tenant, client in self._clients.items():
            book = client.engine.book
            if policy.find(tenant) is None:
                book.reserves = False  # it was removed: its engine is forgotten when it has been idle
                continue
            book.set_limit(limit_of(policy, tenant))
            book.reserves = bool(reservation_of(policy, tenant))
            if book.reserves:
                self._ticking[tenant] = client
            book.set_pacing(policy.pacing)
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
            self._tell(period, _add_up(period, present))

    def _forget_idle(self) -> list[str]:
        idle_ns = IDLE_PERIODS * self._policy.period_ns
        gone = [
            tenant
            for tenant, client in self._clients.items()
            if not (client.is_lent or client.line or client.engine.idle_ns() < idle_ns)
        ]
        for tenant in gone:
            del self._clients[tenant]
        self._ticking = {
            tenant: client
            for tenant, client in self._ticking.items()
            if tenant in self._clients and client.ticks
        }
        return gone


def _is_busy(client: Client) -> bool:
    return client.engine.missed or client.engine.idle_ns() < BUSY_NS


def _add_up(period: int, books: Iterable[EngineBook]) -> int:
    unspent = spent = 0
    waiting = False
    for book in books:
        unspent += book.hand + book.lent
        spent += book.spent - book.lent
        waiting |= book.pending > 0 and book.may_have_more
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
