"""`bursar apply FILE`: a file becomes the policy of the whole fleet."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.proposals import (
    PolicyArgument,
    Yes,
    ask,
    describe_nodes,
    load_both,
    print_nodes,
    print_proposal,
    propose_at,
    write_at,
)
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import StoreUrl
from bursar.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(apply)


def apply(
    file: PolicyArgument,
    store: StoreUrl = None,
    note: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a file the policy of the whole fleet.

    Shows what it changes and what `bursar plan` says of it, asks, and writes a new version to the
    store. Every node takes it within a second; it is in force from the next period on. What cannot
    be changed while the fleet runs is refused, and then nothing is changed anywhere. `store` and
    [daemon] in the file are each node's own business.

    Example: bursar apply policy.toml --store zookeeper://a:2181/bursar
    """
    loaded, url = load_both(file, store)
    proposal = propose_at(url, loaded)
    if not as_json:
        print_proposal(proposal)
    if not proposal.possible:
        raise UsageError("it cannot be applied as it is, and nothing was changed")
    if not proposal.changes and proposal.expected:
        typer.echo(
            json.dumps({"version": proposal.expected, "changes": []}) if as_json else "nothing to change"
        )
        return
    ask(yes, f"apply this as version {proposal.expected + 1}?")
    version, nodes, waited_s = write_at(url, loaded.text, note or str(file), proposal.expected)
    if as_json:
        changes = [str(change) for change in proposal.changes]
        described = {"version": version.number, "changes": changes, "nodes": describe_nodes(nodes)}
        typer.echo(json.dumps({**described, "known_after_s": round(waited_s, 3)}))
    else:
        print_nodes(version, nodes, waited_s)
    if any(node.version != version.number for node in nodes):
        raise typer.Exit(FAILED)
