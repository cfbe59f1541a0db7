"""`bursar envoy config POLICY` and `bursar envoy serve POLICY`: a quota service for Envoys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.integrations.envoy.settings import Settings
    from bursar.policy import Policy

LISTEN = "127.0.0.1:18081"

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Serve quotas to a fleet of Envoys (RLQS). Example: bursar envoy serve policy.toml",
        epilog=EXIT_CODES,
        no_args_is_help=True,
    )
    group.command(epilog=EXIT_CODES)(config)
    group.command(epilog=EXIT_CODES)(serve)
    app.add_typer(group, name="envoy")


def config(
    policy: PolicyFile,
    resource: Annotated[
        str | None, typer.Option(help="Which resource, if there are several.", show_default=False)
    ] = None,
    header: Annotated[str, typer.Option(help="The request header with the tenant's name.")] = "x-tenant",
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where `bursar envoy serve` is.")] = LISTEN,
    first: Annotated[
        str | None,
        typer.Option(help="allow or deny while no assignment came yet; else as without_bursar says."),
    ] = None,
    others: Annotated[
        str, typer.Option(help="allow or deny tenants that the policy does not have.")
    ] = "deny",
) -> None:
    """Print the configuration to paste into Envoy.

    The filter for its HTTP connection manager, and the cluster of the quota service.

    Example: bursar envoy config policy.toml --header x-tenant
    """
    from bursar.integrations.envoy.config import write_config
    from bursar.integrations.envoy.settings import find_resources
    from bursar.policy import load

    found = find_resources(load(policy))
    name = resource or (next(iter(found)) if len(found) == 1 else None)
    if name is None or name not in found:
        raise UsageError(f"pass --resource with one of: {', '.join(found)}")
    typer.echo(write_config(found[name], server, header, first=first, others=others), nl=False)


def serve(
    policy: PolicyFile,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Envoys reach it.")] = LISTEN,
    protocol: Annotated[
        str, typer.Option(help="rlqs: Envoys decide by assigned quotas; rls: they ask about every request.")
    ] = "rlqs",
    time_to_live: Annotated[int, typer.Option(help="Seconds that an assignment holds.")] = 8,
    overlap: Annotated[
        float, typer.Option(help="How far beyond a limit shares may be while they move; 0: never.")
    ] = 0.5,
    burst: Annotated[
        float, typer.Option(help="Seconds of its rate that an Envoy lets through at once.")
    ] = 0.2,
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve quotas to Envoys until SIGTERM or Ctrl-C.

    Every resource of kind rate is a domain (with rls: of every kind). Metrics are where the
    policy's daemon has them.

    Example: bursar envoy serve policy.toml --listen 127.0.0.1:18081
    """
    import asyncio

    from bursar.integrations.envoy.settings import Settings
    from bursar.policy import load
    from bursar.runtime import logs

    logs.configure(log, level)
    if protocol == "rls":
        asyncio.run(_serve_decisions(load(policy), listen))
        return
    if protocol != "rlqs":
        raise UsageError(f"the protocol is {protocol!r}: pass rlqs or rls")
    settings = Settings(time_to_live_s=time_to_live, overlap=overlap, burst_s=burst)
    asyncio.run(_serve(load(policy), settings, listen))


async def _serve_decisions(policy: Policy, listen: str) -> None:
    import asyncio
    import signal

    from bursar.integrations.envoy.decisions import DecisionServer
    from bursar.runtime.client import connect

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with await connect(policy) as held:
        server = DecisionServer(held, policy.daemon.tls)
        await server.start(listen)
        await stopped.wait()
        await server.stop()


async def _serve(policy: Policy, settings: Settings, listen: str) -> None:
    import asyncio
    import signal

    from bursar.integrations.envoy.reports import make_http
    from bursar.integrations.envoy.server import EnvoyServer

    server = EnvoyServer(policy, settings)
    http = make_http(policy, server.fleets)
    await server.start(listen)
    await http.listen()
    running = asyncio.ensure_future(server.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass  # told to stop
    finally:
        await http.close()
        await server.stop()
