"""`bursar dashboard URL`: the pages of a fleet, found through any of its daemons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES, INTERRUPTED
from bursar.cli.reaching import DAEMON, Authority, Certificate, Key, WhoAsks, read_tls
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Tls
    from bursar.runtime.client import Bursar

PORT = 8070


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(dashboard)


def dashboard(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="A daemon, or several; bursar://127.0.0.1:7070 if left out."),
    ] = None,
    port: Annotated[int, typer.Option(help="Where the pages are served, on loopback; 0 for any.")] = PORT,
    name: WhoAsks = None,
    cert: Certificate = None,
    key: Key = None,
    ca: Authority = None,
) -> None:
    """Show a running fleet, as pages for a browser.

    Any daemon of the fleet will do: it says which others there are, and they are shown too. The pages
    only read; they are served on loopback, for whoever is on this machine. A token, where the daemons
    want one, is read from BURSAR_TOKEN. Ctrl-C ends it (exit code 130).

    Example: bursar dashboard bursar://127.0.0.1:7070 --port 8070
    """
    import asyncio

    from bursar.runtime.client import read_url

    addresses = urls or [DAEMON]
    for url in addresses:
        read_url(url)
    if not 0 <= port <= 65535:
        raise UsageError(f"--port is from 0 (any) to 65535, not {port}")
    try:
        asyncio.run(_serve(addresses, port, name, read_tls(cert, key, ca)))
    except KeyboardInterrupt:
        typer.echo("stopped")
        raise typer.Exit(INTERRUPTED) from None


async def _serve(urls: list[str], port: int, name: str | None, tls: Tls | None) -> None:
    from bursar.dashboard.fleet import CONNECT_TIMEOUT_S, FleetSource
    from bursar.dashboard.server import DashboardServer
    from bursar.runtime.client import connect

    async def reach(url: str) -> Bursar:
        return await connect(url, name=name, tls=tls, timeout=CONNECT_TIMEOUT_S)

    source = FleetSource(urls, reach)
    await source.open()
    try:
        server = await DashboardServer.open(source, port)
    except BaseException:
        await source.close()
        raise
    typer.echo(f"The dashboard of {', '.join(urls)}: {server.url}")
    try:
        await server.run()
    finally:
        await server.close()
