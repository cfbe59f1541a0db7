"""What `[daemon] envoy` starts: one port, on which Envoys ask for quotas (RLQS) and about requests (RLS)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from bursar.fleet.rights import NO_RIGHTS, Rights
from bursar.integrations.envoy.decisions import DecisionService, make_decision_handler
from bursar.integrations.envoy.listening import add_port
from bursar.integrations.envoy.node import Node
from bursar.integrations.envoy.quotas import STREAMS_MAX, QuotaService, make_quota_handler
from bursar.integrations.envoy.statistics import EnvoyStatistics
from bursar.policy import Policy, Tls
from bursar.resource.door import Resource
from bursar.runtime import logs

MESSAGE_MAX_BYTES = 32 * 1024 * 1024
AT_ONCE_MAX = STREAMS_MAX + 2_000
STOP_GRACE_S = 0.3


class EnvoyService:
    """`shared`: other processes may listen on the same port, and each answers a part of what is asked."""

    def __init__(self, node: Node, tls: Tls | None = None, *, shared: bool = False) -> None:
        self.quotas = QuotaService(node)
        self.decisions = DecisionService(node)
        self._tls = tls
        self._shared = shared
        self._server: Any = None
        self.port = 0

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises UsageError if the address cannot be had."""
        options = [
            ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
            ("grpc.so_reuseport", int(self._shared)),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=AT_ONCE_MAX)
        handlers = make_quota_handler(self.quotas), make_decision_handler(self.decisions)
        self._server.add_generic_rpc_handlers(handlers)
        port = add_port(self._server, address, self._tls)
        await self._server.start()
        logs.info("envoy.ready", address=f"{address.rpartition(':')[0]}:{port}")
        self.port = port
        return port

    async def close(self) -> None:
        """Envoys keep what they were told until its time is over."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        await self.quotas.close()
        await self.decisions.close()

    def statistics(self) -> Mapping[str, EnvoyStatistics]:
        """By resource, of those that Envoys asked for."""
        return {name: fleet.statistics() for name, (fleet, _) in self.quotas.fleets.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        """What was answered about requests."""
        return self.decisions.counts


async def open_for(
    address: str,
    tls: Tls | None,
    resources: Mapping[str, Resource],
    policy: Callable[[], Policy],
    now: Callable[[], int],
    rights: Rights = NO_RIGHTS,
) -> EnvoyService:
    service = EnvoyService(Node(resources, policy, now, rights, certified=tls is not None), tls)
    await service.start(address)
    return service
