"""`bursar rollback VERSION`: an earlier version becomes the policy again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.proposals import (
    Yes,
    ask,
    parse_text,
    print_nodes,
    print_proposal,
    propose_at,
    write_at,
)
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, visit
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.world import World


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(rollback)


def rollback(
    version: Annotated[int, typer.Argument(metavar="VERSION", show_default=False)],
    store: StoreUrl = None,
    policy: OfPolicy = None,
    yes: Yes = False,
) -> None:
    """Make an earlier version the policy again, as a new version.

    Example: bursar rollback 7 --yes
    """
    from bursar.fleet.documents import read_document

    url = find_store(store, policy)

    async def read(world: World) -> str:
        document = await read_document(world.store, version)
        assert document is not None, "a version was named"
        return document.text

    text = visit(url, read)
    proposal = propose_at(url, parse_text(text, f"policy version {version}"))
    print_proposal(proposal)
    if not proposal.possible:
        raise UsageError("it cannot be applied as it is, and nothing was changed")
    ask(yes, f"go back to version {version}, as version {proposal.expected + 1}?")
    made, nodes, waited_s = write_at(url, text, f"back to version {version}", proposal.expected)
    print_nodes(made, nodes, waited_s)
