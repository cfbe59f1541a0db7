"""`bursar profile`: what a pool's data node and one client can do on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

CLIENTS_MAX = 64
SECONDS_MIN, SECONDS_MAX = 2, 600


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(profile)


def profile(
    seconds: Annotated[float, typer.Option(help="How long each measurement runs.")] = 5.0,
    clients: Annotated[int, typer.Option(help="How many clients saturate the node.")] = 4,
    single: Annotated[bool, typer.Option("--single", help="Single reads, not many at once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure a client alone, all together, and how much that varies.

    Real processes read records in shared memory. The last lines are for a policy: paste them into
    the resource of kind pool.

    Example: bursar profile --seconds 10
    """
    if not 1 <= clients <= CLIENTS_MAX or not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise UsageError(
            f"--clients is 1 to {CLIENTS_MAX}, --seconds {SECONDS_MIN} to {SECONDS_MAX} (sigma needs seconds)"
        )
    from bursar.profile.measures import measure_profile
    from bursar.profile.processes import open_processes

    with open_processes() as processes:
        found = measure_profile(processes, seconds, many=not single, clients=clients)
    # A client alone on an idle machine may outdo its share of a busy one, never the whole node.
    client = min(found.client, found.capacity)
    policy = {"capacity": f"{found.capacity:.0f}/s", "client_capacity": f"{client:.0f}/s"}
    if as_json:
        figures = {"C_L": round(found.client), "C_G": round(found.capacity), "sigma": round(found.sigma)}
        typer.echo(json.dumps({**figures, "clients": clients, "seconds": seconds, "policy": policy}))
        return
    typer.echo(f"a client alone: {found.client:,.0f} I/Os a second (C_L)")
    typer.echo(f"{clients} clients together: {found.capacity:,.0f} I/Os a second (C_G)")
    typer.echo(f"deviation from second to second: {found.sigma:,.0f} (sigma)")
    for key, value in policy.items():
        typer.echo(f'{key} = "{value}"')
