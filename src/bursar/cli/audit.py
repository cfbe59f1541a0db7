"""`bursar audit`: who changed what, when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, visit, write_time
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.audit import Entry


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(audit)


def audit(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help='From then on: "2026-11-18", or how long ago: "2d".', show_default=False
        ),
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Only policy, tenant, token, top-up, limit, adjust, fence, accept, release, node or store.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    policy: OfPolicy = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show who changed what and when, the oldest first.

    Every change of the policy, of tenants, tokens and budgets, every fence and every forced release
    writes its line in the transaction that makes it. The newest 5,000 are kept: export them with
    --json to keep them longer.

    Example: bursar audit --since 7d --what token --store sqlite:///s.db
    """
    import time

    from bursar.fleet.audit import SORTS, list_entries

    unknown = [each for each in what or () if each not in SORTS]
    if unknown:
        raise UsageError(f"--what {unknown[0]}: write one of {', '.join(SORTS)}")
    after_ns = 0 if since is None else read_since(since, time.time_ns())
    entries = visit(find_store(store, policy), lambda world: list_entries(world.store))
    chosen = [entry for entry in entries if entry.at_ns >= after_ns and (not what or entry.what in what)]
    if as_json:
        for entry in chosen:
            typer.echo(json.dumps(describe(entry)))
    elif chosen:
        _print(chosen)
    else:
        sorts = f" of {' or '.join(what)}" if what else ""
        typer.echo(f"nothing{sorts} was changed" + (" since then" if since else ""))


def read_since(text: str, now_ns: int) -> int:
    """A moment ("2026-11-18", "2026-11-18T04:00"; UTC unless it says otherwise), or how long ago."""
    from datetime import UTC, datetime

    from bursar.units import read_duration_ns

    try:
        return now_ns - read_duration_ns(text)
    except ValueError:
        pass  # no duration: a moment
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f'--since {text}: write a time such as "2026-11-18T04:00", or "2d"') from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 10**9)


def describe(entry: Entry) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(entry)
    return {**found, "at": write_time(entry.at_ns) + "Z"}


def _print(entries: list[Entry]) -> None:
    from bursar.cli.tables import print_rows

    print_rows(
        [
            {
                "at": write_time(entry.at_ns),
                "by": entry.by,
                "what": entry.what,
                "name": entry.name,
                "detail": entry.detail,
                "version": str(entry.version or ""),
            }
            for entry in entries
        ]
    )
