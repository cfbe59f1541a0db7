"""`bursar fuzz`: hostile bytes for every parser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(fuzz)


def fuzz(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TARGET]...", help="All, unless named.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="For each target.")] = 10.0,
    at_once: Annotated[int, typer.Option(min=1, help="Targets at a time.")] = 1,
    seed: Annotated[int, typer.Option(help="Where it begins.")] = 1,
    out: Annotated[Path, typer.Option(help="Where inputs and faults go.")] = Path("results/fuzz"),
    replay: Annotated[Path | None, typer.Option(help="Try this one input, of the target named.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Make the corpus in the source anew, from --out.")
    ] = False,
) -> None:
    """Give every parser bytes that are almost right.

    Exit code 1 if there were faults, or a target of which too few lines were reached. Faults are left in
    the --out directory, each with the command that replays it.

    Example: bursar fuzz policy --minutes 1
    """
    from bursar_lab.fuzzing import campaign
    from bursar_lab.fuzzing.target import load_targets

    wanted = names or []
    if replay is not None:
        _replay(wanted, replay)
    elif keep:
        for target in load_targets(wanted):
            typer.echo(f"{target.name}: {campaign.keep(target, out)} inputs in {target.corpus}")
    else:
        _run(wanted, minutes * 60, at_once, seed, out)


def _replay(names: list[str], file: Path) -> None:
    from bursar_lab.fuzzing.target import load_targets

    if len(names) != 1:
        raise UsageError("name the one target that the input is for: bursar fuzz policy --replay FILE")
    (target,) = load_targets(names)
    error = target.try_one(file.read_bytes())
    if error is not None:
        raise error
    typer.echo(f"{target.name} takes it, or refuses it as it should")


def _run(names: list[str], seconds: float, at_once: int, seed: int, out: Path) -> None:
    from rich.console import Console

    from bursar.cli.tables import print_rows
    from bursar_lab.fuzzing import campaign, live
    from bursar_lab.fuzzing.target import load_targets

    processes = [name for name in live.PROCESSES if not names or name in names]
    parsers = [name for name in names if name not in processes]
    targets = load_targets(parsers) if parsers or not names else []
    with Console(stderr=True).status("") as status:
        found = campaign.run(targets, out, seconds, seed, at_once, status.update) if targets else []
        found += [live.run(live.Course(name, seconds, seed, status.update), out) for name in processes]
    print_rows([each.row() for each in found])
    few = [each for each in found if each.reached < campaign.REACHED_MIN_PERCENT]
    for each in few:
        typer.echo(f"{each.target} misses {' '.join(each.missed[:20])}")
    for each in found:
        for fault in each.faults:
            replay = f"bursar fuzz {each.target} --replay {fault}" if each.lines else f"see {fault}"
            typer.echo(f"fault: {replay}")
    if few or any(each.faults for each in found):
        raise typer.Exit(FAILED)
