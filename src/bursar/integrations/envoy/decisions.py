"""Envoy's older protocol (RLS v3): every request is asked about, and any kind of resource answers.

It costs a round trip a request, and Envoy lets a request through when the answer takes more than
its timeout (20 ms); RLQS is the better choice for rates. Here a request is answered at once from
what there is, or shed: nobody waits in a queue that Envoy has given up on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2

from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.envoy.listening import add_port
from bursar.policy import Tls
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.runtime import logs
from bursar.runtime.client import Bursar

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
TENANT = "tenant"
DESCRIPTORS_MAX = 32
REQUEST_MAX_BYTES = 256 * 1024
STOP_GRACE_S = 0.5
AT_ONCE_MAX = 64
"""Questions under way; one more is answered UNAVAILABLE at once, which Envoy takes by its own
`failure_mode_deny`."""

_OK = rls_pb2.RateLimitResponse.OK
_OVER = rls_pb2.RateLimitResponse.OVER_LIMIT


class DecisionService:
    """The domain names the resource; each descriptor's entry "tenant" says who is to be charged."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = resources
        self.counts: Counter[str] = Counter()
        self._under_way = 0

    async def ShouldRateLimit(self, request: Any, context: Any) -> Any:
        if self._under_way >= AT_ONCE_MAX:
            self.counts["shed"] += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many questions at once")
        resource = self._resources.get(request.domain)
        if resource is None:
            known = ", ".join(self._resources)
            why = f"the domain names no resource; set domain to one of: {known}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        if len(request.descriptors) > DESCRIPTORS_MAX:
            why = f"more than {DESCRIPTORS_MAX} descriptors"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        self._under_way += 1
        try:
            return await self._decide(resource, request)  # type: ignore[arg-type]  # abort raises
        except Unknown as error:
            self.counts["unknown"] += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, error.why)
        finally:
            self._under_way -= 1

    async def _decide(self, resource: Resource, request: Any) -> Any:
        """All descriptors or none: what was granted before a refusal is given back, where its kind
        can."""
        response = rls_pb2.RateLimitResponse(overall_code=_OK)
        granted: list[Grant] = []
        try:
            for descriptor in request.descriptors:
                status = response.statuses.add()
                if not await self._charge(resource, request, descriptor, status, granted):
                    response.overall_code = _OVER
                    for grant in granted:
                        grant.settle(0)
                    break
        finally:
            for grant in granted:
                await grant.release()
        for _ in request.descriptors[len(response.statuses) :]:
            response.statuses.add().code = _OK
        self.counts["over_limit" if response.overall_code == _OVER else "granted"] += 1
        return response

    async def _charge(
        self, resource: Resource, request: Any, descriptor: Any, status: Any, granted: list[Grant]
    ) -> bool:
        tenant = next((entry.value for entry in descriptor.entries if entry.key == TENANT), None)
        status.code = _OK
        amount = _read_amount(request, descriptor)
        if tenant is None or amount == 0:
            return True  # it concerns nobody here
        try:
            grant = await resource.acquire(tenant, amount)
        except Refused as refused:
            self.counts["strangers"] += refused.reason == "tenant"
            _explain(status, refused)
            return False
        except UsageError:
            self.counts["strangers"] += 1  # a name that nobody can have
            status.code = _OVER
            return False
        granted.append(grant)
        return True


def _read_amount(request: Any, descriptor: Any) -> int:
    """A descriptor's own count, else the request's, else one."""
    if descriptor.HasField("hits_addend"):
        return int(min(descriptor.hits_addend.value, 2**62))
    return int(request.hits_addend) or 1


def _explain(status: Any, refused: Refused) -> None:
    status.code = _OVER
    status.limit_remaining = min(refused.remaining or 0, 2**32 - 1)
    if refused.retry_after is not None:
        status.duration_until_reset.seconds = math.ceil(refused.retry_after)


def make_decision_handler(service: DecisionService) -> Any:
    method = grpc.unary_unary_rpc_method_handler(
        service.ShouldRateLimit,
        request_deserializer=rls_pb2.RateLimitRequest.FromString,
        response_serializer=rls_pb2.RateLimitResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})


class DecisionServer:
    """A listening server for all resources of a policy, or of a daemon."""

    def __init__(self, held: Bursar, tls: Tls | None = None) -> None:
        self.service = DecisionService({name: held.resource(name) for name in held.resources})
        self._tls = tls
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises UsageError if the address cannot be had."""
        options = [("grpc.max_receive_message_length", REQUEST_MAX_BYTES), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((make_decision_handler(self.service),))
        port = add_port(self._server, address, self._tls)
        await self._server.start()
        logs.info("envoy.ready", port=port, protocol="rls")
        return port

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)
