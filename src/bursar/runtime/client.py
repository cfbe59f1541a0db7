"""What `bursar.connect` returns: one noun for resources here and resources at a daemon."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
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

if TYPE_CHECKING:
    from bursar.claims.app import Function, Functions
    from bursar.claims.requirements import Lookup

SCHEME = "bursar://"
PORT = 7070
CONNECT_TIMEOUT_S = 5.0


class Backend(Protocol):
    """Where the resources are: in this process (`Host`) or at a daemon (`Connection`)."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...

    async def close(self) -> None: ...


class Bursar:
    """The resources of a policy file, decided in this process; or, for "bursar://host:7070", those
    of a daemon there. Use it in `async with`, or connect and close it; tasks can be declared before.

    With `tls` the client shows its certificate, and `name` must be a name in it; the daemon's
    certificate must have the host of the address. `token` is the daemon's, if it wants one
    (otherwise the environment's BURSAR_TOKEN)."""

    def __init__(
        self,
        target: str | os.PathLike[str] | Policy,
        *,
        name: str | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.target = target
        self._source = target.source if isinstance(target, Policy) else str(target)
        self._remote = (name, tls, token, timeout)
        self._connected: Backend | None = None
        self._functions: Functions | None = None

    async def connect(self) -> Bursar:
        """Raises PolicyError, UsageError, NetworkError. Connecting again does nothing."""
        if self._connected is None:
            if isinstance(self.target, str) and "://" in self.target:
                self._connected = await _connect_remote(self.target, *self._remote)
            else:
                self._connected = await Host.open(self.load_policy())
        return self

    def load_policy(self) -> Policy:
        """The policy that this was made with, read now. Raises PolicyError, UsageError."""
        if isinstance(self.target, Policy):
            return self.target
        if isinstance(self.target, str) and "://" in self.target:
            raise UsageError(f"{self.target} is a daemon; give the policy file itself")
        return load(Path(self.target))

    @property
    def _backend(self) -> Backend:
        if self._connected is None:
            raise UsageError(f"not connected to {self._source}: use `async with` or `await b.connect()`")
        return self._connected

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

    @property
    def functions(self) -> Functions:
        """The tasks declared with `task`."""
        if self._functions is None:
            from bursar.claims.app import Functions

            self._functions = Functions()
        return self._functions

    def task(
        self, *, needs: str, lookup: Lookup | None = None, name: str | None = None
    ) -> Callable[[Function], Function]:
        """Declare an async function as a task: a call of it runs, in some `bursar work`, when the
        names that it needs are granted. `needs` is a template over its arguments
        ("{host(vm)}:S, {vm}:E"); `lookup("host", "vm-7")` answers for the host of vm-7."""

        def register(function: Function) -> Function:
            self.functions.register(function, needs, lookup, name)
            return function

        return register

    async def submit(
        self,
        function: Function | str,
        *,
        tenant: str,
        key: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        resource: str | None = None,
        **arguments: Any,
    ) -> str:
        """Put a call of a task in the queue and return its id. The same key is the same call, once,
        also after it is over; `deadline`: seconds after which it is no longer to be begun."""
        found: Any = self.resource(resource or self._find_claim())
        if isinstance(found, RemoteResource) or found.kind != "claim":
            raise UsageError(f"{found.name}: tasks go to a resource of kind claim, through its policy file")
        return await self.functions.submit(
            found, function, arguments, tenant=tenant, key=key, priority=priority, deadline=deadline
        )

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
        """Closing again does nothing."""
        if self._connected is not None:
            connected, self._connected = self._connected, None
            await connected.close()

    async def __aenter__(self) -> Bursar:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        named = "not connected" if self._connected is None else ", ".join(self.resources)
        return f"<Bursar {self._source}: {named}>"


async def connect(
    target: str | os.PathLike[str] | Policy,
    *,
    name: str | None = None,
    tls: Tls | None = None,
    token: str | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
) -> Bursar:
    """A `Bursar`, connected. Raises PolicyError, UsageError, NetworkError."""
    return await Bursar(target, name=name, tls=tls, token=token, timeout=timeout).connect()


async def _connect_remote(
    url: str, name: str | None, tls: Tls | None, token: str | None, timeout: float
) -> Connection:
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
    return connection


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
