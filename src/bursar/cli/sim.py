"""`bursar sim NAME`: replay one seed, run many, or search every order of events; `bursar sim coverage`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.coverage import print_coverage
from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.sim.errors import RunFailedError

COVERAGE = "coverage"
SHOWN_LINES = 30
SEEDS_MAX = 10_000_000


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(sim)


def sim(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The scenario, or package.module:Scenario; without one, they are listed. "
            '"coverage": what they exercise.',
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="After coverage: only of this kind.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Replay this seed and print its history.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=0, max=SEEDS_MAX, help="Run so many seeds, from --seed on, on all cores.")
    ] = 0,
    search: Annotated[
        bool, typer.Option("--search", help="Try every order of events of the scenario's small world.")
    ] = False,
    last: Annotated[
        int | None, typer.Option(min=1, help="Print only so many lines of the history.", show_default="all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the coverage as JSON.")] = False,
) -> None:
    """Run a protocol in virtual time, under seeded faults.

    One seed is one history, byte for byte. A campaign stops at the first seed that fails and prints
    the command that replays it. `coverage` runs some seeds of every kind's scenarios and prints which keys
    of policies (with how many values), verbs and faults they exercised, and which none did.

    Examples: bursar sim rate --seed 7; bursar sim rate --seeds 1000; bursar sim quota --search;
    bursar sim coverage rate --seeds 50
    """
    if name == COVERAGE:
        print_coverage(kind, seeds, as_json)
    elif kind is not None or as_json:
        raise UsageError("a kind and --json are for `bursar sim coverage`: leave them out")
    elif name is None:
        list_scenarios()
    elif search and seeds:
        raise UsageError("--search tries every order of events and takes no seeds: leave out --seeds")
    elif search:
        search_small_world(name)
    elif seeds:
        run_seeds(name, seed, seeds)
    else:
        replay_seed(name, seed, last)


def list_scenarios() -> None:
    from bursar.sim.scenarios import scenario_names

    for name in scenario_names():
        typer.echo(name)


def replay_seed(name: str, seed: int, last: int | None) -> None:
    """Print the history of one seed; exit with 1 if it ends in a failure."""
    from bursar.sim.errors import RunFailedError
    from bursar.sim.scenarios import make_scenario
    from bursar.sim.simulation import Simulation

    simulation = Simulation(name, make_scenario(name), seed)
    failure: RunFailedError | None = None
    try:
        simulation.run()
    except RunFailedError as error:
        failure = error
    typer.echo("\n".join(simulation.history.text(last)))
    if failure is not None:
        typer.echo(f"FAILED at {failure.at_ns / 1e9:.9f} s: {failure.why}", err=True)
        raise typer.Exit(FAILED)


def run_seeds(name: str, first_seed: int, seeds: int) -> None:
    """Run a campaign with a progress bar; exit with 1 at the first seed that fails."""
    from rich.console import Console
    from rich.progress import Progress

    from bursar.sim.campaign import run_campaign

    begun = time.perf_counter()
    ran = events = 0
    failure = None
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{name}", total=seeds)
        for chunk in run_campaign(name, first_seed, seeds):
            ran, events, failure = ran + chunk.seeds, events + chunk.events, chunk.failure
            progress.advance(bar, chunk.seeds)
    seconds = time.perf_counter() - begun
    if failure is not None:
        print_failure(failure, ran)
        raise typer.Exit(FAILED)
    typer.echo(f"{name}: {ran:,} seeds, {events:,} events in {seconds:.1f} s, nothing found")


def print_failure(failure: RunFailedError, ran: int) -> None:
    typer.echo(f"seed {failure.seed} fails, after {ran - 1:,} seeds that do not")
    typer.echo(f"  {failure.why}, at {failure.at_ns / 1e9:.9f} s")
    typer.echo(f"  replay: {failure.replay}")
    _print_last(failure.history)


def _print_last(history: Sequence[str]) -> None:
    left_out = max(0, len(history) - SHOWN_LINES)
    typer.echo(f"  the end of its history{' (the replay has it all)' if left_out else ''}:")
    for line in history[left_out:]:
        typer.echo(f"  {line}")


def search_small_world(name: str) -> None:
    """Search, and exit with 1 for a violation or a search that could not be finished."""
    from bursar.sim.scenarios import make_search

    search = make_search(name)
    begun = time.perf_counter()
    found = search.run()
    typer.echo(f"{name}: {found}")
    typer.echo(f"{time.perf_counter() - begun:.1f} s", err=True)
    if found.why is not None or not found.complete:
        raise typer.Exit(FAILED)
