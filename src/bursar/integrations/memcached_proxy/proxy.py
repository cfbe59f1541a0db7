"""The listening part: which port, which server behind, who a key belongs to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bursar.errors import UsageError
from bursar.integrations.memcached_proxy.connection import ClientLink
from bursar.policy.names import is_loopback
from bursar.resource.door import Resource
from bursar.runtime import logs
from bursar.runtime.clock import BootClock
from bursar.runtime.limits import fit_connections
from bursar.runtime.routes import Address

CONNECTIONS_MAX = 512
"""Each may hold a request (a little over a megabyte) and a quarter of a megabyte of answers."""

FILES_EACH = 2
MAKES_WAY_S = 1.0

FindTenant = Callable[[bytes], str]


def by_prefix(separator: str = ":") -> FindTenant:
    """The tenant is what stands in a key before the separator: "acme" in acme:user:7."""
    mark = separator.encode()

    def find(key: bytes) -> str:
        return key.partition(mark)[0].decode(errors="replace")

    return find


class Proxy:
    """Serves clients with the resource's tokens.

    ports           where it listens, each with its tenant, or None where the key tells the tenant
    wait_s          how long a request may wait for its tokens before it is refused
    slow_timeout_s  how long a client may leave its answers unread
    stall_timeout_s how long a client may take for one request
    idle_timeout_s  how long a client may say nothing
    connections_max clients at most, each with a connection to the server; where all are taken, the one that
                    has been idle for longest makes way
    """

    def __init__(
        self,
        resource: Resource,
        backend: str,
        *,
        find_tenant: FindTenant | None = None,
        wait_s: float = 0.0,
        connections_max: int = CONNECTIONS_MAX,
        slow_timeout_s: float = 10.0,
        stall_timeout_s: float = 30.0,
        idle_timeout_s: float = 300.0,
        dial_timeout_s: float = 3.0,
    ) -> None:
        at = Address.parse(backend)
        self.backend = (at.host, at.port)
        self.resource = resource
        self.find_tenant = find_tenant or by_prefix()
        self.wait_s = wait_s
        self.slow_timeout_s = slow_timeout_s
        self.stall_timeout_s = stall_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._sweep: asyncio.TimerHandle | None = None
        self.dial_timeout_s = dial_timeout_s
        self.counts: Counter[str] = Counter()
        self._connections_max = fit_connections(connections_max, files_each=FILES_EACH)
        self._noted = logs.Sparse(BootClock().now)
        self._clients: set[ClientLink] = set()
        self._servers: list[asyncio.Server] = []

    async def listen(self, ports: Mapping[str, str | None]) -> list[Address]:
        """Listen on "host:port" addresses, loopback ones only: the protocol has no encryption."""
        found = []
        for address, tenant in ports.items():
            if not is_loopback(address):
                raise UsageError(f"the memcached proxy listens on loopback only, not on {address}")
            found.append(await self._listen(Address.parse(address), tenant))
        self._sweep_idle()
        logs.info(
            "memcached.ready", addresses=",".join(map(str, found)), backend=":".join(map(str, self.backend))
        )
        return found

    async def _listen(self, at: Address, tenant: str | None) -> Address:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: ClientLink(self, tenant), at.host, at.port)
        except OSError as error:
            raise UsageError(f"{at} cannot be listened on: {error.strerror}; pass another") from error
        self._servers.append(server)
        return Address(at.host, server.sockets[0].getsockname()[1])

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
        return {"connections_now": self.connections, **self.counts}

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._servers:
            server.close()
        for client in list(self._clients):
            client.cut_off("the proxy stops")
