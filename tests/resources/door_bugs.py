"""Rules of lots, broken on purpose: each must be found by the scenario of clients and a daemon."""

from __future__ import annotations

from bursar.rates.resource import RateDecider
from bursar.resource import Ahead, wire
from bursar.resource.client_lots import ClientLots
from bursar.resource.clients import Clients
from bursar.resource.decider import Seen
from bursar.resource.far import Far, FarDecider
from bursar.resource.hand import Hand
from bursar.resource.sessions import Session
from bursar.resource.tickets import Granted, Ticket
from bursar.sim.scenarios.door import DoorScenario
from bursar.world import MILLISECOND_NS, World


class HearsTwice(ClientLots):
    def hear(self, session: Session, told: wire.Told) -> None:
        super().hear(session, told)
        out = session.lots.get(told.lot)
        if out is not None and told.unspent:
            out.door.decider.take_back(out.tenant, out.granted, told.unspent)


class HearsEverythingTwice(Clients):
    """Rule 5: a lot that is told of again comes back again."""

    lots_class = HearsTwice


class NoBound(Ahead):
    """Rule 2: as many go out as are asked for."""

    def room(self, now: int, tenant: str, place: str, tenant_max: int, place_max: int) -> int:
        return 1_000


class HandsOutAnyNumber(RateDecider):
    def __init__(self, world: World, *rest: object, **named: object) -> None:
        super().__init__(world, *rest, **named)  # type: ignore[arg-type]
        self.ahead = NoBound()
        for server in self.servers.values():
            server._ahead = self.ahead


class CountsFromTheAnswer(FarDecider):
    """Rule 4: a lot is good for as long as the daemon said, from when the answer came, and a little."""

    def _take_lot(self, tenant: str, number: int, given: wire.Given, until: int) -> Granted:
        later = self._world.clock.now() + given.good_ns + 100 * MILLISECOND_NS
        return super()._take_lot(tenant, number, given, later)


class SpendsWhatItGaveBack(FarDecider):
    """Rule 7: what is left of a lot is given back, and spent all the same."""

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        super().end_lot(tenant, granted, seen, unspent)
        fresh = self._world.clock.now() < granted.until
        if unspent and fresh and tenant not in self.door.hand.lots:
            kept = Granted(0, period=granted.period, ahead=unspent, until=granted.until, data=granted.data)
            Hand.put(self.door.hand, tenant, kept)


class LotsAreFree(RateDecider):
    """Rule 1: tokens ahead that nobody charged."""

    def decide(self, ticket: Ticket) -> None:
        super().decide(ticket)
        if isinstance(ticket.answer, Granted) and ticket.answer.ahead:
            ticket.answer.ahead += 5


def _far(decider: type[FarDecider]) -> type[Far]:
    class BrokenFar(Far):
        decider_class = decider

    return BrokenFar


def _scenario(**parts: type) -> type[DoorScenario]:
    return type("Broken", (DoorScenario,), parts)


BUGS: dict[str, tuple[type[DoorScenario], str]] = {
    "hears of a lot twice": (_scenario(clients=HearsEverythingTwice), "told of"),
    "hands out any number ahead": (_scenario(decider=HandsOutAnyNumber), "out ahead of use"),
    "counts a lot's time from the answer": (_scenario(far=_far(CountsFromTheAnswer)), "had begun"),
    "spends what it gave back": (_scenario(far=_far(SpendsWhatItGaveBack)), "told of"),
    "does not charge lots": (_scenario(decider=LotsAreFree), "told of"),
}
