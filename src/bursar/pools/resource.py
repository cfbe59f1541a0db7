"""`pool` for programs: an engine for each tenant, and a monitor that leads or stands by.

Every process that opens the resource over the same words has its own engines and its own standby:
whichever opens a period leads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy
from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.resource import Explanation, Grant, Resource, check_change
from bursar.world import SECOND_NS, World

UNPROFILED_TOKENS = 1000
COUNTS = ("granted", "refused", "would_refuse", "fallback")

LIVE = ("tenants", "shadow", "without_bursar")
"""What of a policy can change while the resource runs."""


def open_resource(world: World, name: str, policy: PoolPolicy) -> PoolResource:
    """This process's part of the pool. Raises Refused if the reservations do not fit."""
    return PoolResource(world, name, policy)


def estimate_capacity(policy: PoolPolicy) -> Capacity:
    """What the policy says, or for "auto" an estimate that begins a little above what is reserved
    and rises while it is used up."""
    if policy.capacity is not None:
        return FixedCapacity(policy.capacity.per(policy.period_ns))
    reserved = sum(tenant.reservation.per(policy.period_ns) for tenant in policy.tenants.values())
    return AdaptiveCapacity(max(reserved * 10 // 9 + 1, UNPROFILED_TOKENS))


def limit_of(policy: PoolPolicy, tenant: str) -> int | None:
    """Tokens a period; None for no limit."""
    limit = policy.tenants[tenant].limit
    return None if limit is None else limit.per(policy.period_ns)


class PoolResource(Resource):
    """Tokens acquired are spent: leaving a grant gives nothing back, since the moment in which the
    I/O could have been done has passed."""

    kind = "pool"

    def __init__(self, world: World, name: str, policy: PoolPolicy) -> None:
        super().__init__(name)
        self._world = world
        self._policy = policy
        self._counts = {tenant: dict.fromkeys(COUNTS, 0) for tenant in policy.tenants}
        self._alone: dict[str, tuple[int, int]] = {}
        local = policy.client_capacity
        self._book = MonitorBook(
            name,
            estimate_capacity(policy),
            period_ns=policy.period_ns,
            client_capacity=None if local is None else local.per(policy.period_ns),
        )
        self._engines: dict[str, Engine] = {}
        for tenant, terms in policy.tenants.items():
            self._book.join(tenant, terms.reservation.per(policy.period_ns))
            self._engines[tenant] = self._make_engine(tenant)
        self._monitor = Monitor(world.clock, world.words, self._book)

    def _make_engine(self, tenant: str) -> Engine:
        policy = self._policy
        book = EngineBook(
            self.name,
            tenant,
            period_ns=policy.period_ns,
            batch=policy.batch,
            adaptive=policy.adaptive_batch,
            limit=limit_of(policy, tenant),
            paced=policy.pacing,
        )
        return Engine(self._world.clock, self._world.words, book)

    async def start(self) -> None:
        self._monitor.check()
        self._world.spawn(self._monitor.run(), f"pool.{self.name}.monitor")
        for tenant, engine in self._engines.items():
            engine.tick()
            self._world.spawn(engine.keep_ticking(), f"pool.{self.name}.{tenant}")

    async def stop(self) -> None:
        self._monitor.stop()
        for engine in self._engines.values():
            engine.stop()

    async def reconfigure(self, policy: PoolPolicy) -> None:
        """New reservations and limits hold from the next period on; what does not fit is refused, and
        then nothing has changed."""
        check_change(self._policy, policy, LIVE)
        old = {name: client.reservation for name, client in self._book.clients.items()}
        new = {name: terms.reservation.per(policy.period_ns) for name, terms in policy.tenants.items()}
        try:
            for tenant in [name for name in old if name not in new]:
                self._book.leave(tenant)
            for tenant in sorted(new, key=lambda name: new[name] - old.get(name, 0)):  # room first
                self._book.join(tenant, new[tenant])
        except Refused:
            self._book.restore(old)
            raise
        self._policy = policy
        for tenant in policy.tenants:
            if tenant not in self._engines:
                self._counts[tenant] = dict.fromkeys(COUNTS, 0)
                self._engines[tenant] = engine = self._make_engine(tenant)
                self._world.spawn(engine.keep_ticking(), f"pool.{self.name}.{tenant}")
            self._engines[tenant].book.set_limit(limit_of(policy, tenant))

    # -- acquiring

    def engine(self, tenant: str) -> Engine:
        """The engine of a tenant, for code that takes a token for every I/O: `engine.take()`."""
        if tenant not in self._engines or tenant not in self._policy.tenants:
            self._policy.tenant(tenant)
        return self._engines[tenant]

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        if self.engine(tenant).take_many(amount):
            return self._granted(tenant, amount)
        return self._without(tenant, amount)

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        engine = self.engine(tenant)
        limit = limit_of(self._policy, tenant)
        if limit is not None and amount > limit:
            raise Refused(f"{tenant} asked for {amount} at once; its limit is {limit} a period", limit=limit)
        if engine.take_many(amount):
            return self._granted(tenant, amount)
        grant = self._without(tenant, amount)
        if grant is not None:
            return grant
        if wait_ns and await engine.acquire(amount, wait_ns):
            return self._granted(tenant, amount)
        self._counts[tenant]["refused"] += amount
        if engine.is_alone():
            raise Unknown(f"no monitor has opened a period of {self.name}; is one running?")
        raise self._refusal(tenant, amount)

    def _granted(self, tenant: str, amount: int) -> Grant:
        self._counts[tenant]["granted"] += amount
        return Grant(self, tenant, amount)

    def _without(self, tenant: str, amount: int) -> Grant | None:
        """What the policy does when there are no tokens: in shadow mode they go, and without a
        monitor a tenant may have its reservation, or a safe rate, in each period."""
        if self._policy.shadow:
            self._counts[tenant]["would_refuse"] += amount
            return Grant(self, tenant, amount, fallback="shadow")
        mode = self._policy.without_bursar.mode
        if mode == "refuse" or not self._engines[tenant].is_alone():
            return None
        period = self._world.clock.now() // self._policy.period_ns
        since, used = self._alone.get(tenant, (period, 0))
        used = used if since == period else 0
        if used + amount > self._allowed_alone(tenant):
            return None
        self._alone[tenant] = period, used + amount
        self._counts[tenant]["fallback"] += amount
        return Grant(self, tenant, amount, fallback=mode)

    def _allowed_alone(self, tenant: str) -> int:
        rate = self._policy.without_bursar.rate
        if rate is None:
            rate = self._policy.tenants[tenant].reservation
        return rate.per(self._policy.period_ns)

    def _refusal(self, tenant: str, amount: int) -> Refused:
        book = self._engines[tenant].book
        left_ns = max(0, book.began + book.period_ns - self._world.clock.now())
        spent_up = book.spent + amount > book.limit
        why = f"its limit is {book.limit} a period" if spent_up else "the common pool is empty"
        return Refused(
            f"{tenant} has used its {book.reservation} reserved tokens of {self.name}, and {why}; "
            "pass wait=, or a longer one",
            limit=book.limit if spent_up else book.reservation,
            remaining=book.usable(self._world.clock.now()),
            retry_after=left_ns / SECOND_NS,
        )

    async def _give_back(self, grant: Grant) -> None:
        """Nothing: a token that was not used is gone with its moment."""

    # -- telling

    def explain(self, tenant: str) -> Explanation:
        engine = self.engine(tenant)
        figures = {**engine.statistics(), **self._counts[tenant], "capacity": self._book.accounts.capacity}
        period_s = self._policy.period_ns / SECOND_NS
        terms = self._policy.tenants[tenant]
        most = "no limit" if terms.limit is None else f"a limit of {terms.limit}"
        sentences = [
            f"{tenant} has a reservation of {terms.reservation} and {most}, in periods of {period_s:g} s.",
            f"In this period it spent {figures['spent']}; {figures['reserve']} reserved tokens are left, and "
            f"{figures['hand']} that it took from the pool.",
        ]
        if figures["given_up"]:
            sentences.append(f"It gave up {figures['given_up']} that it did not use in time.")
        if figures["denied"]:
            sentences.append("It asked the pool for more than there was.")
        if tenant in self._book.alerts():
            sentences.append("It keeps reserving more than it uses: lower its reservation.")
        if engine.is_alone():
            sentences.append(
                f"No monitor opens periods: {tenant} goes on by itself "
                f"(without_bursar = {self._policy.without_bursar.mode})."
            )
        return Explanation(
            resource=self.name, kind=self.kind, tenant=tenant, sentences=tuple(sentences), figures=figures
        )

    def statistics(self) -> Mapping[str, Any]:
        book = self._book
        return {
            "kind": self.kind,
            "leading": book.leading,
            "period": book.period,
            "capacity": book.accounts.capacity,
            "issued": book.accounts.issued(),
            "used": None if book.outcome is None else book.outcome.used,
            "overreserving": book.alerts(),
            "shadow": self._policy.shadow,
            "tenants": {
                name: {**engine.statistics(), **self._counts[name]} for name, engine in self._engines.items()
            },
        }
