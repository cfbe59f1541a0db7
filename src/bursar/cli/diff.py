"""`bursar diff FILE`: what applying a file would change."""

from __future__ import annotations

import json

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.proposals import (
    PolicyArgument,
    load_both,
    print_proposal,
    propose_at,
)
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import StoreUrl


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(diff)


def diff(file: PolicyArgument, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show what applying a file would change, and change nothing.

    Exits with 1 if it could not be applied while the fleet runs.

    Example: bursar diff policy.toml
    """
    loaded, url = load_both(file, store)
    proposal = propose_at(url, loaded)
    if as_json:
        changes = [
            {"key": each.key, "before": each.before, "after": each.after, "why_not": each.why}
            for each in proposal.changes
        ]
        described = {"version": proposal.expected, "possible": proposal.possible, "changes": changes}
        typer.echo(json.dumps({**described, "problems": list(proposal.problems)}, indent=2))
    else:
        print_proposal(proposal)
    if not proposal.possible:
        raise typer.Exit(FAILED)
