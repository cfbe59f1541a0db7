"""`bursar schema`: the policy's JSON Schema, for editors."""

from __future__ import annotations

import json

import typer

from bursar.cli.exits import EXIT_CODES


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(schema)


def schema() -> None:
    """Print a policy's JSON Schema, for editors.

    Editors complete and check TOML with it. It knows every key; `bursar check` also compares
    values with one another.

    Example: bursar schema > bursar.schema.json
    """
    from bursar.policy.schema import make_schema

    typer.echo(json.dumps(make_schema(), indent=2))
