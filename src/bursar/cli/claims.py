"""`bursar claims holders NAME | release NAME`: who holds a name, and taking it away by force."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.places import Place, placed
from bursar.cli.tasks import AsJson, describe, run
from bursar.cli.visiting import name_visitor
from bursar.errors import UsageError


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Who holds a name: holders, release.", no_args_is_help=True)
    for command in (holders, release):
        group.command(epilog=EXIT_CODES)(placed(command))
    app.add_typer(group, name="claims")


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def holders(place: Place, name: Name, as_json: AsJson = False) -> None:
    """Say who holds a name now.

    Example: bursar claims holders vm-7
    """
    tasks = run(place, "holders", of=name)
    if as_json:
        typer.echo(json.dumps([describe(task) for task in tasks], indent=2))
        return
    for task in tasks:
        needed = next((need for need in task["needs"] if need.rpartition(":")[0] == name), name)
        typer.echo(f"{task['id']}  {needed}  {task['tenant']}  held by {task['holder']}")
    if not tasks:
        typer.echo(f"nobody holds {name}")


def release(
    place: Place,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Take a name, and all else they hold, from those who hold it.

    Their fences are old from then on: where a guard stands, they are refused.

    Example: bursar claims release vm-7 --yes
    """
    if not yes:
        raise UsageError(f"this takes {name} from whoever uses it: add --yes if you are sure")
    removed = run(place, "force_release", of=name, by=name_visitor())
    typer.echo("\n".join(f"{id}: removed" for id in removed) or f"nobody holds {name}")
