"""A quota in a fleet: units are minted by the terms in force and by no others."""

from __future__ import annotations

import asyncio

import pytest
from fleet_mutations import ChangesUnguarded, GuardsLate, MintsUnguarded
from quota_town import TENANTS, Quota, Town
from test_quota_changes import list_stored

from bursar.errors import Unknown
from bursar.fleet.following import FleetView
from bursar.fleet.layout import HEAD
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts
from bursar.quotas.courier import QuotaCourier
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios.quota import FleetQuotaScenario
from bursar.sim.scenarios.quota.variants import ShortWindows
from bursar.sim.simulation import Simulation

PLACE = f"{FleetQuotaScenario.__module__}:{FleetQuotaScenario.__name__}"
SEEDS = 12
MUTANT_SEEDS = 60


def test_units_are_minted_by_the_terms_in_force_under_every_fault() -> None:
    """A failure names its seed and the command that replays it."""
    changed = 0
    for seed in range(SEEDS):
        scenario = FleetQuotaScenario()
        Simulation(PLACE, scenario, seed, keep=1).run()
        changed += scenario.changed
    assert changed > SEEDS, "limits do change, so that there is something to get wrong"


@pytest.mark.parametrize("mutation", [MintsUnguarded, GuardsLate, ChangesUnguarded])
def test_seeds_catch_a_node_that_mints_by_older_terms(mutation: type[QuotaCourier]) -> None:
    decider = type("Decider", (ShortWindows,), {"courier_class": mutation})
    scenario = type("Scenario", (FleetQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            assert "the terms in force say" in failure.why, failure.why
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds did not find it")


async def apply_terms(town: Town, name: str) -> int:
    """Somebody applies other terms; nobody has followed yet."""
    store = town.worlds[name].store
    await store.ensure(HEAD)
    return (await store.set(HEAD, b"{}")).version


def follow(town: Town, name: str, version: int) -> None:
    view = town.worlds[name].fleet
    assert isinstance(view, FleetView)
    view.head = version


async def test_a_node_on_older_terms_opens_no_account_and_says_why(town: Town) -> None:
    llm = await town.open("a")
    follow(town, "a", await apply_terms(town, "a"))
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    newer = await apply_terms(town, "a")
    with pytest.raises(Unknown, match="newer terms are in force than those this node runs"):
        await llm.acquire("beta", 1, wait=0.2)
    assert await list_stored(llm) == ["acme"]
    assert (await llm.acquire("acme", 10, wait=5.0)).amount == 10, "what was minted before is there to use"
    with pytest.raises(Unknown, match="newer terms"):
        await llm.verb("set_limit", tenant="acme", limit=150)
    follow(town, "a", newer)
    assert (await llm.acquire("beta", 1, wait=5.0)).amount == 1


async def test_limits_are_carried_out_once_the_node_runs_the_terms_that_they_come_from(town: Town) -> None:
    """A node takes a policy first, and counts as one that runs it a moment later."""
    llm = await town.open("a")
    follow(town, "a", await apply_terms(town, "a"))
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    newer = await apply_terms(town, "a")
    await llm.reconfigure(QuotaPolicy(name="llm", tenants={**TENANTS, "acme": QuotaTenant(limit=300)}))
    assert limit_of(llm, "acme") == 100
    follow(town, "a", newer)
    async with asyncio.timeout(5):
        while limit_of(llm, "acme") != 300:
            await asyncio.sleep(0.01)


def limit_of(llm: Quota, account: str) -> int:
    return accounts.total(llm.courier.mints[account])
