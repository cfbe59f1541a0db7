"""`bursar memcached-proxy POLICY`: a policy's tokens for any memcached client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.integrations.memcached_proxy import Proxy
    from bursar.policy import Policy
    from bursar.policy.values import Tls
    from bursar.resource.door import Resource
    from bursar.runtime.http_listener import HttpListener

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
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A memcached server; of several, each key has one (ketama). "
            "Default: the backends of the policy's servers.",
            show_default=False,
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
    tenant_pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help=r"Or where it stands: '(?P<tenant>...)' in what matches a key's beginning.",
        ),
    ] = None,
    refused_reads: Annotated[
        str, typer.Option(help="What a refused get is answered: error or miss.")
    ] = "error",
    refused_writes: Annotated[str, typer.Option(help="And a refused set: error or not-stored.")] = "error",
    refused_deletes: Annotated[str, typer.Option(help="And a refused delete: error or not-found.")] = "error",
    wait: Annotated[float, typer.Option(help="Seconds that a request may wait for its tokens.")] = 0.0,
    connections: Annotated[int, typer.Option(min=1, help="Clients at most, at a time.")] = 512,
    idle_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a client that says nothing is cut off.")
    ] = 300.0,
    cert: Annotated[
        Path | None, typer.Option(help="TLS for clients: this proxy's certificate (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Who signs the clients' certificates.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where /metrics is served; on loopback.")
    ] = None,
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Stand before memcached servers and charge each request.

    Clients speak the text protocol. A request that is refused gets CLIENT_ERROR, which says why.

    Example: bursar memcached-proxy policy.toml --resource cache --backend 127.0.0.1:11211
    """
    import asyncio

    from bursar.integrations.memcached_proxy import Proxy, Refusals, by_pattern, by_prefix
    from bursar.policy import load
    from bursar.runtime import logs
    from bursar.runtime.limits import raise_file_limit
    from bursar.runtime.loops import new_event_loop

    logs.configure(log, level)
    raise_file_limit()
    target = policy if "://" in policy else load(Path(policy))
    servers = backend or find_backends(target, resource)
    make = partial(
        Proxy,
        servers=servers,
        find_tenant=by_prefix(separator) if tenant_pattern is None else by_pattern(tenant_pattern),
        refusals=Refusals(refused_reads, refused_writes, refused_deletes),  # type: ignore[arg-type]  # checked
        wait_s=wait,
        connections_max=connections,
        idle_timeout_s=idle_timeout,
    )
    ports = dict(_read_port(text) for text in listen or ["127.0.0.1:11311"])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(target, resource, make, ports, read_tls(cert, key, ca), metrics))


def find_backends(target: Policy | str, resource: str) -> list[str]:
    """The memcached servers that the policy names for the resource."""
    from bursar.policy import RatePolicy

    found = None if isinstance(target, str) else target.resource(resource)
    servers = found.servers.values() if isinstance(found, RatePolicy) else []
    backends = [s.backend for s in servers if s.backend and s.backend.startswith(SCHEME)]
    if not backends:
        raise UsageError("say which memcached server with --backend; the policy names none")
    return [backend.removeprefix(SCHEME) for backend in backends]


def read_tls(cert: Path | None, key: Path | None, ca: Path | None) -> Tls | None:
    from bursar.policy.values import Tls

    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise UsageError("TLS takes all of --cert, --key and --ca: clients show a certificate too")
    return Tls(cert=str(cert), key=str(key), ca=str(ca))


def _read_port(text: str) -> tuple[str, str | None]:
    address, _, tenant = text.partition("=")
    return address, tenant or None


async def _serve(
    target: Policy | str,
    name: str,
    make: Callable[[Resource], Proxy],
    ports: dict[str, str | None],
    tls: Tls | None,
    metrics: str | None,
) -> None:
    import asyncio
    import signal

    from bursar.runtime import logs
    from bursar.runtime.client import connect

    async with await connect(target) as held:
        proxy = make(held.resource(name))
        await proxy.listen(ports, tls)
        telling = None if metrics is None else await tell(proxy, metrics)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
        logs.info("memcached.stopped", **proxy.statistics())
        proxy.close()
        if telling is not None:
            await telling.close()


async def tell(proxy: Proxy, address: str) -> HttpListener:
    """Serve the proxy's metrics."""
    from bursar.integrations.memcached_proxy.metrics import make_app
    from bursar.policy.names import is_loopback
    from bursar.runtime.http_listener import HttpListener

    if not is_loopback(address):
        raise UsageError(f"metrics are served on loopback only, not on {address}")
    listener = HttpListener(make_app(proxy))
    await listener.listen(address)
    return listener
