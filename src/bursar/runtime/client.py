"""What `bursar.connect` returns: one noun for resources here and resources at a daemon."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from bursar.errors import NetworkError, UsageError
from bursar.policy import Policy, load
from bursar.policy.values import Tls, suggest
from bursar.resource.checks import check_name
from bursar.resource.decider import Explanation
from bursar.resource.door import Resource
from bursar.resource.far import Far
from bursar.resource.grants import Acquisition
from bursar.resource.several import AcquisitionOfAll
from bursar.resource.statistics import Statistics
from bursar.resource.wire import FleetTold
from bursar.runtime.host import Host
from bursar.runtime.network import SocketNetwork
from bursar.runtime.routes import Address
from bursar.runtime.tls import check_client_address
from bursar.runtime.world import open_client_world
from bursar.world import SECOND_NS, Clock

if TYPE_CHECKING:
    from bursar.claims.requirements import Lookup
    from bursar.runtime.functions import Function, Functions
    from bursar.runtime.tasks import Task

SCHEME = "bursar://"
PORT = 7070
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
DAEMONS_MAX = 16


class Backend(Protocol):
    """Where the resources are: in this process (`Host`) or at a daemon (`Remote`)."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...

    @property
    def clock(self) -> Clock: ...

    async def count(self, resource: str, most: int, find: Sequence[str]) -> Statistics: ...

    async def ask_fleet(self) -> FleetTold: ...

    async def close(self) -> None: ...


class Bursar:
    """The resources of a policy file, decided in this process; or, for "bursar://host:7070", those
    of a daemon there ("bursar://a:7070,b:7070": of several, one after the other does not answer).
    Use it in `async with`, or connect and close it; tasks can be declared before.

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

    def acquire_all(self, tenant: str, amounts: Mapping[str, int], *, wait: float = 0.0) -> AcquisitionOfAll:
        """Acquire from several resources, all or nothing: {"rpm": 1, "tpm": 4000, "budget": 4000}.
        One grant, settled by the names of the resources."""
        found = {name: self.resource(name) for name in amounts}
        return AcquisitionOfAll(self._backend.clock, found, tenant, amounts, wait)

    def claim(
        self,
        *names: str,
        tenant: str,
        wait: float = 0.0,
        key: str | None = None,
        priority: int = 0,
        resource: str | None = None,
    ) -> Acquisition:
        """Claim named things ("vm-7:E", "host-1:S"), all or none. `resource` says which resource of
        kind claim has them, where the policy has several."""
        found = self.resource(resource or self._find_claim())
        return found.claim(names, tenant, wait=wait, key=key, priority=priority)

    @property
    def functions(self) -> Functions:
        """The tasks declared with `task`."""
        if self._functions is None:
            from bursar.runtime.functions import Functions

            self._functions = Functions()
        return self._functions

    def task(
        self,
        *,
        needs: str,
        lookup: Lookup | None = None,
        name: str | None = None,
        run: Literal["loop", "thread", "process"] | None = None,
        time_limit: float | str | None = None,
        grace: float | str = 5.0,
        retries: int = 0,
        backoff: float | str = 1.0,
    ) -> Callable[[Function], Function]:
        """Declare a function as a task: a call of it runs, in some `bursar work`, when the names that it
        needs are granted. `needs` is a template over its arguments ("{host(vm)}:S, {vm}:E");
        `lookup("host", "vm-7")` answers for the host of vm-7.

        run         where: an async function beside others in one loop, a plain one in a "thread" of its
                    own; either in a "process" of its own, which can be killed
        time_limit  of one attempt; when it is over the function is asked to stop, and it failed
        grace       how long it has to stop in when it is asked to; a process is killed then
        retries     how many more times it is tried after it failed
        backoff     before the first of these; each next pause is twice as long, at most an hour"""

        def register(function: Function) -> Function:
            self.functions.register(
                function,
                needs,
                lookup,
                name,
                run=run,
                time_limit=time_limit,
                grace=grace,
                retries=retries,
                backoff=backoff,
            )
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
    ) -> Task:
        """Put a call of a task in the queue. The same key of the same tenant is the same call, once, also
        after it is over; `deadline`: seconds after which it is no longer to be begun."""
        found = self.resource(resource or self._find_claim())
        if not found.decider.offers.names:
            raise UsageError(f"{found.name} is of kind {found.kind}; tasks go to a resource of kind claim")
        id = await self.functions.submit(
            found.verb, function, arguments, tenant=tenant, key=key, priority=priority, deadline=deadline
        )
        return _make_task(found, id)

    def find_task(self, id: str, *, resource: str | None = None) -> Task:
        """The handle of a task that was submitted anywhere. Nothing is asked yet."""
        return _make_task(self.resource(resource or self._find_claim()), id)

    def _find_claim(self) -> str:
        claims = [name for name, found in self._backend.resources.items() if found.kind == "claim"]
        if len(claims) != 1:
            listed = ", ".join(claims) or "none"
            raise UsageError(f"say which resource of kind claim with resource=...; there is {listed}")
        return claims[0]

    async def explain(self, resource: str, tenant: str) -> Explanation:
        """Why the tenant gets what it gets: what `bursar why` prints."""
        return await self.resource(resource).explain(tenant)

    async def set_tenants(self, resource: str, tenants: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Give tenants terms, as one would write them in the policy ({"acme": {"limit": "60k/s"}}), or
        remove them (None): all or none of them. In force at every node from the next period on."""
        await self.resource(resource).verb("set_tenants", tenants=dict(tenants))

    async def tenants(self, resource: str) -> dict[str, Mapping[str, Any]]:
        """The terms of all tenants that were set beside the policy."""
        found: dict[str, Mapping[str, Any]] = {}
        page: int | None = 0
        while page is not None:
            told = await self.resource(resource).verb("list_tenants", page=page)
            found.update(told["tenants"])
            page = told["next"]
        return found

    async def statistics(self, resource: str, *, most: int = 0, find: Sequence[str] = ()) -> Statistics:
        """What is counted where it is decided: here, or at the daemon. Where there are very many
        tenants: only rows of the `most` that used most, and of some whose names have one of `find` in
        them; then `totals` says what all have together."""
        if not most:
            return await self.resource(resource).statistics()
        return await self._backend.count(self.resource(resource).name, most, find)

    async def fleet(self) -> FleetTold:
        """Which node answers, and which nodes are up."""
        return await self._backend.ask_fleet()

    def fallbacks(self, resource: str) -> Mapping[str, int]:
        """Tokens that callers here were granted, by tenant, because the daemon was away."""
        tallies = self.resource(resource).tallies()
        return {tenant: tally.fallback for tenant, tally in tallies.items() if tally.fallback}

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


def _make_task(door: Resource, id: str) -> Task:
    from bursar.runtime.tasks import Task

    return Task(door, id)


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


class Remote:
    """The resources of a daemon, or of several that have the same."""

    def __init__(self, addresses: list[Address], name: str, tls: Tls | None, token: str | None) -> None:
        network = SocketNetwork(f"{name}/{secrets.token_hex(8)}", 1, tls=tls)
        peers = [f"daemon {address}" for address in addresses]
        for peer, address in zip(peers, addresses, strict=True):
            network.add_route(peer, address, any_name=True)
        self._world = open_client_world(network, random.Random())
        self._far = Far(self._world, peers, token)

    @property
    def resources(self) -> Mapping[str, Resource]:
        return self._far.resources

    @property
    def clock(self) -> Clock:
        return self._world.clock

    async def open(self, timeout_ns: int) -> None:
        await self._far.open(timeout_ns)

    async def count(self, resource: str, most: int, find: Sequence[str]) -> Statistics:
        return await self._far.count(resource, most, find)

    async def ask_fleet(self) -> FleetTold:
        return await self._far.ask_fleet()

    async def close(self) -> None:
        """Give back what is to be given back, for at most a second, then leave."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._far.close()
        except TimeoutError:
            self._world.trace("client.not_all_given_back")
        await self._world.close()


async def _connect_remote(
    url: str, name: str | None, tls: Tls | None, token: str | None, timeout: float
) -> Remote:
    addresses = read_url(url)
    for address in addresses:
        check_client_address(address.host, str(address), tls)
    if tls is not None and name is None:
        raise UsageError("with tls, say who this is: name=..., a name in its certificate")
    base = name or "client"
    check_name("name", base)
    remote = Remote(addresses, base, tls, token if token is not None else os.environ.get("BURSAR_TOKEN"))
    try:
        await remote.open(int(timeout * SECOND_NS))
    except NetworkError as error:
        await remote.close()
        raise type(error)(f"no daemon answers at {url}: {error}; is `bursar serve` running?") from None
    except BaseException:
        await remote.close()
        raise
    return remote


def read_url(url: str) -> list[Address]:
    """The addresses in "bursar://host:port,host:port"; the ports may be left out."""
    parts = url.removeprefix(SCHEME).rstrip("/").split(",")
    if not url.startswith(SCHEME) or not 1 <= len(parts) <= DAEMONS_MAX:
        raise UsageError(f"{url!r} is not the address of a daemon; write bursar://host:{PORT}")
    return [_read_address(url, part.strip()) for part in parts]


def _read_address(url: str, part: str) -> Address:
    try:
        split = urlsplit(f"{SCHEME}{part}")
        host, port = split.hostname, split.port
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}; write bursar://host:{PORT}") from error
    if not host or split.path.strip("/") or split.query or split.username:
        raise UsageError(f"{url!r} is not the address of a daemon; write bursar://host:{PORT}")
    return Address(host, PORT if port is None else port)
