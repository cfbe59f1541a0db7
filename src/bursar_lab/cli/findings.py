"""Functions named in a registry ("module:function"), and what they found, printed.

A benchmark or an experiment returns a dict of plain values. Three of its keys mean something here:
`table` is printed (a text, or a list of rows, each a dict), then `bars`, a list of what was to be
reached ({"bar", "found", "met"}), and `ok` set to False makes the command exit with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import typer

from bursar.cli.exits import FAILED
from bursar.cli.tables import print_rows
from bursar.errors import BursarError, UsageError
from bursar.policy.values import suggest

Findings = dict[str, Any]


def find_function(name: str, registry: Mapping[str, str], called: str) -> Callable[..., Findings]:
    """The function registered as `name`. Raises UsageError for a name that is not registered."""
    if name not in registry:
        raise UsageError(f'there is no {called} "{name}"{suggest(name, sorted(registry))}')
    module_name, _, function_name = registry[name].partition(":")
    try:
        function: Callable[..., Findings] = getattr(import_module(module_name), function_name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a package that it needs: the command line says what to install
        raise BursarError(f'the {called} "{name}" is not in this version of bursar') from error
    return function


def print_findings(findings: Findings) -> None:
    """For people: the table if there is one, else each finding on its line."""
    table = findings.get("table")
    if isinstance(table, str):
        typer.echo(table)
    elif table:
        print_rows(table)
    else:
        for key, value in findings.items():
            typer.echo(f"{key}: {value}")
    for bar in findings.get("bars", ()) if table else ():
        typer.echo(f"{'met' if bar['met'] else 'NOT MET'}: {bar['bar']} (found {bar['found']})")


def leave_if_not_ok(findings: Findings) -> None:
    if findings.get("ok") is False:
        raise typer.Exit(FAILED)
