"""Envoy's older protocol (RLS v3): every request is asked about, and any kind of resource answers.

What a descriptor means is in the policy (`bursar.policy.descriptors`). Tokens in hand are a decrement; else
the kind is asked, with a deadline before Envoy's own, because Envoy lets a request through whose answer comes
later than its timeout. So whatever cannot be answered in time is refused, before it is charged: a shed
question is no way around a limit.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2

from bursar.api.ratelimit import find_window_ns
from bursar.errors import BursarError, DeniedError, Refused, Unknown, UsageError
from bursar.fleet.rights import Caller
from bursar.integrations.envoy.node import Node
from bursar.policy.values import QuotaPolicy
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.runtime import logs
from bursar.world import MILLISECOND_NS, SECOND_NS

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
DESCRIPTORS_MAX = 32
AT_ONCE_MAX = 256
"""Questions that wait for a decision; one more is refused at once."""

ANSWER_MAX_NS = 200 * MILLISECOND_NS
"""How long deciding may take where Envoy says no timeout."""

SPARE_NS = 4 * MILLISECOND_NS
"""What is left of Envoy's timeout for the way back."""

HITS_MAX = 2**62
COUNT_MAX = 2**32 - 1

_RESPONSE = rls_pb2.RateLimitResponse
_OK, _OVER = _RESPONSE.OK, _RESPONSE.OVER_LIMIT
_UNITS = {
    SECOND_NS: _RESPONSE.RateLimit.SECOND,
    60 * SECOND_NS: _RESPONSE.RateLimit.MINUTE,
    3600 * SECOND_NS: _RESPONSE.RateLimit.HOUR,
    86_400 * SECOND_NS: _RESPONSE.RateLimit.DAY,
}
_WINDOWS = {name: getattr(_RESPONSE.RateLimit, name.upper()) for name in ("week", "month", "year")}


@dataclass(slots=True)
class Charge:
    """What one descriptor asks of one resource."""

    door: Resource
    tenant: str
    amount: int
    status: Any


class DecisionService:
    def __init__(self, node: Node) -> None:
        self.counts: Counter[str] = Counter()
        self._node = node
        self._waiting = 0
        self._ending: set[asyncio.Task[None]] = set()

    async def ShouldRateLimit(self, request: Any, context: Any) -> Any:
        by = self._find_deadline(context)
        try:
            caller = self._node.identify(context)
            response, charges = self._read(request)
            for charge in charges:
                caller.check("acquire", charge.door.name, charge.tenant)
        except DeniedError as error:
            self.counts["denied"] += 1
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except UsageError as error:
            self.counts["misused"] += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._decide(response, charges, by, caller)
        return response

    def _find_deadline(self, context: Any) -> int:
        left_s = context.time_remaining()
        left_ns = ANSWER_MAX_NS if left_s is None else min(int(left_s * SECOND_NS) - SPARE_NS, ANSWER_MAX_NS)
        return int(self._node.now() + left_ns)

    def _read(self, request: Any) -> tuple[Any, list[Charge]]:
        """Raises UsageError for a question that makes no sense."""
        descriptors = self._node.descriptors()
        if request.domain not in descriptors.domains:
            known = ", ".join(sorted(descriptors.domains)[:20])
            raise UsageError(f"no resource has the domain {request.domain[:100]!r}; there are: {known}")
        if len(request.descriptors) > DESCRIPTORS_MAX:
            raise UsageError(f"a request has at most {DESCRIPTORS_MAX} descriptors")
        response = _RESPONSE(overall_code=_OK)
        charges: list[Charge] = []
        for descriptor in request.descriptors:
            status = response.statuses.add(code=_OK)
            amount = read_amount(request, descriptor)
            found = descriptors.find(
                request.domain, [(entry.key, entry.value) for entry in descriptor.entries]
            )
            for resource, tenant in found if amount else ():
                door = self._node.resources.get(resource)
                if door is not None:
                    charges.append(Charge(door, tenant, amount, status))
        return response, charges

    async def _decide(self, response: Any, charges: Sequence[Charge], by: int, caller: Caller) -> None:
        """All or none: what was granted before a refusal is put back."""
        granted: list[Grant] = []
        done = False
        try:
            for charge in charges:
                if not await self._take(charge, by, granted):
                    response.overall_code = _OVER
                    break
            done = response.overall_code == _OK
        finally:
            for grant in granted:
                self._end(grant, used=done)
        self.counts["granted" if done else "over_limit"] += 1

    async def _take(self, charge: Charge, by: int, granted: list[Grant]) -> bool:
        try:
            grant = spend(charge) or await self._ask(charge, by)
        except Refused as refused:
            self.counts["strangers"] += refused.reason == "tenant"
            write_refusal(charge, refused)
            return False
        except (Unknown, UsageError) as error:
            self.counts["unknown" if isinstance(error, Unknown) else "strangers"] += 1
            charge.status.code = _OVER
            return False
        granted.append(grant)
        write_grant(charge, grant)
        return True

    async def _ask(self, charge: Charge, by: int) -> Grant:
        """Raises Unknown for what cannot be decided in time; then it is not charged."""
        if self._waiting >= AT_ONCE_MAX or self._node.now() >= by:
            self.counts["shed"] += 1
            raise Unknown("too many questions at once to answer in time")
        self._waiting += 1
        try:
            return await charge.door.take(charge.tenant, charge.amount, by=by)
        finally:
            self._waiting -= 1

    def _end(self, grant: Grant, *, used: bool) -> None:
        """Envoy does not wait for it: the answer does not change."""
        if not used:
            grant.settle(0)
        task = asyncio.ensure_future(self._release(grant))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _release(self, grant: Grant) -> None:
        try:
            await grant.release()
        except BursarError as error:
            # It counts as used in any case: that is what a hold becomes that nobody settles.
            logs.debug("envoy.not_settled", resource=grant.resource, why=str(error))

    async def close(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=1.0)


def spend(charge: Charge) -> Grant | None:
    """From what is in hand; not what is to come back whatever happens meanwhile, which takes an id."""
    door = charge.door
    plain = charge.amount == 1 or not door.settles
    return door.spend(charge.tenant, charge.amount) if plain else None


def read_amount(request: Any, descriptor: Any) -> int:
    """A descriptor's own count, else the request's, else one."""
    if descriptor.HasField("hits_addend"):
        return int(min(descriptor.hits_addend.value, HITS_MAX))
    return int(request.hits_addend) or 1


def write_grant(charge: Charge, grant: Grant) -> None:
    """Of several resources that one descriptor is charged to, the one with the least left is told."""
    status, left = charge.status, grant.remaining
    if left is not None and (not status.HasField("current_limit") or left < status.limit_remaining):
        status.limit_remaining = min(left, COUNT_MAX)
        _write_limit(charge, grant.limit)
        if grant.reset_after is not None:
            status.duration_until_reset.seconds = max(1, math.ceil(grant.reset_after))


def write_refusal(charge: Charge, refused: Refused) -> None:
    """What is left is told as none: it was not enough, and Envoy takes more than none for a mistake."""
    status = charge.status
    status.code, status.limit_remaining = _OVER, 0
    _write_limit(charge, refused.limit)
    if refused.retry_after is not None:
        status.duration_until_reset.seconds = max(1, math.ceil(refused.retry_after))


def _write_limit(charge: Charge, limit: int | None) -> None:
    unit, count = find_unit(charge.door, limit)
    if unit:
        charge.status.current_limit.unit = unit
        charge.status.current_limit.requests_per_unit = min(count, COUNT_MAX)
        charge.status.current_limit.name = f"{charge.door.name}/{charge.tenant}"


def find_unit(door: Resource, limit: int | None) -> tuple[int, int]:
    """The limit as Envoy has it: so many in a second, a minute, ... ; (0, 0) where it has no such form."""
    if limit is None:
        return 0, 0
    if isinstance(door.policy, QuotaPolicy) and door.policy.window in _WINDOWS:
        return _WINDOWS[door.policy.window], limit
    window_ns = find_window_ns(door)
    unit_ns = next((each for each in _UNITS if window_ns is not None and each >= window_ns), None)
    if window_ns is None or unit_ns is None:
        return 0, 0
    return _UNITS[unit_ns], limit * unit_ns // window_ns


def make_decision_handler(service: DecisionService) -> Any:
    method = grpc.unary_unary_rpc_method_handler(
        service.ShouldRateLimit,
        request_deserializer=rls_pb2.RateLimitRequest.FromString,
        response_serializer=rls_pb2.RateLimitResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})
