"""`bursar mutate`: plant small mistakes in a copy of the source, and see whether the tests notice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(mutate)


def mutate(
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROOM", help="These rooms alone.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="The mutants are drawn by it.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 300,
    again: Annotated[bool, typer.Option("--again", help="Only the survivors in the --out file.")] = False,
    out: Annotated[Path, typer.Option(help="Where what came of each is kept.")] = Path("mutants.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Plant mistakes in a copy of the source, one at a time, and run the tests beside it.

    A mutant that no test notices is a survivor, printed as a diff. Exits with 1 if fewer than 85 % are
    noticed. What was found so far is in the --out file, also when this is ended early; the same command
    then goes on from there.

    Example: bursar mutate --only quotas --count 50 --seed 7
    """
    from bursar_lab.mutation.campaign import Campaign, find_root
    from bursar_lab.mutation.report import read_report, sum_up, write_report
    from bursar_lab.mutation.rooms import ROOMS
    from bursar_lab.mutation.trials import Copy

    for name in only or ():
        if name not in ROOMS:
            raise UsageError(f"there is no room {name!r}; there are: {', '.join(ROOMS)}")
    rooms = [ROOMS[name] for name in only or ROOMS]
    with tempfile.TemporaryDirectory(prefix="bursar-mutants-") as folder:
        copy = Copy(find_root(), Path(folder))
        campaign = Campaign(
            copy, rooms, lambda line: typer.echo(line, err=True), lambda report: write_report(report, out)
        )
        if again:
            report = campaign.try_survivors(read_report(out))
        else:
            report = campaign.draw(seed, count, read_report(out).trials if out.exists() else ())
        typer.echo(out.read_text() if as_json else "\n".join(sum_up(report, copy.read)))
    if not report.is_good:
        raise typer.Exit(FAILED)
