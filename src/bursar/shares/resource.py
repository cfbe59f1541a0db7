"""`share` for programs: acquire bandwidth of one target, waiting in its filter for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from bursar.courier import Alarm
from bursar.errors import Refused, UsageError
from bursar.policy import SharePolicy
from bursar.resource import Explanation, Grant, Resource, check_change
from bursar.shares.book import TargetBook
from bursar.shares.gate import Gate
from bursar.shares.handout import Handout, Line
from bursar.shares.target import FilterRules, Seen, Target, read_usage
from bursar.units import Rate, write_duration
from bursar.world import SECOND_NS, World

Waiter = asyncio.Future[bool]

LIVE = ("tenants", "capacity", "shadow", "without_bursar")
"""What of a policy can change while the resource runs."""


def open_resource(world: World, name: str, policy: SharePolicy) -> ShareResource:
    """The share resource of a policy, embedded in this process."""
    return ShareResource(world, name, policy)


class ShareResource(Resource):
    """One target whose requests this process sees: each `acquire` waits in the target's filter.

    Tokens acquired are spent: leaving a grant, or settling for less, gives nothing back, since
    the moment in which they could have been used has passed."""

    kind = "share"
    book_class = TargetBook
    gate_class = Gate

    def __init__(self, world: World, name: str, policy: SharePolicy) -> None:
        super().__init__(name)
        self._world = world
        self._policy = policy
        capacity = _check_capacity(name, policy)
        self._gate: Gate[Waiter] = self.gate_class(capacity)
        self._book = self.book_class(
            policy.tenants, capacity, policy.interval_ns, half_life_ns=policy.half_life_ns
        )
        self._target = Target(
            world,
            name,
            self._book,
            GateEnforcer(world, self._gate),
            journal=world.journal(f"share-{name}"),
        )
        self._alarm = Alarm(world, f"share.{name}", self._gate.wake_at, self._ring)
        self._counts: dict[str, list[int]] = {}

    async def start(self) -> None:
        self._target.start()
        self._alarm.start()

    async def stop(self) -> None:
        await self._target.stop()
        self._ring(self._world.clock.now())

    @property
    def book(self) -> TargetBook:
        """Who owes whom; for reading."""
        return self._book

    async def reconfigure(self, policy: SharePolicy) -> None:
        """Take a changed policy, from the next interval on. A tenant that is no longer in it
        leaves: its record is settled against the rest."""
        _check_capacity(self.name, policy)
        check_change(self._policy, policy, LIVE)
        assert policy.capacity is not None, "checked above"
        self._book.set_tenants(policy.tenants)
        self._book.set_capacity(policy.capacity)
        self._gate.set_capacity(policy.capacity)
        self._policy = policy

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        self._check_tenant(tenant)
        passed = self._gate.try_pass(tenant, amount, self._world.clock.now())
        self._count(tenant, amount, passed or self._policy.shadow)
        return Grant(self, tenant, amount) if passed or self._policy.shadow else None

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        if wait_ns == 0 or self._policy.shadow:
            grant = self.try_acquire(tenant, amount)
            if grant is None:
                raise self._refusal(tenant, amount)
            return grant
        self._check_tenant(tenant)
        now = self._world.clock.now()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        request = self._gate.submit(tenant, amount, waiter, now + wait_ns, now)
        self._ring(now)
        self._alarm.set()
        try:
            passed = await waiter
        finally:
            # A caller that was cancelled no longer wants what it waits for.
            self._gate.filter.withdraw(request, self._world.clock.now())
        self._count(tenant, amount, passed)
        if not passed:
            raise self._refusal(tenant, amount)
        return Grant(self, tenant, amount)

    async def _give_back(self, grant: Grant) -> None:
        """Nothing: bandwidth that was not used is gone."""

    def _check_tenant(self, tenant: str) -> None:
        if self._book.terms(tenant) is None:
            self._policy.tenant(tenant)

    def _ring(self, now: int) -> None:
        for request in self._gate.pass_due(now):
            if not request.item.done():
                request.item.set_result(True)
        for request in self._gate.expire(now):
            if not request.item.done():
                request.item.set_result(False)

    def _refusal(self, tenant: str, amount: int) -> Refused:
        line = self._book.handout.lines.get(tenant)
        rate = line.rate if line else self._book.capacity.per(SECOND_NS)
        wait = max(self._gate.free_at() - self._world.clock.now(), 0) / SECOND_NS
        return Refused(
            f"{tenant} waits its turn on {self.name}: it gets {rate} tokens a second now, and asked for "
            f"{amount}; pass wait=, or a longer one",
            limit=rate,
            retry_after=max(wait, amount / max(1, rate)),
        )

    def _count(self, tenant: str, amount: int, granted: bool) -> None:
        counts = self._counts.setdefault(tenant, [0, 0])
        counts[0 if granted else 1] += amount

    def explain(self, tenant: str) -> Explanation:
        self._check_tenant(tenant)
        line = self._book.handout.lines.get(tenant)
        record = self._book.record(tenant)
        bound = self._book.payback_intervals(tenant)
        sentences = [*self._explain_share(tenant, line), *_explain_record(record, bound)]
        figures = {
            "record": record,
            "capacity": self._book.capacity.per(SECOND_NS),
            "payback_intervals": bound,
        }
        if line is not None:
            figures |= {"demand": line.demand, "tokens": line.final, "rate": line.rate, "weight": line.weight}
        return Explanation(
            resource=self.name, kind=self.kind, tenant=tenant, sentences=tuple(sentences), figures=figures
        )

    def _explain_share(self, tenant: str, line: Line | None) -> list[str]:
        interval = write_duration(self._book.interval_ns)
        if line is None:
            return [f"{tenant} asked for nothing in the last {interval}, so it has no rate and no limit."]
        handout = self._book.handout
        weights = sum(other.weight for other in handout.lines.values())
        asking = "1 tenant asks" if len(handout.lines) == 1 else f"{len(handout.lines)} tenants ask"
        sentences = [
            f"{asking}; {tenant} has weight {line.weight} of {weights}: "
            f"{line.initial} of the {handout.tokens} tokens of {interval}.",
            f"It wanted {line.demand}.",
        ]
        if line.redistributed < line.initial:
            sentences.append(f"It lends {line.initial - line.redistributed} that it does not need.")
        elif line.redistributed > line.initial:
            sentences.append(f"It borrows {line.redistributed - line.initial} that others do not need.")
        if line.final > line.redistributed:
            sentences.append(f"It is paid back {line.final - line.redistributed} that it lent before.")
        elif line.final < line.redistributed:
            sentences.append(f"It pays back {line.redistributed - line.final} that it borrowed before.")
        sentences.append(f"So it gets {line.final} tokens: {line.rate} a second.")
        return sentences

    def statistics(self) -> Mapping[str, Any]:
        handout = self._book.handout
        progress = self._target.progress
        return {
            "capacity": self._book.capacity.per(SECOND_NS),
            "interval_ns": self._book.interval_ns,
            "intervals": progress.intervals,
            "skipped": progress.skipped,
            "tokens": handout.tokens,
            "problems": list(progress.problems),
            "tenants": {name: self._tenant_statistics(name, handout) for name in self._book.tenants},
        }

    def _tenant_statistics(self, tenant: str, handout: Handout) -> dict[str, int]:
        line = handout.lines.get(tenant)
        granted, refused = self._counts.get(tenant, (0, 0))
        return {
            "weight": self._book.terms(tenant).weight,
            "record": self._book.record(tenant),
            "demand": line.demand if line else 0,
            "initial": line.initial if line else 0,
            "redistributed": line.redistributed if line else 0,
            "tokens": line.final if line else 0,
            "rate": line.rate if line else 0,
            "granted": granted,
            "refused": refused,
        }


def _check_capacity(name: str, policy: SharePolicy) -> Rate:
    if policy.capacity is None:
        # Here requests pass and are gone: nothing shows how much the target could have done.
        raise UsageError(
            f'[resource.{name}] capacity = "auto" works where finished I/O is seen (blkio, lustre); for '
            'use inside a program write a rate, such as capacity = "1GiB/s"'
        )
    return policy.capacity


def _explain_record(record: int, bound: int | None) -> list[str]:
    if record > 0:
        said = "" if bound is None else f": within {bound} intervals, if all of them stay backlogged"
        return [f"The others owe it {record} tokens, and pay them back when it needs them{said}."]
    if record < 0:
        return [f"It owes {-record} tokens; lenders call them in when they need them."]
    return []


class GateEnforcer:
    """Spends a target's tokens at the gate of this process."""

    def __init__(self, world: World, gate: Gate[Waiter]) -> None:
        self._world = world
        self._gate = gate
        self._rules = FilterRules(gate.filter)

    async def collect(self) -> Seen:
        return read_usage(self._gate.filter.collect())

    async def apply(self, handout: Handout) -> None:
        self._rules.apply(handout, self._world.clock.now())

    async def release(self) -> None:
        self._rules.clear(self._world.clock.now())
