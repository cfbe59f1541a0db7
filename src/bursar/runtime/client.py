"""What `bursar.connect` returns: one noun for resources here and resources at a daemon."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

from bursar.errors import NetworkError, UsageError
from bursar.policy import Policy, load
from bursar.policy.values import Tls, suggest
from bursar.resource import Acquisition, Explanation, Resource, check_name
from bursar.runtime.host import Host
from bursar.runtime.network import SocketNetwork
from bursar.runtime.remote import PEER, Connection, RemoteResource
from bursar.runtime.routes import Address
from bursar.runtime.tls import check_client_address
from bursar.world import SECOND_NS

SCHEME = "bursar://"
PORT = 7070
CONNECT_TIMEOUT_S = 5.0


class Backend(Protocol):
    """Where the resources are: in this process (`Host`) or at a daemon (`Connection`)."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...

    async def close(self) -> None: ...


class Bursar:
    """The resources of a policy. Use it in `async with`, or close it."""

    def __init__(self, backend: Backend, source: str) -> None:
        self._backend = backend
        self._source = source

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(self._backend.resources)

    def resource(self, name: str) -> Resource:
        """Raises UsageError, with the nearest name there is, for one that is not in the policy."""
        resource = self._backend.resources.get(name)
        if resource is None:
            raise UsageError(
                f"there is no resource {name!r} at {self._source}{suggest(name, self._backend.resources)}"
            )
        return resource

    def claim(
        self, *names: str, tenant: str, wait: float = 0.0, key: str | None = None, resource: str | None = None
    ) -> Acquisition:
        """Claim named things ("vm-7:E", "host-1:S"), all or none. `resource` says which resource of
        kind claim has them, where the policy has several."""
        found = self.resource(resource or self._find_claim())
        claim = getattr(found, "claim", None)
        if claim is None or found.kind != "claim":
            raise UsageError(f"{found.name} is of kind {found.kind}; names are claimed from kind claim")
        acquisition: Acquisition = claim(names, tenant, wait=wait, key=key)
        return acquisition

    def _find_claim(self) -> str:
        claims = [name for name, found in self._backend.resources.items() if found.kind == "claim"]
        if len(claims) != 1:
            listed = ", ".join(claims) or "none"
            raise UsageError(f"say which resource of kind claim with resource=...; there is {listed}")
        return claims[0]

    async def explain(self, resource: str, tenant: str) -> Explanation:
        """Why the tenant gets what it gets: what `bursar why` prints."""
        found = self.resource(resource)
        check_name("tenant", tenant)
        if isinstance(found, RemoteResource):
            return await found.fetch_explanation(tenant)
        return found.explain(tenant)

    async def statistics(self, resource: str) -> Mapping[str, Any]:
        found = self.resource(resource)
        if isinstance(found, RemoteResource):
            return await found.fetch_statistics()
        return found.statistics()

    def fallbacks(self, resource: str) -> Mapping[str, int]:
        """How often callers here went on, or were refused, because the daemon was away."""
        found = self.resource(resource)
        return dict(found.fallback.counts) if isinstance(found, RemoteResource) else {}

    async def close(self) -> None:
        await self._backend.close()

    async def __aenter__(self) -> Bursar:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Bursar {self._source}: {', '.join(self.resources)}>"


async def connect(
    target: str | os.PathLike[str] | Policy,
    *,
    name: str | None = None,
    tls: Tls | None = None,
    token: str | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
) -> Bursar:
    """The resources of a policy file, decided in this process; or, for "bursar://host:7070", those
    of a daemon there.

    With `tls` the client shows its certificate, and `name` must be a name in it; the daemon's
    certificate must have the host of the address. `token` is the daemon's, if it wants one
    (otherwise the environment's BURSAR_TOKEN). Raises PolicyError, UsageError, NetworkError."""
    if isinstance(target, str) and "://" in target:
        return await _connect_remote(target, name, tls, token, timeout)
    policy = target if isinstance(target, Policy) else load(Path(target))
    return Bursar(await Host.open(policy), policy.source)


async def _connect_remote(
    url: str, name: str | None, tls: Tls | None, token: str | None, timeout: float
) -> Bursar:
    address = read_url(url)
    check_client_address(address.host, str(address), tls)
    if tls is not None and name is None:
        raise UsageError("with tls, say who this is: name=..., a name in its certificate")
    base = name or "client"
    check_name("name", base)
    token = token if token is not None else os.environ.get("BURSAR_TOKEN")
    network = SocketNetwork(f"{base}/{secrets.token_hex(8)}", 1, tls=tls)
    connection = Connection(network, address, token)
    try:
        await connection.open(int(timeout * SECOND_NS))
    except NetworkError as error:
        await connection.close()
        said = str(error).removeprefix(f"{PEER} at ")
        raise type(error)(f"no daemon answers at {url}: {said}; is `bursar serve` running?") from error
    except BaseException:
        await connection.close()
        raise
    return Bursar(connection, url)


def read_url(url: str) -> Address:
    """The address in "bursar://host:port"; the port may be left out."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}; write bursar://host:{PORT}") from error
    if parts.scheme != "bursar" or not host or parts.path.strip("/") or parts.query or parts.username:
        raise UsageError(f"{url!r} is not the address of a daemon; write bursar://host:{PORT}")
    return Address(host, PORT if port is None else port)
