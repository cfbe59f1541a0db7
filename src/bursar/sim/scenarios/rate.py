"""A rate resource under every fault: two controllers, three servers, tenants that always want more."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.errors import Refused, Unknown
from bursar.rates.controller import ControllerBook, Terms
from bursar.rates.courier import ControllerCourier, ServerCourier
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.placement import Placement
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.sim.scenario import Boot, Scenario, require
from bursar.world import MILLISECOND_NS, SECOND_NS, World

SERVERS = ("s1", "s2", "s3")
CONTROLLERS = ("c1", "c2")
CAPACITY = 100.0
PERIOD_NS = 400 * MILLISECOND_NS
INTERVAL_NS = 100 * MILLISECOND_NS
DRIFT_PPM = 10_000
TERMS = {
    "even": Terms(reservation=20, limit=30),
    "capped": Terms(reservation=0, limit=12),
    "free": Terms(reservation=15, limit=None),
}
PAUSE_MAX_NS = 60 * MILLISECOND_NS
WAITING = 5
MET = 0.9


class RateScenario(Scenario):
    """The truth: what every tenant was served, by the period it was charged to."""

    duration_ns = 4 * SECOND_NS
    settle_ns = 5 * SECOND_NS
    session_timeout_ns = SECOND_NS
    drift_ppm = DRIFT_PPM
    server_book: type[ServerBook] = ServerBook
    controller_book: type[ControllerBook] = ControllerBook

    def __init__(self) -> None:
        self.charged: dict[tuple[str, int], int] = {}
        self.opened = 0
        self._controllers: dict[str, ControllerBook] = {}
        self._healed_period = 0
        self._late: str | None = None

    def nodes(self) -> Mapping[str, Boot]:
        controllers = dict.fromkeys(CONTROLLERS, self._boot_controller)
        return {**controllers, **dict.fromkeys(SERVERS, self._boot_server)}

    def _boot_controller(self, world: World) -> None:
        place = Placement(dict.fromkeys(SERVERS, CAPACITY), {})
        book = self.controller_book(
            f"{world.name}.{world.incarnation}",
            SERVERS,
            TERMS,
            place,
            period_ns=PERIOD_NS,
            interval_ns=INTERVAL_NS,
            drift_ppm=DRIFT_PPM,
        )
        ControllerCourier(world, "cache", book, {}).start()
        self._controllers[world.name] = book

    async def _boot_server(self, world: World) -> None:
        book = self.server_book(world.name, world.incarnation, list(TERMS), Scheduler([1] * len(TERMS)))
        queues = Dispatcher(world, book, period_ns=PERIOD_NS, capacity=CAPACITY, dispatched=self._count)
        queues.start()
        ServerCourier(world, "cache", book, queues.pump).start()
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            for tenant in TERMS:
                for _ in range(WAITING - queues.waiting(tenant)):
                    world.spawn(self._ask(queues, tenant), f"ask.{tenant}")

    async def _ask(self, queues: Dispatcher, tenant: str) -> None:
        try:
            await queues.take(tenant, 1, SECOND_NS)
        except (Refused, Unknown):
            return
        queues.finished()

    def _count(self, tenant: str, period: int, tokens: int) -> None:
        key = (tenant, period)
        self.charged[key] = self.charged.get(key, 0) + tokens
        if period < self.opened:
            self._late = f"{tenant} was served from period {period} after {self.opened} had begun"

    def crashed(self, name: str) -> None:
        self._controllers.pop(name, None)

    def check(self) -> None:
        for book in self._controllers.values():
            if book.leading:
                self.opened = max(self.opened, book.state.period)
        require(self._late is None, str(self._late))
        for tenant, terms in TERMS.items():
            charged = self.charged.get((tenant, self.opened), 0)
            require(
                terms.limit is None or charged <= terms.limit,
                f"{tenant} was served {charged} in period {self.opened}, its limit is {terms.limit}",
            )

    def healed(self) -> None:
        self._healed_period = self.opened

    def audit(self) -> None:
        for (tenant, period), charged in sorted(self.charged.items()):
            limit = TERMS[tenant].limit
            require(limit is None or charged <= limit, f"{tenant}: {charged} in period {period}")
        settled = range(self._healed_period + 4, self.opened)
        require(len(settled) >= 2, f"only {self.opened - self._healed_period} periods opened once healed")
        for period in settled:
            for tenant, terms in TERMS.items():
                charged = self.charged.get((tenant, period), 0)
                require(
                    charged >= MET * terms.reservation,
                    f"{tenant} was served {charged} of its reservation {terms.reservation} in {period}",
                )


SCENARIO = RateScenario
