"""`bursar node list | remove`: the nodes of a fleet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, name_visitor, visit
from bursar.errors import NodeMissingError, UsageError

if TYPE_CHECKING:
    from bursar.world import World


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The nodes of a fleet: list, remove.", no_args_is_help=True)
    group.command("list", epilog=EXIT_CODES)(list_nodes)
    group.command(epilog=EXIT_CODES)(remove)
    app.add_typer(group, name="node")


def list_nodes(store: StoreUrl = None, policy: OfPolicy = None, as_json: AsJson = False) -> None:
    """List the nodes that are up, and those that went without a word.

    Example: bursar node list --store zookeeper://a:2181/bursar
    """
    rows = visit(find_store(store, policy), _read)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        from bursar.cli.tables import print_rows

        print_rows(rows)
    else:
        typer.echo("no node was ever up")


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    store: StoreUrl = None,
    policy: OfPolicy = None,
) -> None:
    """Take a node that is gone off the list of members: it is no peer any more until it joins again.

    Example: bursar node remove node-7
    """

    async def act(world: World) -> None:
        from bursar.fleet import audit, layout
        from bursar.fleet.layout import list_nodes
        from bursar.world import Delete

        if name in [node.name for node in await list_nodes(world.store)]:
            raise UsageError(f"{name} is up: stop it first")
        at_ns = world.clock.wall()
        entry = audit.record(name_visitor(), at_ns, "node", name, "removed")
        try:
            await world.store.transact([Delete(layout.member_path(name)), entry])
        except NodeMissingError:
            raise UsageError(f"{name} is not a member") from None

    visit(find_store(store, policy), act)
    typer.echo(f"{name} is no member any more")


async def _read(world: World) -> list[dict[str, Any]]:
    from bursar.fleet import layout
    from bursar.fleet.layout import list_nodes

    up = await list_nodes(world.store)
    rows: list[dict[str, Any]] = [
        {
            "node": node.name,
            "address": node.address,
            "http": node.http,
            "version": node.version,
            "build": node.build,
            "problem": node.problem,
        }
        for node in up
    ]
    known = {node.name for node in up}
    members = await world.store.children(layout.MEMBERS) if await world.store.exists(layout.MEMBERS) else []
    gone = [name for name in map(layout.unquote_name, members) if name not in known]
    return rows + [
        {"node": name, "address": "", "http": "", "version": 0, "build": "", "problem": "not up"}
        for name in gone
    ]
