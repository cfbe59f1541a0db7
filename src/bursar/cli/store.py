"""`bursar store show | adopt | check | copy`: which store this is, what it is like, moving to another."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.visiting import (
    OfPolicy,
    StoreUrl,
    check_store,
    find_store,
    name_visitor,
    visit,
)
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.layout import Identity
    from bursar.stores.examining import Findings
    from bursar.world import World


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The fleet's store: show, check, copy, adopt.", no_args_is_help=True)
    for command in (show, check, copy, adopt):
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
            "form": found.form if found else None,
            "sealed": found.sealed if found else "",
            "policy_version": head[0].version if head else None,
        }

    typer.echo(json.dumps(visit(find_store(store, policy), read, any_form=True), indent=2))


def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="The store.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Look at a store: its version, settings that would break a promise, how fast it answers.

    Writes to nodes of its own, and removes them. Exit code 1 if something should be mended.

    Example: bursar store check postgresql://bursar@db1,db2/bursar
    """
    from bursar.stores import TIMEOUT_NS
    from bursar.stores.examining import examine

    findings = visit(check_store(url), lambda world: examine(world.store, TIMEOUT_NS), any_form=True)
    if as_json:
        typer.echo(json.dumps(asdict(findings), indent=2))
    else:
        _print(findings)
    if findings.problems:
        raise typer.Exit(FAILED)


def _print(findings: Findings) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=findings.engine, show_header=False)
    for name, fact in findings.facts.items():
        table.add_row(name, fact)
    for name, figure in findings.figures.items():
        table.add_row(name, f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}")
    console = Console()
    console.print(table)
    for problem in findings.problems:
        console.print(f"[red]![/] {problem}", highlight=False)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store in use.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty one.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Move the fleet to another store, while no node runs.

    FROM is sealed: no node starts on it any more. Nodes keep their state and are started with TO, which is
    the same store in a new epoch.

    Example: bursar store copy sqlite:///var/lib/bursar/store.db postgresql://bursar@db1,db2/bursar --yes
    """
    from bursar.fleet import copying
    from bursar.stores.addresses import hide_password

    if not yes:
        raise UsageError("no node starts on the old store afterwards: stop them all, then add --yes")

    async def act(old: World) -> tuple[int, Identity]:
        from bursar.stores import open_store

        new = await open_store(check_store(target), clock=old.clock, name="copy")
        try:
            return await copying.copy(
                old.store, new, hide_password(target), by=name_visitor(), at_ns=old.clock.wall()
            )
        finally:
            await new.close()

    count, copied = visit(check_store(source), act)
    typer.echo(f"{count} nodes copied; {hide_password(target)} is {copied.uuid} now, epoch {copied.epoch}")


def adopt(
    store: StoreUrl = None,
    state: Annotated[
        Path | None,
        typer.Option(help="A node's state directory; none if all were lost.", show_default=False),
    ] = None,
    policy: OfPolicy = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Go on with a store that was rebuilt, restored from a backup, or used by an older bursar.

    Nodes refuse a store that is not the one their state belongs to. This gives the store that name, in a
    new epoch. Stop every node first; what they had handed out counts as spent.

    Example: bursar store adopt --store zookeeper://a:2181/bursar --state bursar-state/a --yes
    """
    if not yes:
        raise UsageError("this ties the nodes to another store for good: stop them all, then add --yes")
    known = None if state is None else _read_state(state)

    async def act(world: World) -> Identity:
        from bursar.fleet import identity
        from bursar.fleet.layout import list_nodes

        up = await list_nodes(world.store)
        if up:
            raise UsageError(f"{', '.join(node.name for node in up)} is up: stop every node first")
        return await identity.adopt(world.store, known, by=name_visitor(), at_ns=world.clock.wall())

    adopted = visit(find_store(store, policy), act, any_form=True)
    typer.echo(f"the store is {adopted.uuid} now, epoch {adopted.epoch}")


def _read_state(state: Path) -> Identity:
    import msgspec

    from bursar.runtime.membership import STORE_FILE, read_known

    try:
        return read_known((state / STORE_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{state} does not say which store it belongs to: {error}") from error
