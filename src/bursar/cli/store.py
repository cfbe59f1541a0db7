"""`bursar store show | adopt`: which store this is, and going on with one that was rebuilt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, name_visitor, visit
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.layout import Identity
    from bursar.world import World


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The fleet's store: show, adopt.", no_args_is_help=True)
    for command in (show, adopt):
        group.command(epilog=EXIT_CODES)(command)
    app.add_typer(group, name="store")


def show(store: StoreUrl = None, policy: OfPolicy = None) -> None:
    """Show which store this is: its name, its epoch, the version of the policy in it.

    Example: bursar store show --store sqlite:///var/lib/bursar/store.db
    """

    async def read(world: World) -> dict[str, Any]:
        from bursar.fleet.documents import read_head
        from bursar.fleet.identity import read_identity

        found, head = await read_identity(world.store), await read_head(world.store)
        return {
            "uuid": found.uuid if found else None,
            "epoch": found.epoch if found else None,
            "sealed": found.sealed if found else "",
            "policy_version": head[0].version if head else None,
        }

    typer.echo(json.dumps(visit(find_store(store, policy), read), indent=2))


def adopt(
    state: Annotated[Path, typer.Option(help="A node's state directory, which belongs to the lost store.")],
    store: StoreUrl = None,
    policy: OfPolicy = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Go on with a store that was rebuilt, or restored from a backup.

    Nodes refuse a store that is not the one their state belongs to. This gives the store that name, in a
    new epoch. Stop every node first; what they had handed out counts as spent.

    Example: bursar store adopt --store zookeeper://a:2181/bursar --state bursar-state/a --yes
    """
    if not yes:
        raise UsageError("this ties the nodes to another store for good: stop them all, then add --yes")
    known = _read_state(state)

    async def act(world: World) -> Identity:
        from bursar.fleet import identity
        from bursar.fleet.layout import list_nodes

        up = await list_nodes(world.store)
        if up:
            raise UsageError(f"{', '.join(node.name for node in up)} is up: stop every node first")
        return await identity.adopt(world.store, known, by=name_visitor(), at_ns=world.clock.wall())

    adopted = visit(find_store(store, policy), act)
    typer.echo(f"the store is {adopted.uuid} now, epoch {adopted.epoch}")


def _read_state(state: Path) -> Identity:
    import msgspec

    from bursar.runtime.membership import STORE_FILE, read_known

    try:
        return read_known((state / STORE_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{state} does not say which store it belongs to: {error}") from error
