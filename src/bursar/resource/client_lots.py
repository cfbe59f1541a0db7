"""Lots that a daemon's clients hold: what they say of them, and taking them back."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.errors import NetworkError
from bursar.resource import wire
from bursar.resource.decider import Seen
from bursar.resource.door import Resource
from bursar.resource.lots import Issue
from bursar.resource.sessions import Out, Session
from bursar.world import MILLISECOND_NS, World

RECALL_NS = 100 * MILLISECOND_NS


class ClientLots:
    """Those of all clients of one daemon. Implements `bursar.resource.door.Elsewhere`."""

    def __init__(self, world: World, sessions: Mapping[str, Session]) -> None:
        self._world = world
        self._sessions = sessions

    def hear(self, session: Session, told: wire.Told) -> None:
        """A lot is over. What its holder says of it is believed as far as it can be true."""
        out = session.lots.get(told.lot)
        if out is None or told.serial in out.serials:
            return  # heard before, or of another life
        out.serials.add(told.serial)
        unspent = min(max(0, told.unspent), out.granted.ahead - out.back)
        out.back += unspent
        door, decider = out.door, out.door.decider
        if out.over:
            decider.take_back(out.tenant, out.granted, unspent)
            return
        out.over = True
        granted, refused = min(max(0, told.granted), out.granted.ahead), max(0, told.refused)
        door.count_elsewhere(out.tenant, granted, max(0, told.requests), refused, max(0, told.refusals))
        decider.end_lot(out.tenant, out.granted, Seen(granted, refused), unspent)
        session.forget_lots(self._world.clock.now())

    async def recall(self, door: Resource, issue: Issue) -> int | None:
        """End a lot that a client holds: how many tokens came back; None if it did not answer."""
        session = self._sessions.get(issue.held_by)
        if session is None:
            return 0
        numbers = [number for number, out in self._out_of(session, door) if out.tenant == issue.tenant]
        back = [await self._recall_lot(session, number) for number in numbers]
        return None if None in back else sum(tokens or 0 for tokens in back)

    async def _recall_lot(self, session: Session, number: int) -> int | None:
        try:
            reply: wire.Recalled = await self._world.network.call(
                session.client, wire.RECALL_TOPIC, wire.Recall(number), wire.Recalled, RECALL_NS
            )
        except NetworkError:
            return None
        if reply.told is None:
            return 0  # over already: what was left of it is on its way
        self.hear(session, reply.told)
        return max(0, reply.told.unspent)

    async def recall_all(self, door: Resource) -> None:
        """The policy of a resource changed: lots that were charged under the old one come back."""
        for session in list(self._sessions.values()):
            for number, _ in self._out_of(session, door):
                await self._recall_lot(session, number)

    def _out_of(self, session: Session, door: Resource) -> list[tuple[int, Out]]:
        """The lots of a resource that the client may still spend from."""
        return [(n, out) for n, out in session.list_out(self._world.clock.now()) if out.door is door]

    def list_lost(self, session: Session) -> list[int]:
        """The lots that the client may not spend from any more, because it lost the right."""
        out = session.list_out(self._world.clock.now())
        return [number for number, lot in out if not session.may_acquire(lot.door, lot.tenant)]

    async def recall_lost(self, session: Session) -> None:
        for number in self.list_lost(session):
            await self._recall_lot(session, number)
