"""Nodes that leave hand their units over; those that stay grant them."""

from __future__ import annotations

import asyncio

import pytest
from fleet_mutations import KeepsACopy
from quota_town import Quota, Town, left

from bursar.errors import Refused, Unknown
from bursar.quotas import accounts
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.resource import QuotaDecider
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios.quota import LeavingQuotaScenario
from bursar.sim.simulation import Simulation

PLACE = f"{LeavingQuotaScenario.__module__}:{LeavingQuotaScenario.__name__}"
SEEDS = 15
MUTANT_SEEDS = 40


def unspent(llm: Quota, account: str = "beta") -> int:
    return llm.courier.book.ledger.account(account).unspent


async def give_units(llm: Quota, units: int) -> None:
    """At this node."""
    courier = llm.courier
    mints, _ = await accounts.top_up(
        courier.world.store, courier.layout, "beta", units, [courier.book.identity]
    )
    await see_limit(llm, accounts.total(mints))


async def see_limit(llm: Quota, limit: int) -> None:
    """What is topped up is seen by each node within a second or so."""
    async with asyncio.timeout(5):
        while llm.decider.chains.limit("beta") < limit:
            await asyncio.sleep(0.01)


async def open_tree(town: Town, names: str, **settings: object) -> list[Quota]:
    """Nodes that know of each other."""
    nodes = [await town.open(name, **settings) for name in names]
    async with asyncio.timeout(10):
        for node in nodes:
            while len(node.courier.book.members or ()) < len(nodes) or node.courier.book.parent is None:
                if node is nodes[0] and node.courier.book.children:
                    break
                await asyncio.sleep(0.01)
    return nodes


@pytest.mark.parametrize("mode", ["exact", "fast"])
async def test_what_a_node_has_is_granted_by_those_who_stay(town: Town, mode: str) -> None:
    one, two = await open_tree(town, "ab", mode=mode, block=20)
    await (await two.acquire("beta", 5, wait=5.0)).release()
    await (await one.acquire("beta", 5, wait=5.0)).release()
    await give_units(two, 500)
    await see_limit(one, 1_500)
    await town.close("b")
    assert unspent(two) == 0
    await (await one.acquire("beta", 1_490, wait=5.0)).release()
    again = await town.open("b", mode=mode, block=20)
    with pytest.raises(Refused):
        await again.acquire("beta", 1, wait=5.0)
    assert await left(again, "beta") == (0, 0, 1_500)


async def test_the_root_hands_over_to_a_child(town: Town) -> None:
    one, two, three = await open_tree(town, "abc")
    await (await one.acquire("beta", 10, wait=5.0)).release()
    assert one.courier.book.parent is None and unspent(one) > 0
    await town.close("a")
    async with asyncio.timeout(5):
        while two.courier.book.parent is not None and three.courier.book.parent is not None:
            await asyncio.sleep(0.01)
    await (await three.acquire("beta", 990, wait=5.0)).release()


async def test_the_last_node_keeps_what_it_has(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("beta", 10, wait=5.0)).release()
    await town.close("a")
    assert unspent(llm) == 990


async def test_who_does_not_answer_is_not_waited_for_long(town: Town) -> None:
    """Its units are in flight then, until it is back."""
    one, two = await open_tree(town, "ab")
    await (await two.acquire("beta", 5, wait=5.0)).release()
    await give_units(two, 500)
    one.courier.world.network.serve(one.courier.topic, int, one.courier._receive)
    began = asyncio.get_running_loop().time()
    await two.stop()
    assert asyncio.get_running_loop().time() - began < 3
    with pytest.raises(Unknown, match="being stopped"):
        await two.acquire("beta", 1)


def test_no_unit_is_lost_or_doubled_when_nodes_leave_under_every_fault() -> None:
    left = handed_over = 0
    for seed in range(SEEDS):
        scenario = LeavingQuotaScenario()
        Simulation(PLACE, scenario, seed, keep=1).run()
        left += scenario.left
        handed_over += scenario.handed_over
    assert left > SEEDS and handed_over > 10 * left


def test_seeds_catch_a_node_that_keeps_what_it_hands_over() -> None:
    courier = type("Courier", (QuotaCourier,), {"book_class": KeepsACopy})
    decider = type("Decider", (QuotaDecider,), {"courier_class": courier})
    scenario = type("Scenario", (LeavingQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError:
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds did not find it")
