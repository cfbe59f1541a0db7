"""The listening part: which ports, which servers behind, who a key belongs to, and who may come in."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.errors import UsageError
from bursar.integrations.memcached_proxy.connection import ClientLink
from bursar.integrations.memcached_proxy.ketama import Ring
from bursar.integrations.memcached_proxy.refusals import Refusals
from bursar.integrations.memcached_proxy.runs import RunReader
from bursar.integrations.memcached_proxy.tenants import ByPrefix, FindTenant, by_prefix
from bursar.policy.names import is_loopback
from bursar.policy.values import Tls
from bursar.resource.door import Resource
from bursar.runtime import logs
from bursar.runtime.clock import BootClock
from bursar.runtime.limits import fit_connections
from bursar.runtime.routes import Address
from bursar.runtime.tls import Certificates

CONNECTIONS_MAX = 512
"""Each may hold a request (a little over a megabyte) and a quarter of a megabyte of answers."""

FILES_EACH = 2
MAKES_WAY_S = 1.0
DOWN_S = 0.5
"""A server that could not be reached is not tried again for that long."""


class Proxy:
    """Serves clients with the resource's tokens.

    servers         the memcached servers ("host:port"); of several each key has one (`ketama`)
    find_tenant     `by_prefix`, `by_pattern`, or a function of a key
    wait_s          how long a request may wait for its tokens before it is refused
    refusals        what a refused request is answered
    slow_timeout_s  how long a client may leave its answers unread
    stall_timeout_s how long a client may take for one request
    idle_timeout_s  how long a client may say nothing
    connections_max clients at most, each with a connection to each server; where all are taken, the one that
                    has been idle for longest makes way
    """

    def __init__(
        self,
        resource: Resource,
        servers: str | Sequence[str],
        *,
        find_tenant: FindTenant | None = None,
        wait_s: float = 0.0,
        refusals: Refusals | None = None,
        connections_max: int = CONNECTIONS_MAX,
        slow_timeout_s: float = 10.0,
        stall_timeout_s: float = 30.0,
        idle_timeout_s: float = 300.0,
        dial_timeout_s: float = 3.0,
    ) -> None:
        listed = [servers] if isinstance(servers, str) else servers
        found = [Address.parse(server) for server in listed]
        if not found or len(set(found)) < len(found):
            raise UsageError(f"the memcached servers are {', '.join(listed) or 'none'}: name each once")
        self.servers = [(at.host, at.port) for at in found]
        self.ring = Ring(self.servers) if len(found) > 1 else None
        self.resource = resource
        self.find_tenant = find_tenant or by_prefix()
        self.wait_s = wait_s
        self.refusals = refusals or Refusals()
        self.slow_timeout_s = slow_timeout_s
        self.stall_timeout_s = stall_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._sweep: asyncio.TimerHandle | None = None
        self.dial_timeout_s = dial_timeout_s
        self.requests = 0
        self.counts: Counter[str] = Counter()
        self._connections_max = fit_connections(connections_max, files_each=1 + len(found))
        self._noted = logs.Sparse(BootClock().now)
        self._down: dict[int, float] = {}
        self._clients: set[ClientLink] = set()
        self._listening: list[asyncio.Server] = []

    async def listen(self, ports: Mapping[str, str | None], tls: Tls | None = None) -> list[Address]:
        """Listen on "host:port" addresses, each with the tenant whose every key is that comes through it, or
        None where the key tells. Beyond loopback only with TLS, where clients show a certificate too."""
        secured = None if tls is None else Certificates(tls).listening
        found = []
        for address, tenant in ports.items():
            if secured is None and not is_loopback(address):
                raise UsageError(
                    f"without TLS the memcached proxy listens on loopback only, not on {address}: "
                    "give it a certificate"
                )
            found.append(await self._listen(Address.parse(address), tenant, secured))
        if self._sweep is None:
            self._sweep_idle()
        servers = ",".join(f"{host}:{port}" for host, port in self.servers)
        logs.info("memcached.ready", addresses=",".join(map(str, found)), servers=servers)
        return found

    async def _listen(self, at: Address, tenant: str | None, secured: ssl.SSLContext | None) -> Address:
        loop = asyncio.get_running_loop()
        runs = self._make_runs(tenant)
        try:
            server = await loop.create_server(
                lambda: ClientLink(self, tenant, runs), at.host, at.port, ssl=secured
            )
        except OSError as error:
            raise UsageError(f"{at} cannot be listened on: {error.strerror}; pass another") from error
        self._listening.append(server)
        return Address(at.host, server.sockets[0].getsockname()[1])

    def _make_runs(self, tenant: str | None) -> RunReader | None:
        """Where every key goes to one server, and its tenant is plain to see."""
        if self.ring is not None:
            return None
        if tenant is not None:
            return RunReader(None, tenant)
        return RunReader(self.find_tenant.separator) if isinstance(self.find_tenant, ByPrefix) else None

    def is_down(self, place: int) -> bool:
        return self._down.get(place, 0.0) > asyncio.get_running_loop().time()

    def note_unreachable(self, place: int, why: str) -> None:
        self.counts["unreachable"] += 1
        if not self.is_down(place):
            self._down[place] = asyncio.get_running_loop().time() + DOWN_S
            host, port = self.servers[place]
            logs.warning("memcached.unreachable", server=f"{host}:{port}", why=why)

    def admit(self, client: ClientLink) -> bool:
        if len(self._clients) >= self._connections_max and not self._make_room():
            self.counts["turned_away"] += 1
            self._noted.warning("memcached.full", "", connections=self.connections)
            return False
        self._clients.add(client)
        self.counts["connections"] += 1
        return True

    def _make_room(self) -> bool:
        """End the client that has been idle for longest, if there is one that has been for a while."""
        now_s = asyncio.get_running_loop().time()
        idle = [client for client in self._clients if client.is_idle]
        oldest = min(idle, key=lambda client: client.active_at_s, default=None)
        if oldest is None or now_s - oldest.active_at_s < MAKES_WAY_S:
            return False
        self._end_idle(oldest, "others came")
        return True

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(min(5.0, self._idle_timeout_s / 4), self._sweep_idle)
        until_s = loop.time() - self._idle_timeout_s
        for client in [client for client in self._clients if client.active_at_s < until_s]:
            if client.is_idle:
                self._end_idle(client, "it said nothing for long")

    def _end_idle(self, client: ClientLink, why: str) -> None:
        self.counts["idle_ended"] += 1
        self._noted.warning("memcached.idle_ended", why, why=why, connections=self.connections)
        self.dismiss(client)
        client.end()

    def dismiss(self, client: ClientLink) -> None:
        self._clients.discard(client)

    @property
    def connections(self) -> int:
        return len(self._clients)

    def statistics(self) -> dict[str, Any]:
        return {"connections_now": self.connections, "requests": self.requests, **self.counts}

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._listening:
            server.close()
        for client in list(self._clients):
            client.cut_off("the proxy stops")
