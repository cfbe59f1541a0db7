"""`bursar storm KIND|all`: a fleet, its users and its bad nights, run through the public door."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar_lab.storm.plan import Plan

STORES = ("sqlite", "zookeeper")
SETTINGS = ("defaults", "drawn")
NODES_MAX = 9

Out = Annotated[Path | None, typer.Option(help="The folder to leave.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A storm's folder.", show_default=False)]
Loopback = Annotated[bool, typer.Option("--loopback", help="No namespaces, even as root.")]


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(storm)


def storm(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KIND|all|again|shrink|check", help="What to storm, or what to do.", show_default=False
        ),
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="For again, shrink and check.", show_default=False)
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.2, help="How long.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Everything is drawn by it.")] = 1,
    store: Annotated[str, typer.Option(help="sqlite or zookeeper.")] = "sqlite",
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many at the beginning.")] = 3,
    settings: Annotated[str, typer.Option(help="defaults, or drawn from the policy's schema.")] = "defaults",
    runs: Annotated[int, typer.Option(min=1, help="For shrink: how often to try.")] = 30,
    out: Out = None,
    loopback: Loopback = False,
) -> None:
    """Storm a fleet of real processes, and judge what its clients were told.

    A folder is left with the histories, the logs and the verdict. `again DIR` carries out a
    folder's plan once more, `shrink DIR` drops faults and operations while it still goes wrong,
    `check DIR` judges a folder again. Exits with 1 if a promise was broken.

    Example: bursar storm rate --minutes 1 --seed 7 --store sqlite
    """
    acts = {"again": _again, "shrink": _shrink, "check": _check}
    if what in acts:
        if folder is None:
            raise UsageError(f"say which folder: bursar storm {what} DIR")
        acts[what](folder, out, runs)
        return
    _check_options(what, store, settings)
    from bursar_lab.storm.plan import draw_plan
    from bursar_lab.storm.run import find_ability

    plan = draw_plan(what, seed, minutes * 60, store, nodes, settings, find_ability(not loopback))
    command = (
        f"bursar storm {what} --minutes {minutes:g} --seed {seed} --store {store} --nodes {nodes} "
        f"--settings {settings}{' --loopback' if loopback else ''}"
    )
    _carry_out(plan, out or Path(f"storm-{what}-{store}-{seed}"), command)


def _check_options(what: str, store: str, settings: str) -> None:
    from bursar_lab.storm.plan import check_kind

    if not check_kind(what):
        raise UsageError(f"there is no kind {what!r}: rate, share, pool, quota, claim or all")
    for name, value, known in (("--store", store, STORES), ("--settings", settings, SETTINGS)):
        if value not in known:
            raise UsageError(f"{name} {value}: it is {' or '.join(known)}")


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


def _again(folder: Path, out: Path | None, runs: int) -> None:
    from bursar_lab.storm.plan import read_plan

    plan = read_plan(folder / "plan.json")
    _carry_out(plan, out or folder.with_name(f"{folder.name}-again"), f"bursar storm again {folder}")


def _shrink(folder: Path, out: Path | None, runs: int) -> None:
    from bursar_lab.storm.shrink import shrink

    shrink(folder, out or folder.with_name(f"{folder.name}-small"), runs, typer.echo)


def _check(folder: Path, out: Path | None, runs: int) -> None:
    from bursar_lab.storm.report import print_end

    if not print_end(folder, [], typer.echo):
        raise typer.Exit(FAILED)
