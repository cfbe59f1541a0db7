"""`bursar top`: the fleet in a terminal."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, INTERRUPTED
from bursar.cli.reaching import DAEMON, At, Authority, Certificate, Key, WhoAsks, read_tls
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.dashboard.fleet import FleetSource

EVERY_MIN_S = 0.1


class Sort(StrEnum):
    """What tenants are sorted by."""

    USE = "use"
    REFUSALS = "refusals"
    WAITS = "waits"
    NAME = "name"


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(top)


def top(
    at: At = DAEMON,
    once: Annotated[bool, typer.Option("--once", help="Print plain tables once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once as JSON and exit.")] = False,
    find: Annotated[str, typer.Option(metavar="TEXT", help="Tenants with this in their name.")] = "",
    sort: Annotated[Sort, typer.Option(help="What tenants are sorted by.")] = Sort.USE,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often figures are read.")] = 1.0,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Show the fleet: its nodes, its resources, and who uses them.

    Any daemon of the fleet will do: it says which others there are, and they are asked too. `granted/s`
    and `refused/s` are tokens a second since the figures were read last; with --once or --json they
    are read twice, --every seconds apart. Of many tenants the first 50 are shown: search for others.
    A token, where the daemons want one, is read from BURSAR_TOKEN.

    Example: bursar top --at bursar://127.0.0.1:7070
    """
    import asyncio

    from bursar.runtime.client import read_url

    read_url(at)
    if every < EVERY_MIN_S:
        raise UsageError(f"--every is at least {EVERY_MIN_S:g} s, not {every:g}")
    if not (once or as_json or sys.stdout.isatty()):
        raise UsageError("this is no terminal: add --once for plain tables, or --json")
    tls = read_tls(cert, key, ca)

    async def connect(url: str) -> Any:
        from bursar.dashboard.fleet import CONNECT_TIMEOUT_S
        from bursar.runtime.client import connect

        return await connect(url, name=name, tls=tls, timeout=CONNECT_TIMEOUT_S)

    try:
        asyncio.run(_run(at, connect, find, sort, every, once, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _run(
    at: str, connect: Any, find: str, sort: Sort, every_s: float, once: bool, as_json: bool
) -> None:
    from bursar.dashboard.fleet import FleetSource

    source = FleetSource([at], connect)
    await source.open()
    try:
        if as_json or once:
            _print(await _read_twice(source, find, sort, every_s), as_json)
        else:
            from bursar.dashboard.terminal import Top

            await Top(source, every_s, find=find, sort=sort.value).run_async()
    finally:
        await source.close()


async def _read_twice(source: FleetSource, find: str, sort: Sort, every_s: float) -> dict[str, Any]:
    import asyncio
    import time

    from bursar.dashboard.history import History
    from bursar.dashboard.summary import list_nodes, list_resources, list_tenants

    history = History()
    wanted = (find,) if find else ()
    history.add(time.monotonic(), time.time(), await source.read(wanted))
    await asyncio.sleep(every_s)
    history.add(time.monotonic(), time.time(), await source.read(wanted))
    tenants, found = list_tenants(history, find, sort.value)
    return {
        "nodes": list_nodes(history),
        "resources": list_resources(history),
        "tenants": tenants,
        "tenants_found": found,
    }


def _print(found: dict[str, Any], as_json: bool) -> None:
    from bursar.cli.tables import print_rows
    from bursar.dashboard.summary import NODES, RESOURCES, TENANTS

    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for table, columns in (("nodes", NODES), ("resources", RESOURCES), ("tenants", TENANTS)):
        if found[table]:
            print_rows([{head: row.get(key) for key, head in columns.items()} for row in found[table]])
    shown = len(found["tenants"])
    if found["tenants_found"] > shown:
        typer.echo(f"{found['tenants_found']:,} tenants, of which these are {shown}: --find others")
