"""What a daemon knows of one client: who it is, and what it has been granted and has not given back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bursar.fleet.rights import Caller
from bursar.resource.door import Resource
from bursar.resource.tickets import Granted, Ticket
from bursar.world import Message

RETURNED_MAX = 1_000
LOTS_KEPT = 1_000


@dataclass(slots=True)
class Held:
    """A grant that a client holds."""

    door: Resource
    tenant: str
    granted: Granted


@dataclass(slots=True)
class Out:
    """A lot that a client holds, or held: what comes back of it is never more than it was."""

    door: Resource
    tenant: str
    granted: Granted
    over: bool = False
    back: int = 0
    serials: set[int] = field(default_factory=set)


class Session:
    """One client. Everything is known by the client's numbers; `taking` are those under way, `returned`
    those that came back before they were granted, and so never are."""

    def __init__(self, client: str, caller: Caller, now: int) -> None:
        self.client = client
        self.caller = caller
        self.heard_at = now
        self.grants: dict[int, Held] = {}
        self.lots: dict[int, Out] = {}
        self.taking: dict[int, tuple[Resource, Ticket, asyncio.Future[Message]]] = {}
        self.returned: dict[int, None] = {}

    def may_acquire(self, door: Resource, tenant: str) -> bool:
        return self.caller.may("acquire", door.name, tenant)

    def note_returned(self, number: int) -> None:
        self.returned[number] = None
        if len(self.returned) > RETURNED_MAX:
            del self.returned[next(iter(self.returned))]

    def list_out(self, now: int) -> list[tuple[int, Out]]:
        """The lots that the client may still spend from."""
        return [(n, out) for n, out in self.lots.items() if not out.over and out.granted.until > now]

    def forget_lots(self, now: int) -> None:
        """Lots that are over are kept for what may come back of them yet; the oldest are forgotten."""
        if len(self.lots) > 2 * LOTS_KEPT:
            over = [n for n, out in self.lots.items() if out.over or out.granted.until <= now]
            for number in over[: len(over) - LOTS_KEPT]:
                del self.lots[number]
