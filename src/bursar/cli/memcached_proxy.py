"""`bursar memcached-proxy POLICY`: a policy's tokens for any memcached client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy

SCHEME = "memcached://"


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(memcached_proxy)


def memcached_proxy(
    policy: Annotated[
        str,
        typer.Argument(metavar="POLICY", help="The policy file, or bursar://host:port.", show_default=False),
    ],
    resource: Annotated[str, typer.Option(help="The resource that requests are charged to.")],
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The memcached server; else the backend of the policy's server."
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT[=TENANT]",
            help="Where clients connect; with a tenant every key is its own. Default 127.0.0.1:11311.",
            show_default=False,
        ),
    ] = None,
    separator: Annotated[str, typer.Option(help="What ends the tenant's name in a key.")] = ":",
    wait: Annotated[float, typer.Option(help="Seconds that a request may wait for its tokens.")] = 0.0,
    connections: Annotated[int, typer.Option(min=1, help="Clients at most, at a time.")] = 512,
    idle_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a client that says nothing is cut off.")
    ] = 300.0,
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Stand before a memcached server and charge each request.

    Clients speak the text protocol. A request that is refused gets SERVER_ERROR and says why.

    Example: bursar memcached-proxy policy.toml --resource cache --backend 127.0.0.1:11211
    """
    import asyncio

    from bursar.policy import load
    from bursar.runtime import logs
    from bursar.runtime.limits import raise_file_limit
    from bursar.runtime.loops import new_event_loop

    logs.configure(log, level)
    raise_file_limit()
    target = policy if "://" in policy else load(Path(policy))
    server = backend or find_backend(target, resource)
    ports = dict(_read_port(text) for text in listen or ["127.0.0.1:11311"])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        bounds = {"wait_s": wait, "connections_max": connections, "idle_timeout_s": idle_timeout}
        runner.run(_serve(target, resource, server, ports, separator, bounds))


def find_backend(target: Policy | str, resource: str) -> str:
    """The memcached server that the policy names for the resource, if it names just one."""
    from bursar.policy import RatePolicy

    found = None if isinstance(target, str) else target.resource(resource)
    servers = found.servers.values() if isinstance(found, RatePolicy) else []
    backends = [s.backend for s in servers if s.backend and s.backend.startswith(SCHEME)]
    if len(backends) != 1:
        raise UsageError(f"say which memcached server with --backend; the policy names {len(backends)}")
    return backends[0].removeprefix(SCHEME)


def _read_port(text: str) -> tuple[str, str | None]:
    address, _, tenant = text.partition("=")
    return address, tenant or None


async def _serve(
    target: Policy | str,
    name: str,
    backend: str,
    ports: dict[str, str | None],
    separator: str,
    bounds: dict[str, Any],
) -> None:
    import asyncio
    import signal

    from bursar.integrations.memcached_proxy import Proxy, by_prefix
    from bursar.runtime import logs
    from bursar.runtime.client import connect

    async with await connect(target) as held:
        proxy = Proxy(held.resource(name), backend, find_tenant=by_prefix(separator), **bounds)
        await proxy.listen(ports)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
        logs.info("memcached.stopped", **proxy.statistics())
        proxy.close()
