"""What a grant took of a server, so that it can be ended or undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.rates.service import Service
from bursar.resource import Issue

if TYPE_CHECKING:
    from bursar.rates.dispatcher import Dispatcher


class Charge:
    """Tokens of the server's opening number `opening`, charged to the tenant of that number; the
    request that is being served, and the lot that came with it, if there are any."""

    __slots__ = ("index", "issue", "opening", "server", "service")

    def __init__(
        self,
        server: Dispatcher,
        index: int,
        opening: int,
        service: Service | None = None,
        issue: Issue | None = None,
    ) -> None:
        self.server = server
        self.index = index
        self.opening = opening
        self.service = service
        self.issue = issue
