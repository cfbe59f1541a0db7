"""`bursar serve POLICY`: the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(serve)


def serve(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)],
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a policy's resources to clients.

    Logs go to standard error. SIGTERM or Ctrl-C stops it within two seconds (exit code 0); SIGHUP
    reads the policy again. A node that fails by itself exits with 1, a bad policy or an address
    in use with 2 or 1 and a message.

    Example: bursar serve policy.toml --log json
    """
    import asyncio

    from bursar.policy import load
    from bursar.runtime import daemon, logs
    from bursar.runtime.loops import new_event_loop

    logs.configure(log, level)
    loaded = load(policy)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(daemon.serve(loaded, reload_from=str(policy)))
    raise typer.Exit(code)
