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
from bursar.runtime.routes import Address

CONNECTIONS_MAX = 512
"""Each may hold a request (a little over a megabyte) and a quarter of a megabyte of answers."""

FindTenant = Callable[[bytes], str]


def by_prefix(separator: str = ":") -> FindTenant:
    """The tenant is what stands in a key before the separator: "acme" in acme:user:7."""
    mark = separator.encode()

    def find(key: bytes) -> str:
        return key.partition(mark)[0].decode("latin-1")

    return find


class Proxy:
    """Serves clients with the resource's tokens.

    ports           where it listens, each with its tenant, or None where the key tells the tenant
    wait_s          how long a request may wait for its tokens before it is refused
    slow_timeout_s  how long a client may leave its answers unread
    stall_timeout_s how long a client may take for one request
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
        dial_timeout_s: float = 3.0,
    ) -> None:
        at = Address.parse(backend)
        self.backend = (at.host, at.port)
        self.resource = resource
        self.find_tenant = find_tenant or by_prefix()
        self.wait_s = wait_s
        self.slow_timeout_s = slow_timeout_s
        self.stall_timeout_s = stall_timeout_s
        self.dial_timeout_s = dial_timeout_s
        self.counts: Counter[str] = Counter()
        self._connections_max = connections_max
        self._clients: set[ClientLink] = set()
        self._servers: list[asyncio.Server] = []

    async def listen(self, ports: Mapping[str, str | None]) -> list[Address]:
        """Listen on "host:port" addresses, loopback ones only: the protocol has no encryption."""
        found = []
        for address, tenant in ports.items():
            if not is_loopback(address):
                raise UsageError(f"the memcached proxy listens on loopback only, not on {address}")
            found.append(await self._listen(Address.parse(address), tenant))
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
        if len(self._clients) >= self._connections_max:
            self.counts["turned_away"] += 1
            return False
        self._clients.add(client)
        self.counts["connections"] += 1
        return True

    def dismiss(self, client: ClientLink) -> None:
        self._clients.discard(client)

    @property
    def connections(self) -> int:
        return len(self._clients)

    def statistics(self) -> dict[str, Any]:
        return {"connections_now": self.connections, **self.counts}

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for client in list(self._clients):
            client.cut_off("the proxy stops")
