"""`bursar why RESOURCE TENANT`: why a tenant gets what it gets, asked of a running daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.reaching import DAEMON, At, Authority, Certificate, Key, WhoAsks, read_tls

if TYPE_CHECKING:
    from bursar.policy import Tls
    from bursar.resource import Explanation


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(why)


def why(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", show_default=False)],
    tenant: Annotated[str, typer.Argument(metavar="TENANT", show_default=False)],
    at: At = DAEMON,
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON.")] = False,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Say why a tenant gets what it gets.

    Asks the daemon, which answers with the steps of its decision and the figures behind them. A
    daemon that cannot be reached exits with 1, a resource that it does not have with 2. A token,
    where the daemon wants one, is read from BURSAR_TOKEN.

    Example: bursar why cache acme --at bursar://127.0.0.1:7070
    """
    import asyncio

    explanation = asyncio.run(_ask(resource, tenant, at, name, read_tls(cert, key, ca)))
    typer.echo(json.dumps(_describe(explanation), indent=2) if as_json else _write(explanation))


async def _ask(resource: str, tenant: str, at: str, name: str | None, tls: Tls | None) -> Explanation:
    from bursar.runtime.client import connect, read_url

    read_url(at)
    async with await connect(at, name=name, tls=tls) as b:
        return await b.explain(resource, tenant)


def _describe(explanation: Explanation) -> dict[str, Any]:
    import msgspec

    described: dict[str, Any] = msgspec.to_builtins(explanation)
    return described


def _write(explanation: Explanation) -> str:
    head = f"{explanation.tenant} at {explanation.resource} ({explanation.kind})"
    sentences = [f"  {sentence}" for sentence in explanation.sentences]
    width = max((len(name) for name in explanation.figures), default=0)
    figures = [f"    {name:<{width}}  {value}" for name, value in explanation.figures.items()]
    return "\n".join([head, *sentences, *figures])
