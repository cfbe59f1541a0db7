"""`bursar quota usage | balance | adjust ACCOUNT AMOUNT`: what tenants used, what they have left, and
corrections of their bills."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.places import ResourceName, choose
from bursar.cli.reaching import DAEMON, At, Authority, Certificate, Key, WhoAsks, read_tls
from bursar.cli.tasks import AsJson

USAGE = (
    "tenant", "begin", "end", "unit", "limit", "used", "adjusted", "billed", "held", "written_off",
    "complete", "final",
)  # fmt: skip
TenantName = Annotated[str, typer.Option("--tenant", help="Of this tenant only.")]


def register(group: typer.Typer) -> None:
    group.command(epilog=EXIT_CODES)(usage)
    group.command(epilog=EXIT_CODES)(balance)
    # A credit note is a negative amount, which is no option.
    group.command(epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True})(adjust)


async def turn_pages(resource: Any, verb: str, **asked: Any) -> AsyncIterator[dict[str, Any]]:
    """All rows, however many there are: a page after the other."""
    after: int | None = 0
    while after is not None:
        page = await resource.verb(verb, after=after, **asked)
        for row in page["rows"]:
            yield dict(row)
        after = page["next"]


def usage(
    resource: ResourceName = None,
    tenant: TenantName = "",
    since: Annotated[str, typer.Option(help="Windows that begin from then on (2026-11-01, UTC).")] = "",
    until: Annotated[str, typer.Option(help="Windows that begin before then.")] = "",
    form: Annotated[
        Literal["table", "csv", "jsonl"], typer.Option("--format", help="How to print.")
    ] = "table",
    at: At = DAEMON,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """What tenants used, window by window: for bills.

    A window is final when it is over at every node, an hour has passed, and nothing of it is held;
    what it says then no longer changes, but for corrections (`bursar quota adjust`), which are told apart.

    Example: bursar quota usage --since 2026-10-01 --format csv > october.csv
    """
    asked = {"tenant": tenant, "since": since, "until": until}
    rows = _list("usage", resource, at, name, read_tls(cert, key, ca), asked)
    if form == "jsonl":
        for row in rows:
            typer.echo(json.dumps(row))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, USAGE)
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print(rows, "nothing was used in that time")


def balance(
    resource: ResourceName = None,
    tenant: TenantName = "",
    at: At = DAEMON,
    as_json: AsJson = False,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """What tenants have left in their present windows, over all nodes.

    Each node is waited for half a second; where one did not answer, `complete` is false.

    Example: bursar quota balance --tenant acme
    """
    rows = _list("balance", resource, at, name, read_tls(cert, key, ca), {"tenant": tenant})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print(rows, "nothing was used in the present window")


def adjust(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", show_default=False)],
    amount: Annotated[int, typer.Argument(metavar="AMOUNT", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why: it is kept with the correction.", show_default=False)],
    resource: ResourceName = None,
    at: At = DAEMON,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Correct what a tenant is to pay for in a window: a credit note is negative.

    ACCOUNT is a tenant (its present window), or a tenant with the begin of a window. Units are not
    moved: `bursar quota topup` does that.

    Example: bursar quota adjust acme@2026-10-01 -500 --reason "outage on the 12th"
    """
    import asyncio

    tls = read_tls(cert, key, ca)

    async def go() -> Any:
        async with _reach(resource, at, name, tls) as found:
            return await found.verb("adjust", account=account, amount=amount, reason=reason)

    said = asyncio.run(go())
    typer.echo(f"{account}: adjusted by {said['adjusted']:,} in all")
    for ledger in said["silent"]:
        typer.echo(f"  {ledger} did not answer, and will ask for it")


@asynccontextmanager
async def _reach(resource: str | None, at: str, name: str | None, tls: Any) -> AsyncIterator[Any]:
    from bursar.runtime.client import connect, read_url

    read_url(at)
    async with await connect(at, name=name, tls=tls) as b:
        quotas = [found for found in b.resources if b.resource(found).kind == "quota"]
        yield b.resource(choose("quota", resource, quotas, at))


def _list(
    verb: str, resource: str | None, at: str, name: str | None, tls: Any, asked: dict[str, str]
) -> list[dict[str, Any]]:
    import asyncio

    async def go() -> list[dict[str, Any]]:
        async with _reach(resource, at, name, tls) as found:
            return [row async for row in turn_pages(found, verb, **asked)]

    return asyncio.run(go())


def _print(rows: list[dict[str, Any]], nothing: str) -> None:
    from bursar.cli.tables import print_rows

    if rows:
        print_rows(rows)
    else:
        typer.echo(nothing)
