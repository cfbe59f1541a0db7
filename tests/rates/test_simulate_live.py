"""`bursar simulate` says what live nodes do: the same policy and the same requests, once simulated and once
through the front doors of a node in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from virtual import open_rate, read, run

from bursar.errors import Refused, Unknown
from bursar.rates.resource import open_server
from bursar.simulate.demand import Flows
from bursar.simulate.outcome import simulate
from bursar.simulate.simulation import read_terms
from bursar.world import SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
{options}
servers = {{ a = "400/s", b = "400/s" }}
[resource.api.tenant]
gold = {{ reservation = "300/s", limit = "320/s" }}
capped = {{ limit = "100/s" }}
calm = {{ limit = "400/s" }}
greedy = {{ }}
"""

DEMAND = {
    ("gold", "a"): 310,
    ("gold", "b"): 40,
    ("capped", "a"): 20,
    ("capped", "b"): 160,
    ("calm", "b"): 90,
    ("greedy", "a"): 500,
    ("greedy", "b"): 500,
}
"""Requests a second, at an even pace."""

PERIODS = 6

APART = 0.06
"""Of what a tenant gets, in a period: where servers are full it is chance whose turn comes last."""


def ask_simulator(text: str) -> dict[str, int]:
    policy = read(text)
    terms = read_terms(policy)
    pairs = [(terms.tenants.index(tenant), terms.servers.index(server)) for tenant, server in DEMAND]
    tenant, server = np.array(pairs, np.int64).T
    pace = np.array(list(DEMAND.values()), np.float64)
    flows = Flows(tenant, server, pace, np.zeros(pace.size), np.ones(pace.size))
    served = simulate(terms, flows, 1).served.by_tenant
    return dict(zip(terms.tenants, served.tolist(), strict=True))


def ask_live(text: str) -> dict[str, float]:
    """In a period, on average, and after the first."""
    told: dict[str, Counter[int]] = {tenant: Counter() for tenant, _ in DEMAND}

    async def request(door: Any, tenant: str) -> None:
        try:
            async with door.acquire(tenant, wait=0.5) as grant:
                told[tenant][grant.period] += 1
        except (Refused, Unknown):
            return  # so many wait that its turn does not come, or it fell into the moment between two periods

    async def body(world: World) -> None:
        door, _ = await open_rate(world, text)
        doors = {name: await open_server(door, name) for name in "ab"}
        begins = world.clock.now()

        async def flow(tenant: str, server: str, pace: int) -> None:
            for number in range(pace * PERIODS):
                await world.clock.sleep(begins + number * SECOND_NS // pace - world.clock.now())
                world.spawn(request(doors[server], tenant), "request")

        for (tenant, server), pace in DEMAND.items():
            world.spawn(flow(tenant, server, pace), "flow")
        await world.clock.sleep(PERIODS * SECOND_NS)

    run(body, seconds=PERIODS + 2)
    first = min(min(periods) for periods in told.values())
    whole = range(first + 1, first + PERIODS - 1)
    return {tenant: sum(periods[p] for p in whole) / len(whole) for tenant, periods in told.items()}


@pytest.mark.parametrize("options", ["", "pacing = false", 'interval = "500ms"'])
def test_the_simulator_says_what_live_servers_do(options: str) -> None:
    text = POLICY.format(options=options)
    simulated, live = ask_simulator(text), ask_live(text)
    assert all(simulated[tenant] == pytest.approx(live[tenant], rel=APART) for tenant in live), (
        simulated,
        live,
    )
