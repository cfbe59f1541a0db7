"""`bursar quota show | fence NODE | topup ACCOUNT AMOUNT | accept ACCOUNT`: a budget, who has
what of it, and changing it. (`billing` has usage, balance and adjust.)"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli import billing
from bursar.cli.billing import turn_pages
from bursar.cli.exits import EXIT_CODES
from bursar.cli.places import DEFAULT_POLICY, ResourceName, choose
from bursar.cli.reaching import DAEMON, At, Authority, Certificate, Key, WhoAsks, read_tls
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import (
    OfPolicy,
    StoreUrl,
    check_store,
    name_visitor,
    open_visitor,
    read_policy,
    store_of,
)
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.quotas.layout import Layout
    from bursar.world import World

FIELDS = ("unspent", "held", "spent")

Act = Callable[["World", "Layout"], Awaitable[Any]]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="A budget: show, usage, balance, topup, adjust, fence, accept.", no_args_is_help=True
    )
    group.command(epilog=EXIT_CODES)(show)
    group.command(epilog=EXIT_CODES)(fence)
    group.command(epilog=EXIT_CODES)(accept)
    # A cut is a negative amount, which is no option.
    group.command(epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True})(topup)
    billing.register(group)
    app.add_typer(group, name="quota")


def show(
    resource: ResourceName = None,
    at: At = DAEMON,
    as_json: AsJson = False,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Show who holds what of a budget, where, and how long it lasts.

    The daemon asks every node. `missing` is the audit: units that are neither at a node nor on
    their way must be 0; it is unknown (null in JSON) if not every node answered. Exits with 1 if
    units are missing or the daemon cannot be reached.

    Example: bursar quota show --resource llm
    """
    import asyncio

    from bursar.cli.exits import FAILED

    found = asyncio.run(_survey(resource, at, name, read_tls(cert, key, ca)))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    if any(total["missing"] for total in found["whole"].values()):
        raise typer.Exit(FAILED)


async def _survey(resource: str | None, at: str, name: str | None, tls: Any) -> dict[str, Any]:
    from bursar.runtime.client import connect, read_url

    read_url(at)
    async with await connect(at, name=name, tls=tls) as b:
        quotas = [found for found in b.resources if b.resource(found).kind == "quota"]
        chosen = choose("quota", resource, quotas, at)
        rows = [row async for row in turn_pages(b.resource(chosen), "survey")]
        return {"resource": chosen, "whole": {row.pop("account"): row for row in rows}}


def _print(found: Mapping[str, Any]) -> None:
    from bursar.cli.tables import print_rows

    rows: list[dict[str, Any]] = []
    for account, total in found["whole"].items():
        lasts = "" if total["lasts_s"] is None else f"{total['lasts_s']:.0f} s"
        missing = "unknown" if total["missing"] is None else total["missing"]
        if total["fenced"]:
            typer.echo(total["fenced"], err=True)
        whole = {"in flight": total["in_flight"], "missing": missing, "lasts": lasts}
        rows.append(
            {
                "account": account,
                "ledger": "(all)",
                "limit": total["limit"],
                **{field: total[field] for field in FIELDS},
                "a second": round(total["rate"], 1),
                **whole,
            }
        )
        for ledger, line in total["ledgers"].items():
            parts = {field: line[field] for field in FIELDS}
            rows.append({"account": "", "ledger": ledger, **parts, "a second": round(line["rate"], 1)})
    if rows:
        print_rows(rows)
    else:
        typer.echo(f"nothing was acquired from {found['resource']} yet")


def fence(
    node: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    policy: OfPolicy = None,
    store: StoreUrl = None,
    resource: ResourceName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write off the units of a node that is gone.

    Until then a budget cannot be known to be used up, because the node may have units left. If it
    comes back with its own ledger its units count again; without one it begins a new ledger.

    Example: bursar quota fence node-7 --store sqlite:///var/lib/bursar/store.db --yes
    """
    from bursar.quotas import operations

    if not yes:
        raise UsageError(f"this writes off what {node} has left: add --yes if it is gone for good")

    async def act(world: World, layout: Layout) -> list[str]:
        return await operations.fence(world.store, layout, node, by=name_visitor(), at_ns=world.clock.wall())

    done = _act(policy, store, resource, act)
    if as_json:
        typer.echo(json.dumps({"fenced": done}))
    else:
        typer.echo("\n".join(f"{ledger}: written off" for ledger in done) or f"{node} was written off before")


def topup(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", show_default=False)],
    amount: Annotated[int, typer.Argument(metavar="AMOUNT", show_default=False)],
    policy: OfPolicy = None,
    store: StoreUrl = None,
    resource: ResourceName = None,
    as_json: AsJson = False,
) -> None:
    """Add units to an account while it is in use; a negative amount takes unspent ones out.

    ACCOUNT is a tenant (then its present window is meant) or an account that `show` names. The new
    limit holds until the policy's limit for the tenant is changed. Running it twice adds twice. When it is
    done, every node goes by the new limit, or is named (`unheard`).

    Example: bursar quota topup acme 500000 --store sqlite:///var/lib/bursar/store.db
    """
    from bursar.quotas import operations
    from bursar.quotas.accounts import total

    async def act(world: World, layout: Layout) -> dict[str, Any]:
        name, mints, asleep = await operations.top_up(
            world.store, layout, account, amount, by=name_visitor(), at_ns=world.clock.wall()
        )
        unheard = await operations.wait_heard(world.store, layout, world.clock)
        return {"account": name, "limit": total(mints), "asleep": asleep, "unheard": unheard}

    done = _act(policy, store, resource, act)
    if as_json:
        typer.echo(json.dumps(done))
        return
    typer.echo(f"{done['account']}: the limit is {done['limit']:,} now")
    for ledger, units in done["asleep"].items():
        typer.echo(f"  {units:,} of them are {ledger}'s, which is not up and may owe them for an earlier cut")
    for ledger in done["unheard"]:
        typer.echo(f"  {ledger} has not carried it out yet: until it does, it grants by what was before")


def accept(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", show_default=False)],
    resource: ResourceName = None,
    at: At = DAEMON,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Go on with an account that the audit fenced.

    Where the ledgers have more of an account than was ever minted, nothing is granted of it: one of
    them counts units twice. Find it (`show` lists what each has) and stop it; then this lets what is
    there stand.

    Example: bursar quota accept acme@2026-11-01..2026-12-01 --resource llm --yes
    """
    import asyncio

    from bursar.runtime.client import connect, read_url

    if not yes:
        raise UsageError(f"this lets stand what {account} has too much: add --yes when the cause is found")
    read_url(at)
    tls = read_tls(cert, key, ca)

    async def go() -> Mapping[str, Any]:
        async with await connect(at, name=name, tls=tls) as b:
            quotas = [found for found in b.resources if b.resource(found).kind == "quota"]
            said: Mapping[str, Any] = await b.resource(choose("quota", resource, quotas, at)).verb(
                "accept", account=account
            )
            return said

    typer.echo(f"{account}: {asyncio.run(go())['accepted']:,} let stand, it is granted of again")


def _act(policy: Path | None, store: str | None, resource: str | None, act: Act) -> Any:
    """Do it at the store, as a visitor."""
    import asyncio

    from bursar.fleet.identity import read_identity
    from bursar.policy import load
    from bursar.quotas.layout import Layout

    loaded = load(policy or DEFAULT_POLICY) if store is None else None
    url = check_store(store or "") if loaded is None else store_of(loaded)

    async def go() -> Any:
        world = await open_visitor(url)
        try:
            terms = loaded or await read_policy(world.store)
            quotas = [name for name, found in terms.resources.items() if found.kind == "quota"]
            chosen = choose("quota", resource, quotas, terms.source)
            found = await read_identity(world.store)
            return await act(world, Layout(chosen, found.epoch if found else 1))
        finally:
            await world.close()

    return asyncio.run(go())
