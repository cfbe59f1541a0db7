"""Claims of tenants that no line of the policy names, terms that change, and instances that leave."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.resource import FORGET_NS, open_resource
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.errors import Refused
from bursar.policy import ClaimPolicy, ClaimTenant
from bursar.runtime.world import open_world
from bursar.sim.scenarios.claim import LeavingClaimScenario
from bursar.sim.simulation import Simulation
from bursar.world import SECOND_NS

OPS = {"ops": ClaimTenant(weight=2)}
TEAMS = {"team/*": ClaimTenant(weight=3)}
PLACE = f"{LeavingClaimScenario.__module__}:{LeavingClaimScenario.__name__}"
SEEDS = 12
numbers = itertools.count()


def test_tenants_of_a_template_claim_and_submit_up_to_max_tenants_and_are_forgotten() -> None:
    async def act(stage: Stage) -> None:
        one, decider = stage.resources["n1"], stage.decider("n1")
        held = await one.claim(["a:E"], "team/a")
        assert decider._find_weight("team/a") == 3
        await one.verb("submit", tenant="team/b", names="a:E")
        with pytest.raises(Refused, match='as many tenants as it may have, 3: "team/c"'):
            await one.claim(["b:E"], "team/c")
        with pytest.raises(Refused, match="as many tenants"):
            await one.verb("submit", tenant="team/c", names="a:E")
        with pytest.raises(Refused, match='no tenant "zoe"'):
            await one.verb("submit", tenant="zoe", names="a:E")
        await stage.sleep(FORGET_NS / SECOND_NS + 1)
        assert list(decider.strangers) == ["team/a"], "who submitted elsewhere neither waits nor holds here"
        await held.release()
        await stage.sleep(FORGET_NS / SECOND_NS + 1)
        assert not decider.strangers and decider.instance.queue._served == {}
        await (await one.claim(["b:E"], "team/c")).release()
        assert set((await one.statistics()).tenants) == {"ops", "team/c", "*"}

    play(act, tenants=OPS, templates=TEAMS, max_tenants=3)


def test_tenants_templates_and_aging_change_while_claims_wait() -> None:
    async def act(stage: Stage) -> None:
        one, decider = stage.resources["n1"], stage.decider("n1")
        held = await one.claim(["a:E"], "ops")
        waiting = stage.sim.loop.create_task(one.claim(["a:E"], "ops", wait=100)._take())
        await stage.sleep(0.1)
        with pytest.raises(Refused):
            await one.claim(["a:E"], "team/a")
        changed = ClaimPolicy(name="things", tenants=OPS, templates=TEAMS, aging_ns=SECOND_NS)
        await one.reconfigure(changed)
        with pytest.raises(Refused, match="a is held by"):
            await one.claim(["a:E"], "team/a")
        await stage.sleep(2)
        assert [entry.aged for entry in decider.instance.queue.entries.values()] == [True]
        await held.release()
        await (await waiting).release()

    play(act, tenants=OPS)


async def test_an_instance_that_stops_leaves_its_waiting_tasks_to_others_at_once() -> None:
    """Also where its process, and so its session, goes on: a resource that was removed."""
    url = f"memory://leaving-{next(numbers)}"
    worlds = [await open_world(name, store=url) for name in ("one", "two")]
    done: list[str] = []
    gate = asyncio.Event()

    async def wait(dispatch: Dispatch) -> bytes:
        await gate.wait()
        return b""

    async def work(dispatch: Dispatch) -> bytes:
        done.append(dispatch.id)
        return b""

    one, two = (
        open_resource(
            world, "things", ClaimPolicy(name="things"), tracker=InProcessTracker(how), running_max=1
        )
        for world, how in zip(worlds, (wait, work), strict=True)
    )
    await one.start()
    ids = [await one.verb("submit", tenant="t", names=f"n{number}:E") for number in range(30)]
    await asyncio.sleep(0.2)
    await two.start()
    await one.stop()
    async with asyncio.timeout(4):
        while len(done) < 29:
            await asyncio.sleep(0.02)
    assert len(set(ids) - set(done)) == 1, "what runs stays where it runs"
    gate.set()
    await two.stop()
    for world in worlds:
        await world.close()


def test_instances_leave_and_return_under_every_fault_and_no_task_is_lost() -> None:
    left = 0
    for seed in range(SEEDS):
        scenario = LeavingClaimScenario()
        Simulation(PLACE, scenario, seed, keep=1).run()
        left += scenario.left
    assert left > SEEDS
