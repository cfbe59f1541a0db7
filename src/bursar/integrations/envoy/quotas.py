"""The quota service (RLQS): streams of Envoys in, assignments out.

What is decided is decided in `ledger`; `charging` pays for it. A slow Envoy costs one entry a tenant, not a
queue of messages: what was not sent yet is replaced by what is newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from bursar.errors import BursarError, DeniedError
from bursar.fleet.rights import Caller
from bursar.integrations.envoy.accounts import RETRY_NS, UNLIMITED, Account
from bursar.integrations.envoy.cells import ALLOW_ALL, TIME_TO_LIVE_S, Line, Terms
from bursar.integrations.envoy.charging import Charging
from bursar.integrations.envoy.ledger import Ledger, Told
from bursar.integrations.envoy.node import Node
from bursar.integrations.envoy.statistics import EnvoyStatistics, EnvoyTenantStatistics
from bursar.integrations.envoy.wire import deny_unknown, read_report, write_orders
from bursar.policy.values import RatePolicy, RateTenant
from bursar.resource.checks import check_name
from bursar.resource.door import Resource
from bursar.resource.strangers import check_tenant
from bursar.runtime import logs
from bursar.world import SECOND_NS

SERVICE = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
STREAMS_MAX = 1_000
FIRST_REPORT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 60.0
IDLE_S = 1.0
SLICE = 200
KEEP_S = 86_400
"""The time to live that stands for "keep": Envoy 1.40 does not honour `reuse_last_assignment`."""

RETURN_NS = 10 * SECOND_NS
"""Where Envoys keep what they have: one whose stream ended comes back within this time, or is gone."""

SILENT_NS = 300 * SECOND_NS
"""One that fell silent before may be cut off, and go on: for so long its part is nobody else's."""

SILENCE_NS = 12 * SECOND_NS
QUIET_DENYING_NS = 600 * SECOND_NS
BURST_PART = 20
BURST_LEAST = 10


class Stream:
    """One Envoy: whom it asks for, and what it is still to be told."""

    def __init__(self, slot: int, caller: Caller, now: int) -> None:
        self.line = Line(slot, now)
        self.caller = caller
        self.tenants: dict[str, None] = {}
        self.orders: dict[str, tuple[int, int]] = {}
        self.answers: list[bytes] = []
        self.wake = asyncio.Event()

    def tell(self, tenant: str, rate: int, burst: int) -> None:
        self.orders[tenant] = (rate, burst)
        self.wake.set()

    def answer(self, message: bytes) -> None:
        # Only the newest answer about strangers matters: they are denied in every one.
        self.answers = [message]
        self.wake.set()


class Fleet:
    """The Envoys of one resource that are connected to this node."""

    def __init__(self, node: Node, door: Resource, counts: Counter[str]) -> None:
        self.door = door
        self.counts = counts
        self._now = node.now
        policy = self.policy
        self._keeps = policy.without_bursar.mode == "keep"
        quiet_ns = 0 if self._keeps else QUIET_DENYING_NS
        self.ledger = Ledger(self._find_terms, keeps=self._keeps, quiet_ns=quiet_ns)
        self._changed = asyncio.Event()
        self.charging = Charging(door, self.ledger, self._changed.set)
        self._policy = policy
        self._streams: dict[int, Stream] = {}
        self._slots = 0

    @property
    def policy(self) -> RatePolicy:
        policy = self.door.policy
        assert isinstance(policy, RatePolicy), "only rates have Envoys"
        return policy

    @property
    def time_to_live_s(self) -> int:
        return KEEP_S if self._keeps else TIME_TO_LIVE_S

    def _find_terms(self, tenant: str) -> Terms | None:
        """None for one that the policy does not have, or has no room for."""
        try:
            check_name("tenant", tenant)
            check_tenant(self.policy, tenant, self.door.decider.strangers)
        except BursarError:
            return None
        return read_terms(self.policy.tenant(tenant), self.policy.period_ns)

    # -- streams

    def open(self, caller: Caller) -> Stream | None:
        if len(self._streams) >= STREAMS_MAX:
            return None
        self._slots += 1
        stream = self._streams[self._slots] = Stream(self._slots, caller, self._now())
        self.counts["streams"] += 1
        return stream

    def close(self, stream: Stream) -> None:
        now = self._now()
        del self._streams[stream.line.slot]
        silent = now - stream.line.heard_at > SILENCE_NS
        counts_ns = SILENT_NS if silent else RETURN_NS
        for account in self.ledger.leave(now, stream.line.slot, stream.tenants, counts_ns=counts_ns):
            self._wake(account, now)

    def _wake(self, account: Account, at: int) -> None:
        self.charging.wake(account, at)
        self._changed.set()

    async def take_in(self, stream: Stream, message: Any) -> None:
        now = self._now()
        stream.line.heard_at = now
        self.counts["reports"] += 1
        lines, unknown = read_report(message)
        for number, line in enumerate(lines, start=1):
            if number % SLICE == 0:
                await asyncio.sleep(0)  # others are granted something meanwhile
            if not self._take_line(now, stream, *line[:4]):
                unknown.append(line[4])
        if unknown:
            self.counts["unknown_tenants"] += len(unknown)
            stream.answer(deny_unknown(unknown, self.time_to_live_s))

    def _take_line(
        self, now: int, stream: Stream, tenant: str, elapsed_s: int, allowed: int, denied: int
    ) -> bool:
        if not stream.caller.may("acquire", self.door.name, tenant):
            return False
        account = self.ledger.report(now, stream.line, tenant, elapsed_s, allowed, denied)
        if account is None:
            return False
        self.counts["allowed"] += allowed
        self.counts["denied"] += denied
        account.denied += denied
        self.door.count_elsewhere(tenant, 0, allowed, denied, denied)
        stream.tenants[tenant] = None
        self._tell(now, account, renew=stream.line.slot)
        self._wake(account, now)
        return True

    # -- rounds

    async def run(self) -> None:
        while True:
            next_at = self.charging.next_at()
            wait_s = IDLE_S if next_at is None else max(0.001, (next_at - self._now()) / SECOND_NS)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes with the event.
                async with asyncio.timeout(min(wait_s, IDLE_S)):
                    await self._changed.wait()
            self._follow_policy()
            now = self._now()
            for account in self.charging.run(now):
                self._tell(now, account)

    def _follow_policy(self) -> None:
        policy = self.policy
        if policy is self._policy:
            return
        self._policy = policy
        now = self._now()
        for account in self.ledger.change(now):
            self._tell(now, account)
            self._wake(account, now)

    def _tell(self, now: int, account: Account, renew: int | None = None) -> None:
        """Send what changed, once what it takes is charged; what cannot be waits, and is less."""
        told, tokens = self.ledger.plan(now, account, renew=renew)
        rises = any(each.rate > (each.cell.rate or 0) for each in told)
        if rises and not self.charging.charge_now(now, account, tokens):
            told = [self._hold_back(account, each) for each in told]
        self.ledger.send(now, account, told, self.time_to_live_s * SECOND_NS)
        for each in told:
            stream = self._streams.get(each.cell.line.slot)
            if stream is not None:
                rate = ALLOW_ALL if self.policy.shadow or account.terms.limit >= UNLIMITED else each.rate
                stream.tell(account.tenant, rate if each.rate >= 0 else each.rate, each.burst)
                self.counts["assignments"] += 1

    def _hold_back(self, account: Account, told: Told) -> Told:
        """No more than it has, while the tokens for more are not here; a newcomer begins with nothing."""
        cell = told.cell
        if told.rate <= (cell.rate or 0):
            return told
        account.retry_at = account.at + RETRY_NS
        return Told(cell, cell.rate or 0, cell.burst)

    def write(self, stream: Stream) -> list[bytes]:
        """What the stream is to send now."""
        messages, stream.answers = stream.answers, []
        orders, stream.orders = stream.orders, {}
        stream.wake.clear()
        return messages + write_orders(orders, self.time_to_live_s)

    def statistics(self) -> EnvoyStatistics:
        now = self._now()
        tenants = {
            account.tenant: EnvoyTenantStatistics(
                demand=account.demand(),
                assigned=account.in_force(now),
                charged=int(account.charged),
                owed=max(0.0, account.owed),
            )
            for account in self.ledger
        }
        return EnvoyStatistics(envoys=len(self._streams), events=dict(self.counts), tenants=tenants)


def read_terms(tenant: RateTenant, period_ns: int) -> Terms:
    """Tokens a second, as the kind hands them out: whole ones in a period."""
    if tenant.limit is None:
        return Terms(UNLIMITED, tenant.burst or UNLIMITED)
    limit = tenant.limit.per(period_ns)
    burst = tenant.burst or max(limit / BURST_PART, min(limit, BURST_LEAST), 1.0)
    return Terms(limit * SECOND_NS / period_ns, burst, period_ns / SECOND_NS)


class QuotaService:
    """The service that Envoys call; the domain in a stream's first message names the resource."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.fleets: dict[str, tuple[Fleet, asyncio.Task[None]]] = {}
        self.counts: dict[str, Counter[str]] = {}

    def find(self, name: str) -> Fleet | None:
        """The fleet of a resource. It may have been added, or removed, since the last time."""
        door = self._node.resources.get(name)
        found = self.fleets.get(name)
        if found is not None and (found[0].door is not door or found[1].done()):
            found[1].cancel()
            found[0].charging.close()
            del self.fleets[name]
            found = None
        if found is None and door is not None and isinstance(door.policy, RatePolicy):
            fleet = Fleet(self._node, door, self.counts.setdefault(name, Counter()))
            task = asyncio.create_task(fleet.run())
            task.add_done_callback(report_failure)
            found = self.fleets[name] = (fleet, task)
        return None if found is None else found[0]

    async def StreamRateLimitQuotas(self, requests: Any, context: Any) -> None:
        try:
            async with asyncio.timeout(FIRST_REPORT_TIMEOUT_S):
                first = await context.read()
        except TimeoutError:
            await refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no report came")
        if first is grpc.aio.EOF:
            return
        try:
            caller = self._node.identify(context)
        except DeniedError as error:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        fleet = self.find(first.domain)
        if fleet is None:
            known = ", ".join(self._list_domains())
            why = f"the domain names no resource of kind rate; set domain to one of: {known}"
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        stream = fleet.open(caller)
        if stream is None:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "there are too many streams")
        writer = asyncio.create_task(self._write(fleet, stream, context))
        try:
            await self._read(fleet, stream, first, context)
        finally:
            writer.cancel()
            fleet.close(stream)

    def _list_domains(self) -> Iterable[str]:
        return [name for name, door in self._node.resources.items() if door.kind == "rate"]

    async def _read(self, fleet: Fleet, stream: Stream, message: Any, context: Any) -> None:
        while message is not grpc.aio.EOF:
            if not stream.caller.valid:
                await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "this caller lost its right")
            if self.find(fleet.door.name) is not fleet:
                await refuse(context, grpc.StatusCode.NOT_FOUND, "the resource was removed")
            await fleet.take_in(stream, message)
            try:
                async with asyncio.timeout(SILENCE_TIMEOUT_S):
                    message = await context.read()
            except TimeoutError:
                await refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no report came for a minute")

    async def _write(self, fleet: Fleet, stream: Stream, context: Any) -> None:
        while True:
            await stream.wake.wait()
            for message in fleet.write(stream):
                await context.write(message)

    async def close(self) -> None:
        for fleet, task in self.fleets.values():
            task.cancel()
            fleet.charging.close()
        await asyncio.gather(*(task for _, task in self.fleets.values()), return_exceptions=True)


def report_failure(task: asyncio.Task[None]) -> None:
    """What was told runs out; Envoys that report find a fleet that begins anew."""
    if not task.cancelled() and task.exception() is not None:
        logs.warning("envoy.failed", why=repr(task.exception()))


async def refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise BursarError("abort does not return")


def make_quota_handler(service: QuotaService) -> Any:
    """The service under its name. Responses are encoded already (see `wire`)."""
    method = grpc.stream_stream_rpc_method_handler(
        service.StreamRateLimitQuotas,
        request_deserializer=rlqs_pb2.RateLimitQuotaUsageReports.FromString,
        response_serializer=None,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"StreamRateLimitQuotas": method})
