"""`bursar demo`: four servers, six tenants, one of them greedy; a story and a dashboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES, INTERRUPTED
from bursar.cli.packages import explain_missing
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.dashboard.server import DashboardServer
    from bursar.demo.cluster import Cluster

SECONDS_MAX = 86_400
PORT = 8070


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(demo)


def demo(
    seconds: Annotated[float, typer.Option(help="How long it runs; the story takes a minute.")] = 60.0,
    headless: Annotated[bool, typer.Option("--headless", help="Only the story, no dashboard.")] = False,
    port: Annotated[int, typer.Option(help="For the dashboard; another one if it is taken.")] = PORT,
    as_json: Annotated[bool, typer.Option("--json", help="At the end print what was measured.")] = False,
) -> None:
    """See it work: a greedy tenant before and after, a server killed, a lender paid back.

    Four servers and a controller in this process, with real sockets between them, and six tenants
    that keep requests waiting. The dashboard is on loopback; its address is printed. Needs no
    root and no other server. Ctrl-C ends it (exit code 130).

    Example: bursar demo --seconds 60
    """
    import asyncio
    import tempfile

    from bursar.demo.story import SHORTEST_S
    from bursar.runtime.loops import new_event_loop

    if not SHORTEST_S <= seconds <= SECONDS_MAX:
        raise UsageError(f"--seconds is from {SHORTEST_S:g} to {SECONDS_MAX}, not {seconds:g}")
    if not 0 <= port <= 65535:
        raise UsageError(f"--port is from 0 (any) to 65535, not {port}")
    with tempfile.TemporaryDirectory(prefix="bursar-demo-") as directory:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(_run(Path(directory), seconds, None if headless else port, as_json))
        except KeyboardInterrupt:
            typer.echo("stopped")
            raise typer.Exit(INTERRUPTED) from None


async def _run(directory: Path, seconds: float, port: int | None, as_json: bool) -> None:
    import json

    from bursar.demo.cluster import Cluster
    from bursar.demo.load import Load
    from bursar.demo.story import Story

    say = _make_say(to_stderr=as_json)
    say("Starting a controller and four servers in this process (the first time it also compiles).")
    cluster = Cluster(directory)
    load = Load(cluster)
    dashboard: DashboardServer | None = None
    try:
        await cluster.open()
        for name, why in cluster.left_out.items():
            say(f"Left out: {name} ({why}).")
        load.start()
        if port is not None:
            dashboard = await _open_dashboard(cluster, port)
            say(f"The dashboard: {dashboard.url}")
            say(f"With a switch for shadow mode: {dashboard.secret_url}")
        story = Story(cluster, load, say)
        await story.run(seconds)
        say("\nThe end. Again, and longer: bursar demo --seconds 600")
        if as_json:
            typer.echo(json.dumps(story.outcome, indent=2))
    finally:
        if dashboard is not None:
            await dashboard.close()
        await load.close()
        await cluster.close()


def _make_say(*, to_stderr: bool) -> Callable[[str], None]:
    import time

    began = time.monotonic()

    def say(text: str) -> None:
        if text.startswith("\n"):
            typer.echo(err=to_stderr)
        text = text.removeprefix("\n")
        typer.echo(f"{time.monotonic() - began:6.1f} s  {text}", err=to_stderr)

    return say


async def _open_dashboard(cluster: Cluster, port: int) -> DashboardServer:
    import secrets

    try:
        from bursar.dashboard.server import DashboardServer
        from bursar.dashboard.source import NodesSource
    except ModuleNotFoundError as error:
        raise UsageError(f"{explain_missing(error)}, or go without the dashboard: --headless") from error

    async def switch() -> str:
        await cluster.set_shadow(not cluster.shadow)
        return f"shadow mode is {'on' if cluster.shadow else 'off'}"

    return await DashboardServer.open(
        NodesSource(lambda: cluster.hosts),
        port,
        or_any=True,
        token=secrets.token_urlsafe(12),
        actions={"shadow on/off": switch},
    )
