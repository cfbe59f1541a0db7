"""`bursar sim coverage`: which keys, verbs and faults the scenarios exercise, and which none does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from bursar.cli.exits import FAILED

if TYPE_CHECKING:
    from bursar.sim.coverage import Coverage

SEEDS = 20
WIDTH = 100


def print_coverage(kind: str | None, seeds: int, as_json: bool) -> None:
    """Run, print, and exit with 1 if a seed failed."""
    from bursar.sim.coverage import cover, list_missed

    found = cover(kind, seeds or SEEDS)
    missed = list_missed(found)
    if as_json:
        typer.echo(
            json.dumps({"kinds": {name: _describe(each) for name, each in found.items()}, "none": missed})
        )
    else:
        for name, each in found.items():
            _print_kind(name, each)
        typer.echo("exercised by none:")
        for what, names in missed.items():
            _print_words(what, names)
    if any(each.failures for each in found.values()):
        raise typer.Exit(FAILED)


def _describe(found: Coverage) -> dict[str, Any]:
    return {
        "seeds": found.seeds,
        "keys": {".".join(name): len(values) for name, values in sorted(found.values.items())},
        "verbs": {".".join(name): count for name, count in sorted(found.done.items())},
        "faults": dict(sorted(found.struck.items())),
        "failures": found.failures,
    }


def _print_kind(name: str, found: Coverage) -> None:
    described = _describe(found)
    typer.echo(f"{name}: {found.seeds} seeds")
    for what in ("keys", "verbs", "faults"):
        _print_words(what, (f"{key} {count:,}" for key, count in described[what].items()))
    for failure in found.failures:
        typer.echo(f"  FAILED   {failure}")


def _print_words(what: str, words: Iterable[str]) -> None:
    """A list, in lines of bearable length."""
    line = f"  {what:<8}"
    for word in words:
        if len(line) + len(word) > WIDTH:
            typer.echo(line.rstrip())
            line = " " * 10
        line += f" {word},"
    typer.echo(line.rstrip(", ") if line.strip() != what else f"{line} -")
