"""`bursar storm KIND|all`: a fleet, its users and its bad nights, run through the public door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar_lab.storm.plan import Plan
    from bursar_lab.storm.planted import Bug

KINDS = ("rate", "share", "pool", "quota", "claim", "all")
STORES = ("sqlite", "zookeeper", "postgresql", "etcd")
SETTINGS = ("defaults", "drawn")
NODES_MAX = 9

Out = Annotated[Path | None, typer.Option(help="The folder to leave.", show_default=False)]
Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="What a storm left.", exists=True, file_okay=False)
]
Loopback = Annotated[bool, typer.Option("--loopback", help="No namespaces, even as root.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="A fleet of real processes in bad weather.", no_args_is_help=True)
    for kind in KINDS:
        group.command(kind, epilog=EXIT_CODES)(_make_storm(kind))
    for command in (again, shrink, check, planted):
        group.command(epilog=EXIT_CODES)(command)
    app.add_typer(group, name="storm")


def _make_storm(kind: str) -> Callable[..., None]:
    def storm(
        minutes: Annotated[float, typer.Option(min=0.2, help="How long.")] = 1.0,
        seed: Annotated[int, typer.Option(help="Everything is drawn by it.")] = 1,
        store: Annotated[str, typer.Option(help="sqlite, zookeeper, postgresql or etcd.")] = "sqlite",
        nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many at the beginning.")] = 3,
        settings: Annotated[str, typer.Option(help="defaults, or drawn from the schema.")] = "defaults",
        out: Out = None,
        loopback: Loopback = False,
        plant: Annotated[str, typer.Option(metavar="NAME", help="A bug to start everybody with.")] = "",
    ) -> None:
        from bursar_lab.storm.plan import draw_plan
        from bursar_lab.storm.run import find_ability

        for name, value, known in (("--store", store, STORES), ("--settings", settings, SETTINGS)):
            if value not in known:
                raise UsageError(f"{name} {value}: it is {' or '.join(known)}")
        plan = draw_plan(kind, seed, minutes * 60, store, nodes, settings, find_ability(not loopback))
        plan.planted = _find_bugs(plant)[0].name if plant else ""
        command = (
            f"bursar storm {kind} --minutes {minutes:g} --seed {seed} --store {store} --nodes {nodes} "
            f"--settings {settings}{' --loopback' if loopback else ''}{f' --plant {plant}' if plant else ''}"
        )
        _carry_out(plan, out or Path(f"storm-{kind}-{store}-{seed}"), command)

    what = "every kind at once" if kind == "all" else f"the kind {kind}"
    storm.__doc__ = f"""Storm {what}, and judge what clients were told.

    A folder is left with the histories, the logs and the verdict. Exits with 1 if a promise was
    broken, or if it could not be judged.

    Example: bursar storm {kind} --minutes 1 --seed 7
    """
    return storm


def _carry_out(plan: Plan, folder: Path, command: str) -> None:
    from bursar_lab.storm.report import print_end
    from bursar_lab.storm.run import Storm

    typer.echo(f"storm of {plan.kind}, {plan.seconds:g} s, seed {plan.seed}, into {folder}")
    typer.echo(f"again: {command}")
    for missing in plan.left_out:
        typer.echo(f"left out: {missing}")
    run = Storm(plan, folder.resolve(), command, typer.echo)
    run.run()
    if not print_end(folder, run.missed, typer.echo):
        raise typer.Exit(FAILED)


def again(folder: Folder, out: Out = None) -> None:
    """Carry out a folder's plan once more.

    Example: bursar storm again storm-rate-sqlite-7
    """
    from bursar_lab.storm.plan import read_plan

    plan = read_plan(folder / "plan.json")
    _carry_out(plan, out or folder.with_name(f"{folder.name}-again"), f"bursar storm again {folder}")


def shrink(
    folder: Folder,
    runs: Annotated[int, typer.Option(min=1, help="How often to try.")] = 30,
    out: Out = None,
) -> None:
    """Drop faults, changes, operations and clients while the same promise is still broken.

    Example: bursar storm shrink storm-rate-sqlite-7 --runs 20
    """
    from bursar_lab.storm.shrink import shrink

    shrink(folder, out or folder.with_name(f"{folder.name}-small"), runs, typer.echo)


def check(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Judge a storm by what its clients were told.

    Reads the histories and policies in DIR, writes DIR/verdict.json, and exits with 1 if a promise
    was broken or it could not be judged.

    Example: bursar storm check results/storm-7
    """
    from bursar_lab.storm.checker.verdict import describe, judge_folder, write_report

    verdict = judge_folder(folder)
    if as_json:
        typer.echo(json.dumps(describe(verdict), indent=2))
    else:
        typer.echo("\n".join(write_report(verdict)))
    if not verdict.is_right:
        raise typer.Exit(FAILED)


def planted(
    minutes: Annotated[float, typer.Option(min=0.2, help="For each bug, at most.")] = 20.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="These alone.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first storm; the next has the next.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder for what the storms leave.")] = Path("storm-planted"),
    loopback: Loopback = False,
) -> None:
    """Plant one bug in each layer, and storm until it is found.

    The same storm without a bug comes first, once for each kind. Exits with 1 if a bug was not found
    in time.

    Example: bursar storm planted --only lot-without-end --loopback
    """
    from bursar_lab.storm.run import find_ability
    from bursar_lab.storm.trials import Trials, write_table

    trials = Trials(out, find_ability(not loopback), seed, minutes, typer.echo).run(_find_bugs(*only or ()))
    typer.echo("\n".join(write_table(trials)))
    if not all(trial.wrong for trial in trials):
        raise typer.Exit(FAILED)


def _find_bugs(*names: str) -> list[Bug]:
    """Those; without a name all of them."""
    from bursar_lab.storm.planted import BUGS

    for name in names:
        if name not in BUGS:
            raise UsageError(f"there is no bug {name!r} to plant; there are: {', '.join(BUGS)}")
    return [BUGS[name] for name in names or BUGS]
