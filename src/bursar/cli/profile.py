"""`bursar profile`: what a pool's data node and one client can do on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import BursarError, UsageError

CLIENTS_MAX = 64


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(profile)


def profile(
    seconds: Annotated[float, typer.Option(help="How long each measurement runs.")] = 5.0,
    clients: Annotated[int, typer.Option(help="How many clients saturate the node.")] = 4,
    single: Annotated[bool, typer.Option("--single", help="Single reads, not many at once.")] = False,
) -> None:
    """Measure a client alone, all together, and how much that varies.

    Real processes read records in shared memory. The last lines are for a policy: paste them into
    the resource of kind pool.

    Example: bursar profile --seconds 10
    """
    if not 1 <= clients <= CLIENTS_MAX or not 1 <= seconds <= 600:
        raise UsageError(f"--clients is 1 to {CLIENTS_MAX}, --seconds 1 to 600")
    try:
        from bursar.experiments.pools.live import measure_profile, open_place
    except ModuleNotFoundError as error:
        raise BursarError(f"profiling needs the package {error.name}: pip install 'bursar[all]'") from error
    with open_place() as place:
        found = measure_profile(place, seconds, many=not single, clients=clients)
    typer.echo(f"a client alone: {found.client:,.0f} I/Os a second (C_L)")
    typer.echo(f"{clients} clients together: {found.capacity:,.0f} I/Os a second (C_G)")
    typer.echo(f"deviation from second to second: {found.sigma:,.0f} (sigma)")
    # A client alone on an idle machine may outdo its share of a busy one, never the whole node.
    client = min(found.client, found.capacity)
    typer.echo(f'capacity = "{found.capacity:.0f}/s"')
    typer.echo(f'client_capacity = "{client:.0f}/s"')
