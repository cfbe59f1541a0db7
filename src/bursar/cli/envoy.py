"""`bursar envoy config POLICY`, `bursar envoy import FILE`, `bursar envoy serve POLICY`: what Envoys need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy, ResourcePolicy, Tls

LISTEN = "127.0.0.1:18081"

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="What Envoys need that `bursar serve` serves. Example: bursar envoy config policy.toml",
        epilog=EXIT_CODES,
        no_args_is_help=True,
    )
    group.command(epilog=EXIT_CODES)(config)
    group.command("import", epilog=EXIT_CODES)(import_rules)
    group.command(epilog=EXIT_CODES)(serve)
    app.add_typer(group, name="envoy")


def config(
    policy: PolicyFile,
    resource: Annotated[
        str | None, typer.Option(help="Which resource, if there are several.", show_default=False)
    ] = None,
    header: Annotated[str, typer.Option(help="The request header with the tenant's name.")] = "x-tenant",
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A node's `envoy` address; several nodes: several times.",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="rlqs: Envoy decides by assigned quotas; rls: it asks about every request.")
    ] = "rlqs",
    first: Annotated[
        str | None,
        typer.Option(help="allow or deny while no assignment came yet; else as without_bursar says."),
    ] = None,
    others: Annotated[
        str, typer.Option(help="allow or deny tenants that the policy does not have.")
    ] = "deny",
    cert: Annotated[
        str | None, typer.Option(help="Envoy's certificate, a path on its machine.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of that certificate.", show_default=False)] = None,
    ca: Annotated[
        str | None, typer.Option(help="Who signs the server's certificate.", show_default=False)
    ] = None,
) -> None:
    """Print the configuration to paste into Envoy.

    The filter for its HTTP connection manager, and the cluster of bursar's nodes. Without --server these are
    where the policy's [daemon] has `envoy`. Beyond loopback they speak TLS, and Envoy needs --cert, --key and
    --ca.

    Example: bursar envoy config policy.toml --header x-tenant
    """
    from bursar.integrations.envoy.config import write_config
    from bursar.policy import load

    loaded = load(policy)
    servers = server or [loaded.daemon.envoy or LISTEN]
    if protocol not in ("rlqs", "rls"):
        raise UsageError(f"the protocol is {protocol!r}: pass rlqs or rls")
    found = choose_resource(loaded, resource, any_kind=protocol == "rls")
    tls = _read_tls(cert, key, ca)
    text = write_config(found, servers, header, first=first, others=others, tls=tls, asks=protocol == "rls")
    typer.echo(text, nl=False)


def choose_resource(policy: Policy, name: str | None, *, any_kind: bool) -> ResourcePolicy:
    """The resource of that name, or the only one. Raises UsageError."""
    from bursar.policy import RatePolicy

    found = {
        each: resource
        for each, resource in policy.resources.items()
        if any_kind or isinstance(resource, RatePolicy)
    }
    if not found:
        raise UsageError(
            f'{policy.source} has no resource of kind "rate"; Envoy enforces only those by quotas'
        )
    chosen = name or (next(iter(found)) if len(found) == 1 else None)
    if chosen is None or chosen not in found:
        raise UsageError(f"pass --resource with one of: {', '.join(found)}")
    return found[chosen]


def _read_tls(cert: str | None, key: str | None, ca: str | None) -> Tls | None:
    from bursar.policy import Tls

    files = [file for file in (cert, key, ca) if file is not None]
    if len(files) not in (0, 3):
        raise UsageError("TLS takes all three of --cert, --key and --ca")
    return Tls(cert=files[0], key=files[1], ca=files[2]) if files else None


def import_rules(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file.", show_default=False)],
    server: Annotated[str, typer.Option(metavar="NAME", help="The name of the rates' server.")] = "bursar",
) -> None:
    """Print a policy that does what the configuration of envoyproxy/ratelimit says.

    One resource for each unit of time that its rules have, a tenant for each rule; what cannot be said in a
    policy is refused.

    Example: bursar envoy import ratelimit.yaml > policy.toml
    """
    from bursar.integrations.envoy.importing import import_file

    typer.echo(import_file(file, server), nl=False)


def serve(
    policy: PolicyFile,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The daemon, bursar://host:port; none: decide here.", show_default=False
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Envoys reach it.")] = LISTEN,
    token: Annotated[
        str | None, typer.Option(envvar="BURSAR_TOKEN", help="For the daemon.", show_default=False)
    ] = None,
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Answer Envoys' questions about requests (RLS) in a process beside the daemon.

    `bursar serve` does that itself, where its policy has `envoy` under [daemon]; this is for more questions
    than one process can answer: any number of these can have the same address, and each has lots of its own.

    Example: bursar envoy serve policy.toml --of bursar://127.0.0.1:7070
    """
    import asyncio

    from bursar.policy import load
    from bursar.runtime import logs

    logs.configure(log, level)
    asyncio.run(_serve(load(policy), of, token, listen))


async def _serve(policy: Policy, of: str | None, token: str | None, listen: str) -> None:
    import asyncio
    import signal

    from bursar.integrations.envoy.node import Node
    from bursar.integrations.envoy.service import EnvoyService
    from bursar.runtime.client import connect
    from bursar.runtime.clock import BootClock

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with await connect(of or policy, token=token if of else None) as held:
        resources = {name: held.resource(name) for name in held.resources}
        node = Node(resources, lambda: policy, BootClock().now)
        service = EnvoyService(node, policy.daemon.tls, shared=True)
        await service.start(listen)
        await stopped.wait()
        await service.close()
