"""`bursar tasks`, and `list`, `history`, `show`, `why`, `cancel`, `dead`, `retry` and `discard` below it: the
tasks of a claim resource."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.places import Place, open_claim, placed

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What runs, what waits and why, what was given up or is over.")
    group.callback(invoke_without_command=True, epilog=EXIT_CODES)(placed(overview))
    for command in (list_tasks, history, show, why, cancel, dead, retry, discard):
        group.command(command.__name__.removesuffix("_tasks"), epilog=EXIT_CODES)(placed(command))
    app.add_typer(group, name="tasks")


def run(place: Place, verb: str, **arguments: Any) -> Any:
    import asyncio

    async def go() -> Any:
        async with open_claim(place) as ask:
            return await ask(verb, **arguments)

    return asyncio.run(go())


def describe(task: dict[str, Any]) -> dict[str, Any]:
    """As JSON can carry it."""
    return {**task, "result": task["result"].decode("utf-8", "replace")}


def overview(
    context: typer.Context,
    place: Place,
    as_json: AsJson = False,
) -> None:
    """Say what runs and where, what waits and why, what was given up, and what was over last.

    Asks the store where there is one within reach, else the daemon.

    Example: bursar tasks --store sqlite:///var/lib/bursar/store.db
    """
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from bursar.cli.overview import read_overview, write_overview

    async def go() -> dict[str, Any]:
        async with open_claim(place) as ask:
            return await read_overview(ask)

    seen = asyncio.run(go())
    if as_json:
        typer.echo(json.dumps({title: list(map(describe, rows)) for title, rows in seen.items()}, indent=2))
    else:
        typer.echo("\n".join(write_overview(seen)))


Tenant = Annotated[str | None, typer.Option(help="Only of this tenant.", show_default=False)]
Of = Annotated[str | None, typer.Option("--name", help="Only those that need this name.", show_default=False)]
FunctionName = Annotated[str | None, typer.Option("--function", help="Only these calls.", show_default=False)]


def list_tasks(
    place: Place,
    tenant: Tenant = None,
    state: Annotated[
        Literal["pending", "running"] | None, typer.Option(help="Only these.", show_default=False)
    ] = None,
    of: Of = None,
    function: FunctionName = None,
    as_json: AsJson = False,
) -> None:
    """List every task that is not over, first come first.

    Example: bursar tasks list --tenant ops --state running
    """
    filters = _leave_out(tenant=tenant, state=state, of=of, function=function)
    _print_all(run(place, "tasks", **filters), as_json)


def history(
    place: Place,
    tenant: Tenant = None,
    outcome: Annotated[
        str | None, typer.Option(help='Only "ok", "failed", "cancelled", ... ones.', show_default=False)
    ] = None,
    of: Of = None,
    function: FunctionName = None,
    most: Annotated[int, typer.Option(min=1, max=1000, help="So many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List tasks that are over, the latest first, for as long as the policy's `history`.

    Example: bursar tasks history --outcome failed --most 20
    """
    filters = _leave_out(tenant=tenant, outcome=outcome, of=of, function=function)
    _print_all(run(place, "history", most=most, **filters), as_json)


def _leave_out(**filters: str | None) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value is not None}


def _print_all(tasks: list[dict[str, Any]], as_json: bool) -> None:
    from bursar.cli.overview import name_of, write_needs

    if as_json:
        typer.echo(json.dumps([describe(task) for task in tasks], indent=2))
        return
    for task in tasks:
        stands = task["outcome"] or task["state"]
        typer.echo(f"{task['id']}  {stands:<9} {name_of(task)}  {task['tenant']}  {write_needs(task)}")
    typer.echo(f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}")


def show(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    place: Place,
    as_json: AsJson = False,
) -> None:
    """Show one task, also for a while after it is over.

    Example: bursar tasks show k52c1...
    """
    task = run(place, "read", id=id)
    if task is None:
        typer.echo(f"bursar: there is no task {id}, or it was over long ago", err=True)
        raise typer.Exit(FAILED)
    described = describe(task)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    for key, value in described.items():
        typer.echo(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def why(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    place: Place,
    as_json: AsJson = False,
) -> None:
    """Say what a task waits for: who holds each name, and its place.

    Example: bursar tasks why k52c1...
    """
    lines = run(place, "why", id=id)
    typer.echo(json.dumps(lines, indent=2) if as_json else "\n".join(lines))


def cancel(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    place: Place,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in which one that runs may stop.")] = 2.0,
) -> None:
    """Take back a task that waits, ask one that runs to stop.

    Example: bursar tasks cancel k52c1...
    """
    typer.echo(f"{id}: {run(place, 'cancel', id=id, wait=wait)}")


def dead(place: Place, as_json: AsJson = False) -> None:
    """List the tasks that were given up: they failed, or whoever did them died, too often.

    Example: bursar tasks dead --resource orders
    """
    _print_all(run(place, "dead"), as_json)


def retry(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    place: Place,
) -> None:
    """Have a task tried again that was given up.

    Example: bursar tasks retry k52c1...
    """
    run(place, "retry", id=id)
    typer.echo(f"{id}: waits to be tried again")


def discard(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    place: Place,
) -> None:
    """Forget a task that was given up.

    Example: bursar tasks discard k52c1...
    """
    run(place, "discard", id=id)
    typer.echo(f"{id}: forgotten")
