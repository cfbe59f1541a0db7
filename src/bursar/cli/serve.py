"""`bursar serve [POLICY]`: the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(serve)


def _own(key: str, help: str, metavar: str = "TEXT") -> Any:
    """An option that stands for a key of [daemon], and can be given as a variable too."""
    variable = f"BURSAR_{key.upper()}"
    option = f"--{key.replace('_', '-')}"
    return typer.Option(option, envvar=variable, metavar=metavar, help=help, show_default=False)


def serve(
    policy: Annotated[
        Path | None,
        typer.Argument(metavar="POLICY", help="The policy file; none: the store's.", show_default=False),
    ] = None,
    store: Annotated[str | None, _own("store", "The fleet's store.", "URL")] = None,
    name: Annotated[str | None, _own("name", "This node's name in the fleet.")] = None,
    listen: Annotated[str | None, _own("listen", "Where clients and peers find it.", "HOST:PORT")] = None,
    advertise: Annotated[str | None, _own("advertise", "Where others reach it.", "HOST:PORT")] = None,
    http: Annotated[str | None, _own("http", "Where it serves HTTP, or off.", "HOST:PORT")] = None,
    envoy: Annotated[str | None, _own("envoy", "Where Envoys ask it.", "HOST:PORT")] = None,
    state: Annotated[str | None, _own("state", "The directory of its journals.", "DIR")] = None,
    session_timeout: Annotated[
        str | None, _own("session_timeout", "After this silence it counts as gone.", "TIME")
    ] = None,
    token_file: Annotated[str | None, _own("token_file", "The token callers must show.", "FILE")] = None,
    join_token_file: Annotated[
        str | None, _own("join_token_file", "The token that lets it join a fleet with rights.", "FILE")
    ] = None,
    cert: Annotated[str | None, _own("cert", "With TLS: its certificate.", "FILE")] = None,
    key: Annotated[str | None, _own("key", "With TLS: the certificate's key.", "FILE")] = None,
    ca: Annotated[str | None, _own("ca", "With TLS: the authority.", "FILE")] = None,
    crl: Annotated[str | None, _own("crl", "With TLS: which certificates are revoked.", "FILE")] = None,
    connections: Annotated[int | None, _own("connections", "How many it takes at most.", "NUMBER")] = None,
    log: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve resources to clients: those of a policy file, or those of the fleet's policy in a store.

    Options stand for the keys of [daemon], and come before the file's. Logs go to standard error.
    SIGTERM or Ctrl-C stops it within two seconds (exit code 0); SIGHUP reads the policy file again.
    A node that fails by itself exits with 1, a bad policy or an address in use with 2 or 1 and a
    message.

    Example: bursar serve --store zookeeper://a:2181/bursar --name a --listen 127.0.0.1:7071
    """
    import asyncio
    import signal

    # Until the daemon listens to it there is nothing to read again; by default it would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from bursar.runtime import daemon, logs
    from bursar.runtime.loops import new_event_loop

    logs.configure(log, level)
    settings = {
        "name": name,
        "listen": listen,
        "advertise": advertise,
        "http": http,
        "envoy": envoy,
        "state": state,
        "session_timeout": session_timeout,
        "token_file": token_file,
        "join_token_file": join_token_file,
        "connections": connections,
        "tls": _read_tls(cert, key, ca, crl),
    }
    given = {key: value for key, value in settings.items() if value is not None}
    loaded = _load(policy, given, store)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(daemon.serve(loaded, reload_from=None if policy is None else str(policy)))
    raise typer.Exit(code)


def _load(file: Path | None, settings: dict[str, Any], store: str | None) -> Policy:
    from bursar.policy import load, settle

    if file is None and store is None:
        raise UsageError("give a policy file, or --store URL with the fleet's policy in it")
    loaded = load(file) if file is not None else None
    return settle(loaded, settings, store) if settings or store or loaded is None else loaded


def _read_tls(cert: str | None, key: str | None, ca: str | None, crl: str | None) -> dict[str, str] | None:
    from bursar.cli.reaching import read_tls

    found = read_tls(*(None if path is None else Path(path) for path in (cert, key, ca)))
    if found is None:
        return None
    return {"cert": found.cert, "key": found.key, "ca": found.ca, **({"crl": crl} if crl else {})}
