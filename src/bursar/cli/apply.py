"""`bursar apply FILE`, `diff`, `history`, `rollback`: the policy of a fleet, from one version to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.visiting import (
    OfPolicy,
    StoreUrl,
    check_store,
    find_store,
    name_visitor,
    store_of,
    visit,
    write_time,
)
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.changes import Proposal
    from bursar.fleet.layout import NodeRecord, Version
    from bursar.policy import Policy
    from bursar.world import World

KNOWN_WAIT_S = 3.0
POLL_S = 0.05
SHOWN_MAX = 50

PolicyArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The policy file.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def register(app: typer.Typer) -> None:
    for command in (apply, diff, history, rollback):
        app.command(epilog=EXIT_CODES)(command)


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
    loaded, url = _load(file, store)
    proposal = _propose(url, loaded)
    if not as_json:
        _print_proposal(proposal)
    if not proposal.possible:
        raise UsageError("it cannot be applied as it is, and nothing was changed")
    if not proposal.changes and proposal.expected:
        typer.echo(
            json.dumps({"version": proposal.expected, "changes": []}) if as_json else "nothing to change"
        )
        return
    _ask(yes, f"apply this as version {proposal.expected + 1}?")
    version, nodes, waited_s = _write(url, loaded.text, note or str(file), proposal.expected)
    if as_json:
        changes = [str(change) for change in proposal.changes]
        typer.echo(json.dumps({"version": version.number, "changes": changes, "nodes": _describe(nodes)}))
    else:
        _print_nodes(version, nodes, waited_s)
    if any(node.version != version.number for node in nodes):
        raise typer.Exit(FAILED)


def diff(file: PolicyArgument, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show what applying a file would change, and change nothing.

    Exits with 1 if it could not be applied while the fleet runs.

    Example: bursar diff policy.toml
    """
    loaded, url = _load(file, store)
    proposal = _propose(url, loaded)
    if as_json:
        changes = [
            {"key": each.key, "before": each.before, "after": each.after, "why_not": each.why}
            for each in proposal.changes
        ]
        described = {"version": proposal.expected, "possible": proposal.possible, "changes": changes}
        typer.echo(json.dumps({**described, "problems": list(proposal.problems)}, indent=2))
    else:
        _print_proposal(proposal)
    if not proposal.possible:
        raise typer.Exit(FAILED)


def history(store: StoreUrl = None, policy: OfPolicy = None, as_json: AsJson = False) -> None:
    """List the versions of the fleet's policy, the newest first.

    Example: bursar history --store sqlite:///var/lib/bursar/store.db
    """
    from bursar.fleet.documents import list_versions

    versions = visit(find_store(store, policy), lambda world: list_versions(world.store))
    rows = [
        {"version": each.number, "at": write_time(each.at_ns), "by": each.by, "note": each.note}
        for each in versions
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        from bursar.cli.tables import print_rows

        print_rows(rows)
    else:
        typer.echo("no policy was applied yet")


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
    proposal = _propose(url, _parse(text, f"policy version {version}"))
    _print_proposal(proposal)
    if not proposal.possible:
        raise UsageError("it cannot be applied as it is, and nothing was changed")
    _ask(yes, f"go back to version {version}, as version {proposal.expected + 1}?")
    made, nodes, waited_s = _write(url, text, f"back to version {version}", proposal.expected)
    _print_nodes(made, nodes, waited_s)


# -- at the store


def _load(file: Path, store: str | None) -> tuple[Policy, str]:
    from bursar.policy import load

    loaded = load(file)
    return loaded, check_store(store) if store is not None else store_of(loaded)


def _parse(text: str, source: str) -> Policy:
    from bursar.policy import parse

    return parse(text, source)


def _propose(url: str, policy: Policy) -> Proposal:
    from bursar.fleet.changes import propose

    return visit(url, lambda world: propose(world.store, policy.text, policy.source))


def _write(url: str, text: str, note: str, expected: int) -> tuple[Version, list[NodeRecord], float]:
    """The version, and the nodes once all know it or have had time to."""
    import asyncio
    import time

    from bursar.fleet import changes

    async def act(world: World) -> tuple[Version, list[NodeRecord], float]:
        began = time.monotonic()
        version = await changes.apply(
            world.store, text, by=name_visitor(), at_ns=world.clock.wall(), note=note, expected=expected
        )
        while True:
            nodes = await changes.list_nodes(world.store)
            waited_s = time.monotonic() - began
            behind = [node for node in nodes if node.version < version.number and not node.problem]
            if not behind or waited_s > KNOWN_WAIT_S:
                return version, nodes, waited_s
            await asyncio.sleep(POLL_S)

    return visit(url, act)


def _ask(yes: bool, question: str) -> None:
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("add --yes to do it without being asked")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")


# -- for people


def _print_proposal(proposal: Proposal) -> None:
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


def _print_nodes(version: Version, nodes: list[NodeRecord], waited_s: float) -> None:
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


def _describe(nodes: list[NodeRecord]) -> list[dict[str, Any]]:
    return [{"name": node.name, "version": node.version, "problem": node.problem} for node in nodes]
