"""The options of commands that ask a running daemon: where it is, and who asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Tls

DAEMON = "bursar://127.0.0.1:7070"

At = Annotated[str, typer.Option(metavar="URL", help="The daemon.")]
WhoAsks = Annotated[
    str | None, typer.Option(help="With TLS: who asks, a name in the certificate.", show_default=False)
]
Certificate = Annotated[Path | None, typer.Option(help="With TLS: the certificate.", show_default=False)]
Key = Annotated[Path | None, typer.Option(help="With TLS: its key.", show_default=False)]
Authority = Annotated[Path | None, typer.Option(help="With TLS: the authority.", show_default=False)]


def read_tls(cert: Path | None, key: Path | None, ca: Path | None) -> Tls | None:
    from bursar.policy import Tls

    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise UsageError("TLS takes all three: --cert, --key and --ca")
    return Tls(cert=str(cert), key=str(key), ca=str(ca))
