"""Requests that cost many tokens: nobody else's reservation pays for them, and none waits for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from virtual import Callers, open_rate, run

from bursar.errors import Refused
from bursar.rates.resource import open_server
from bursar.resource.door import Resource
from bursar.world import SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
servers = {{ {servers} }}
[resource.api.tenant]
{tenants}
"""


def make_policy(servers: str, *tenants: str) -> str:
    return POLICY.format(servers=servers, tenants="\n".join(tenants))


class Timed:
    """Callers, one request at a time each, of costs that are drawn; how long the longest waited."""

    def __init__(self, world: World, door: Resource, tenant: str, costs: range, seed: int = 1) -> None:
        self.world, self.door, self.tenant, self.costs = world, door, tenant, costs
        self.random = random.Random(f"{tenant} {seed}")
        self.tokens = 0
        self.longest = 0.0
        self.periods: Counter[int] = Counter()

    def start(self, count: int = 1) -> Timed:
        for _ in range(count):
            self.world.spawn(self._call(), "caller")
        return self

    async def _call(self) -> None:
        while True:
            began = self.world.clock.now()
            async with self.door.acquire(self.tenant, self.random.choice(self.costs), wait=60) as grant:
                self.tokens += grant.amount
                self.periods[grant.period] += grant.amount
                self.longest = max(self.longest, (self.world.clock.now() - began) / SECOND_NS)


def bound_s(cost: int, weights: float, others: int, rate: float) -> float:
    """How long a request waits at most: `weights` of all who wait, by its own; `others` the sum of the
    largest costs of the others; `rate` what the server does beyond reservations. And a pause between two
    periods, which is no server's time."""
    return (cost * weights + others) / rate + 0.05


def test_a_price_of_ten_seconds_is_refused_at_once_and_costs_nobody_anything() -> None:
    async def body(world: World) -> None:
        policy = make_policy('a = "400/s"', 'gold = { reservation = "300/s" }', "free = {}")
        door, _ = await open_rate(world, policy)
        gold = Callers(world, door, "gold")
        gold.start(20)
        await world.clock.sleep(SECOND_NS)
        began = world.clock.now()
        with pytest.raises(Refused, match="4000 tokens of api at once, and never") as refused:
            await door.acquire("free", 4000, wait=60)
        assert (world.clock.now(), refused.value.limit) == (began, 400)
        await world.clock.sleep(3 * SECOND_NS)
        assert min(gold.full_periods()) >= 397

    run(body)


def test_a_request_for_a_whole_second_leaves_reservations_whole_and_has_its_turn() -> None:
    """Over and over, at a server of which three quarters are reserved, and whose rest both want."""

    async def body(world: World) -> None:
        policy = make_policy('a = "400/s"', 'gold = { reservation = "300/s" }', "free = {}")
        door, _ = await open_rate(world, policy)
        gold = Callers(world, door, "gold")
        gold.start(20)
        free = Timed(world, door, "free", range(400, 401)).start()
        await world.clock.sleep(30 * SECOND_NS)
        assert min(gold.full_periods()[1:]) >= 0.99 * 300
        assert free.tokens >= 3 * 400
        assert free.longest <= bound_s(400, 2, 1 + 400, 100)

    run(body, seconds=40)


def test_a_large_request_of_a_tenant_with_a_reservation_takes_no_other_reservation() -> None:
    """A quarter of the server is its own: so is a request of a whole second every four seconds."""

    async def body(world: World) -> None:
        tenants = ('gold = { reservation = "300/s" }', 'big = { reservation = "100/s" }', "free = {}")
        door, _ = await open_rate(world, make_policy('a = "400/s"', *tenants))
        gold, free = Callers(world, door, "gold"), Callers(world, door, "free")
        gold.start(20)
        free.start(20)
        big = Timed(world, door, "big", range(400, 401)).start()
        await world.clock.sleep(30 * SECOND_NS)
        assert min(gold.full_periods()[1:]) >= 0.99 * 300
        assert big.tokens >= 0.9 * 30 * 100

    run(body, seconds=40)


def test_equal_weights_serve_equal_tokens_whatever_requests_cost() -> None:
    async def body(world: World) -> None:
        equal = ('gold = { reservation = "20k/s", limit = "20k/s" }', "x = {}", "y = {}", "z = {}")
        door, _ = await open_rate(world, make_policy('a = "40k/s"', *equal, "w = { weight = 2 }"))
        gold = Timed(world, door, "gold", range(100, 101)).start(20)
        ranges = {"x": range(1, 1001), "y": range(1, 1001), "z": range(40, 41), "w": range(1, 201)}
        flood = {tenant: Timed(world, door, tenant, costs) for tenant, costs in ranges.items()}
        flood["x"].start()
        flood["y"].start(5)
        flood["z"].start(50)
        flood["w"].start(50)
        await world.clock.sleep(40 * SECOND_NS)
        even = [flood["x"].tokens, flood["y"].tokens, flood["z"].tokens, flood["w"].tokens / 2]
        assert max(even) <= 1.02 * min(even)
        assert sum(even) >= 0.97 * 40 * 16_000
        met = [gold.periods[period] for period in range(3, max(gold.periods))]
        assert min(met) >= 0.99 * 20_000
        assert flood["x"].longest <= bound_s(1000, 5, 1000 + 40 + 200 + 1000, 20_000)

    run(body, seconds=50)


@pytest.mark.parametrize("asked", [60, 1900])
def test_a_price_that_somebody_asked_changes_nothing_for_others(asked: int) -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy('a = "2000/s"', "x = {}", "y = {}", "z = {}"))
        x, y = Callers(world, door, "x"), Callers(world, door, "y")
        x.start(300)
        y.start(300)
        await world.clock.sleep(2 * SECOND_NS)
        with pytest.raises(Refused, match="z has no limit, but a is at its capacity"):
            await door.acquire("z", asked)
        await world.clock.sleep(4 * SECOND_NS)
        pairs = zip(x.full_periods(), y.full_periods(), strict=True)
        assert all(abs(one - other) <= 0.01 * one for one, other in pairs)

    run(body)


def test_whole_requests_are_placed_where_they_can_go() -> None:
    """A limit of 100 and a request of 60 at each of two servers: half of it at each serves neither."""

    async def body(world: World) -> None:
        servers = 'a = "1000/s", b = "1000/s"'
        door, _ = await open_rate(world, make_policy(servers, 'acme = { limit = "100/s" }'))
        doors = [await open_server(door, "a"), await open_server(door, "b")]
        both = [Timed(world, each, "acme", range(60, 61)).start() for each in doors]
        await world.clock.sleep(20 * SECOND_NS)
        assert min(each.tokens for each in both) >= 9 * 60
        assert max(each.longest for each in both) <= 2.5
        assert max((both[0].periods + both[1].periods).values()) == 60

    run(body, seconds=30)


def test_small_requests_beside_a_large_one_use_what_it_leaves() -> None:
    async def body(world: World) -> None:
        servers = 'a = "1000/s", b = "1000/s"'
        door, _ = await open_rate(world, make_policy(servers, 'acme = { limit = "100/s" }'))
        large = Timed(world, await open_server(door, "a"), "acme", range(60, 61)).start()
        small = Timed(world, await open_server(door, "b"), "acme", range(1, 2)).start(10)
        await world.clock.sleep(20 * SECOND_NS)
        assert large.longest <= 3.5 and large.tokens >= 6 * 60
        assert large.tokens + small.tokens >= 0.85 * 20 * 100

    run(body, seconds=30)
