"""`bursar storm check DIR`: what a storm's histories show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="A fleet of real processes in bad weather.", no_args_is_help=True)
    group.callback()(_storm)
    group.command(epilog=EXIT_CODES)(check)
    app.add_typer(group, name="storm")


def _storm() -> None:
    """Keeps `check` a command of its own while it is the only one."""


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What a storm left.", exists=True, file_okay=False)
    ],
) -> None:
    """Judge a storm by what its clients were told.

    Reads the histories and policies in DIR, writes DIR/verdict.json, and exits with 1 if a promise
    was broken or it could not be judged.

    Example: bursar storm check results/storm-7
    """
    from bursar_lab.storm.checker.verdict import judge_folder, write_report

    verdict = judge_folder(folder)
    typer.echo("\n".join(write_report(verdict)))
    if not verdict.is_right:
        raise typer.Exit(FAILED)
