"""`bursar announce RESOURCE TENANT TOKENS`: a job says of a share that its burst will come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.reaching import DAEMON, At, Authority, Certificate, Key, WhoAsks, read_tls
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Tls


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(announce)


def announce(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", show_default=False)],
    tenant: Annotated[str, typer.Argument(metavar="TENANT", show_default=False)],
    tokens: Annotated[str, typer.Argument(metavar="TOKENS", show_default=False)],
    after: Annotated[str, typer.Option("--in", help="When it begins, from now on.")] = "0s",
    lasting: Annotated[str, typer.Option("--for", help="How long it is waited for.")] = "1min",
    at: At = DAEMON,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Tell a share that a tenant's burst will come.

    Until then the tenant's part is lent to others; when it begins, the tenant has its part at once and
    is paid back. For the prologue of a job. TOKENS is a number, or a size such as 10GiB; 0 takes back what
    was announced. A token, where the daemon wants one, is read from BURSAR_TOKEN.

    Example: bursar announce ost0 dd.500 40GiB --in 30s --for 5min
    """
    import asyncio

    asked = {"tenant": tenant, "tokens": tokens, "after": after, "lasting": lasting}
    found = asyncio.run(_ask(resource, asked, at, name, read_tls(cert, key, ca)))
    typer.echo(
        f"{tenant}: {found['tokens']} tokens, in {found['starts_in']:g} s, waited for until "
        f"{found['ends_in']:g} s from now"
        if found["tokens"]
        else f"{tenant}: no burst is announced"
    )


async def _ask(resource: str, asked: dict[str, Any], at: str, name: str | None, tls: Tls | None) -> Any:
    from bursar.runtime.client import connect, read_url

    read_url(at)
    async with await connect(at, name=name, tls=tls) as b:
        found = b.resource(resource)
        if found.kind != "share":
            raise UsageError(f"{resource} is of kind {found.kind}; bursts are announced to a share")
        return await found.verb("announce", **asked)
