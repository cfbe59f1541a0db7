"""`bursar history`: the versions of the fleet's policy."""

from __future__ import annotations

import json

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, visit, write_time


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(history)


def history(store: StoreUrl = None, policy: OfPolicy = None, as_json: AsJson = False) -> None:
    """List the versions of the fleet's policy, the newest first.

    Example: bursar history --store sqlite:///var/lib/bursar/store.db
    """
    from bursar.fleet.documents import list_versions

    versions = visit(find_store(store, policy), lambda world: list_versions(world.store))
    rows = [
        {"version": each.number, "at": write_time(each.at_ns), "by": each.by, "note": each.note}
        for each in versions
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        from bursar.cli.tables import print_rows

        print_rows(rows)
    else:
        typer.echo("no policy was applied yet")
