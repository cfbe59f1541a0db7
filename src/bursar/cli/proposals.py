"""A new text of the policy, proposed at the store, shown to people, and written there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.visiting import check_store, name_visitor, store_of, visit
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.changes import Proposal
    from bursar.fleet.layout import NodeRecord, Version
    from bursar.policy import Policy
    from bursar.world import World

KNOWN_WAIT_S = 10.0
POLL_S = 0.05
SHOWN_MAX = 50

PolicyArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The policy file.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def load_both(file: Path, store: str | None) -> tuple[Policy, str]:
    from bursar.policy import load

    loaded = load(file)
    return loaded, check_store(store) if store is not None else store_of(loaded)


def parse_text(text: str, source: str) -> Policy:
    from bursar.policy import parse

    return parse(text, source)


def propose_at(url: str, policy: Policy) -> Proposal:
    from bursar.fleet.changes import propose

    return visit(url, lambda world: propose(world.store, policy.text, policy.source))


def write_at(url: str, text: str, note: str, expected: int) -> tuple[Version, list[NodeRecord], float]:
    """The version, and the nodes once all know it or have had time to."""
    import asyncio
    import time

    from bursar.fleet import changes
    from bursar.fleet.layout import list_nodes

    async def act(world: World) -> tuple[Version, list[NodeRecord], float]:
        began = time.monotonic()
        version = await changes.apply(
            world.store, text, by=name_visitor(), at_ns=world.clock.wall(), note=note, expected=expected
        )
        while True:
            nodes = await list_nodes(world.store)
            waited_s = time.monotonic() - began
            behind = [node for node in nodes if node.version < version.number and not node.problem]
            if not behind or waited_s > KNOWN_WAIT_S:
                return version, nodes, waited_s
            await asyncio.sleep(POLL_S)

    return visit(url, act)


def ask(yes: bool, question: str) -> None:
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("add --yes to do it without being asked")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")


# -- for people


def print_proposal(proposal: Proposal) -> None:
    from bursar.cli.plan import write_plan

    was = f"version {proposal.expected}" if proposal.expected else "nothing: this is the first policy"
    typer.echo(f"against {was}:")
    if not proposal.changes:
        typer.echo("  no difference")
    for change in proposal.changes[:SHOWN_MAX]:
        typer.echo(f"  {change}")
    if len(proposal.changes) > SHOWN_MAX:
        typer.echo(f"  and {len(proposal.changes) - SHOWN_MAX:,} more (see bursar diff --json)")
    for problem in proposal.problems:
        typer.echo(f"  ! {problem}")
    planned = write_plan(proposal.policy)
    if planned:
        typer.echo("plan:")
        for line in planned.splitlines():
            typer.echo(f"  {line}")


def print_nodes(version: Version, nodes: list[NodeRecord], waited_s: float) -> None:
    know = [node.name for node in nodes if node.version == version.number]
    typer.echo(f"version {version.number} is the policy; no node is up" if not nodes else "", nl=not nodes)
    if know:
        typer.echo(
            f"version {version.number} is the policy; {', '.join(know)} took it within {waited_s:.1f} s"
        )
    for node in nodes:
        if node.version != version.number:
            typer.echo(
                f"  {node.name} runs version {node.version}: {node.problem or 'it has not answered yet'}"
            )


def describe_nodes(nodes: list[NodeRecord]) -> list[dict[str, Any]]:
    return [{"name": node.name, "version": node.version, "problem": node.problem} for node in nodes]
