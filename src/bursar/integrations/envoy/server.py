"""The gRPC part: streams of Envoys in, rounds of the book, assignments out.

Everything that is decided, is decided in `fleet`. A slow Envoy costs one entry a tenant, not a
queue of messages: what was not sent yet is replaced by what is newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import grpc
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from bursar.integrations.envoy.fleet import ALLOW_ALL, FILL_S, MARGIN_NS
from bursar.integrations.envoy.listening import add_port
from bursar.integrations.envoy.mark import LifeMark
from bursar.integrations.envoy.settings import Settings, find_resources, make_book, wire_time_to_live_s
from bursar.integrations.envoy.statistics import FleetStatistics, FleetTenantStatistics
from bursar.integrations.envoy.wire import deny_unknown, read_report, write_orders
from bursar.policy import Policy, RatePolicy
from bursar.runtime import logs
from bursar.runtime.clock import BootClock
from bursar.world import SECOND_NS, Clock

SERVICE = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
MESSAGE_MAX_BYTES = 32 * 1024 * 1024
STREAMS_MAX = 1_000
FIRST_REPORT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 60.0
GATHER_S = 0.02
"""Reports that come together are answered by one round."""

REST_FACTOR = 3.0
"""A round that took long is followed by a rest of so many times as long."""

STOP_GRACE_S = 0.5


class Stream:
    """One Envoy: what it is still to be told."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.orders: dict[str, int] = {}
        self.answers: list[bytes] = []
        self.wake = asyncio.Event()

    def tell(self, rates: Mapping[str, int]) -> None:
        self.orders.update(rates)
        self.wake.set()

    def answer(self, message: bytes) -> None:
        # Only the newest answer about strangers matters: they are denied in every one.
        self.answers = [message]
        self.wake.set()


class Fleet:
    """The Envoys of one resource, and when to decide anew."""

    def __init__(self, policy: RatePolicy, settings: Settings, clock: Clock, *, fresh: bool) -> None:
        self.policy = policy
        self.settings = settings
        self.book = make_book(policy, settings, clock.now(), fresh=fresh)
        self.time_to_live_s = wire_time_to_live_s(policy, settings)
        self.counts: Counter[str] = Counter()
        self.round_s = 0.0
        self._clock = clock
        self._streams: dict[int, Stream] = {}
        self._changed = asyncio.Event()

    def open(self) -> Stream | None:
        slot = self.book.join(self._clock.now()) if len(self._streams) < STREAMS_MAX else None
        if slot is None:
            return None
        self._streams[slot] = Stream(slot)
        self.counts["streams"] += 1
        return self._streams[slot]

    def close(self, stream: Stream) -> None:
        del self._streams[stream.slot]
        self.book.leave(self._clock.now(), stream.slot)
        self._changed.set()

    def take_in(self, stream: Stream, message: Any) -> None:
        lines = read_report(message, self.book.rows)
        self.counts["reports"] += 1
        if lines.unknown:
            self.counts["unknown_tenants"] += len(lines.unknown)
            stream.answer(deny_unknown(lines, self.time_to_live_s))
        self.counts["allowed"] += sum(lines.allowed)
        self.counts["denied"] += sum(lines.denied)
        columns = (lines.rows, lines.elapsed_s, lines.allowed, lines.denied)
        self.book.report(self._clock.now(), stream.slot, *columns)
        if lines.rows:
            self._changed.set()

    async def run(self) -> None:
        """Decide whenever something was heard, or something that was held has run out."""
        while True:
            next_at = self.book.next_at(self._clock.now())
            wait_s = None if next_at is None else max(0.0, (next_at - self._clock.now()) / SECOND_NS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
            await asyncio.sleep(GATHER_S + REST_FACTOR * self.round_s)
            self._changed.clear()
            self.decide()

    def decide(self) -> None:
        began = self._clock.now()
        for orders in self.book.decide(began):
            names = [self.book.tenants[row] for row in orders.rows.tolist()]
            rates = [ALLOW_ALL] * len(names) if self.policy.shadow else orders.rates.tolist()
            self._streams[orders.slot].tell(dict(zip(names, rates, strict=True)))
            self.counts["assignments"] += len(names)
        self.counts["rounds"] += 1
        self.round_s = (self._clock.now() - began) / SECOND_NS

    def write(self, stream: Stream) -> list[bytes]:
        """What the stream is to send now."""
        messages, stream.answers = stream.answers, []
        orders, stream.orders = stream.orders, {}
        stream.wake.clear()
        return messages + write_orders(orders, self.time_to_live_s, self.settings.burst_s)

    def statistics(self) -> FleetStatistics:
        """Of the tenants, those that want or are given something."""
        book = self.book
        totals = zip(
            book.tenants,
            book.demand.sum(axis=1).tolist(),
            book.current.sum(axis=1).tolist(),
            book.in_force().sum(axis=1).tolist(),
            book.shortfall().tolist(),
            strict=True,
        )
        tenants = {
            name: FleetTenantStatistics(
                demand=demand / FILL_S,
                assigned=assigned / FILL_S,
                in_force=in_force / FILL_S,
                shortfall=missing / FILL_S,
            )
            for name, demand, assigned, in_force, missing in totals
            if demand or assigned or in_force
        }
        events = dict(self.counts)
        return FleetStatistics(
            envoys=len(self._streams), round_s=self.round_s, events=events, tenants=tenants
        )


def make_handler(service: QuotaService) -> Any:
    """The service under its name. Responses are encoded already (see `wire`)."""
    method = grpc.stream_stream_rpc_method_handler(
        service.StreamRateLimitQuotas,
        request_deserializer=rlqs_pb2.RateLimitQuotaUsageReports.FromString,
        response_serializer=None,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"StreamRateLimitQuotas": method})


class QuotaService:
    """The service that Envoys call; the domain in a stream's first message names the resource."""

    def __init__(self, fleets: Mapping[str, Fleet]) -> None:
        self._fleets = fleets

    async def StreamRateLimitQuotas(self, requests: Any, context: Any) -> None:
        try:
            first = await asyncio.wait_for(context.read(), FIRST_REPORT_TIMEOUT_S)
        except TimeoutError:
            await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no report came")
        if first is grpc.aio.EOF:
            return
        fleet = self._fleets.get(first.domain)
        if fleet is None:
            known = ", ".join(self._fleets)
            why = f"the domain names no resource of kind rate; set domain to one of: {known}"
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        stream = fleet.open()
        if stream is None:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "there are too many streams")
        writer = asyncio.create_task(self._write(fleet, stream, context))
        try:
            await self._read(fleet, stream, first, context)
        finally:
            writer.cancel()
            fleet.close(stream)

    async def _read(self, fleet: Fleet, stream: Stream, message: Any, context: Any) -> None:
        while message is not grpc.aio.EOF:
            fleet.take_in(stream, message)
            try:
                message = await asyncio.wait_for(context.read(), SILENCE_TIMEOUT_S)
            except TimeoutError:
                await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no report came for a minute")

    async def _write(self, fleet: Fleet, stream: Stream, context: Any) -> None:
        while True:
            await stream.wake.wait()
            for message in fleet.write(stream):
                await context.write(message)


async def _refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("abort does not return")


class EnvoyServer:
    """A listening server for the rate resources of a policy."""

    def __init__(
        self, policy: Policy, settings: Settings | None = None, *, learn: bool | None = None
    ) -> None:
        """`learn`: whether an earlier server's assignments may be in force; None: as `mark` says."""
        self._policy = policy
        settings = settings or Settings()
        clock = BootClock()
        self._mark = LifeMark(Path(policy.daemon.state))
        after_s = settings.time_to_live_s + MARGIN_NS / SECOND_NS
        self.fleets = {}
        for name, resource in find_resources(policy).items():
            keeps = resource.without_bursar.mode == "keep"
            fresh = self._mark.has_run_out(after_s, keeps) if learn is None else not learn
            self.fleets[name] = Fleet(resource, settings, clock, fresh=fresh)
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises UsageError if the address cannot be had."""
        options = [("grpc.max_receive_message_length", MESSAGE_MAX_BYTES), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=STREAMS_MAX)
        self._server.add_generic_rpc_handlers((make_handler(QuotaService(self.fleets)),))
        port = add_port(self._server, address, self._policy.daemon.tls)
        self._mark.touch()
        await self._server.start()
        self._tasks = [asyncio.create_task(fleet.run()) for fleet in self.fleets.values()]
        self._tasks.append(asyncio.create_task(self._keep_marking()))
        host = address.rpartition(":")[0]
        logs.info("envoy.ready", address=f"{host}:{port}", domains=",".join(self.fleets))
        return port

    async def _keep_marking(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._mark.touch()

    async def run(self) -> None:
        """Serve until cancelled; an error in a fleet's rounds ends it."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(STOP_GRACE_S)
