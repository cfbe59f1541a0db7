"""The command line: `bursar COMMAND`, one module a command.

A command module has `register(app)` and imports what is heavy only when it runs, so that
`bursar --help` stays quick. A user's mistake is a BursarError: one message on stderr and an exit
code from `exits`, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED, MISUSED
from bursar.cli.packages import explain_missing
from bursar.cli.version import write_version
from bursar.errors import BursarError, PolicyError, UsageError

COMMANDS = (
    "demo",
    "serve",
    "dashboard",
    "top",
    "check",
    "plan",
    "apply",
    "diff",
    "history",
    "rollback",
    "tenant",
    "node",
    "store",
    "token",
    "audit",
    "simulate",
    "why",
    "announce",
    "tasks",
    "claims",
    "work",
    "quota",
    "schema",
    "sim",
    "profile",
    "envoy",
    "memcached_proxy",
)
"""The order in which `bursar --help` lists them."""

LAB_COMMANDS = ("experiment", "bench", "storm", "mutate", "fuzz")
"""They follow where the lab is installed: it comes with the source, not with the wheel."""


def main(arguments: Sequence[str] | None = None, commands: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        make_app(commands)(args=arguments, prog_name="bursar")
    except (PolicyError, UsageError) as error:
        _leave(error, MISUSED)
    except BursarError as error:
        _leave(error, FAILED)
    except ModuleNotFoundError as error:
        _leave(explain_missing(error), FAILED)


def list_commands() -> tuple[str, ...]:
    """Those of this installation."""
    return COMMANDS + (LAB_COMMANDS if find_spec("bursar_lab") else ())


def make_app(commands: Sequence[str] | None = None) -> typer.Typer:
    """With these commands; without a choice, with all there are."""
    app = typer.Typer(
        name="bursar",
        help="Grants shares of whatever many tenants contend for: rates, bandwidth, budgets, named things.",
        epilog=EXIT_CODES,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_start)
    for name in list_commands() if commands is None else commands:
        package = "bursar_lab" if name in LAB_COMMANDS else "bursar"
        import_module(f"{package}.cli.{name}").register(app)
    return app


def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: how mature each kind is.")
    ] = False,
) -> None:
    if version:
        typer.echo(write_version(verbose=verbose))
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit()


def _leave(error: BursarError, code: int) -> None:
    typer.echo(f"bursar: {error}", err=True)
    sys.exit(code)
