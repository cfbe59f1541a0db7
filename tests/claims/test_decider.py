"""What may be asked of the kind, and what it answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.fences import Guard, StaleFence
from bursar.errors import Refused, UsageError
from bursar.policy import ClaimPolicy, ClaimTenant


def test_without_names_it_is_the_resource_as_a_whole() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        async with one.acquire("ops") as grant:
            assert list(grant.fence) == ["things"] and grant.amount == 1
            with pytest.raises(Refused, match="things is held by ops"):
                await one.acquire("x")
        with pytest.raises(Refused, match="never gets more than 1"):
            await one.acquire("ops", 2)
        async with one.claim(["a:E", "b:S"], "ops") as grant:
            assert grant.amount == 2

    play(act)


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (["a:X"], {}, "end it with"),
        (["a//b"], {}, "no empty segment"),
        (["a:E"], {"priority": 5000}, "priority is a number"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(names: list[str], options: dict[str, Any], says: str) -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(UsageError, match=says):
            await stage.resources["n1"].claim(names, "ops", **options)

    play(act)
    play(act, shadow=True)


@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_in_shadow_mode_everybody_goes_with_a_fence_that_no_guard_takes(wait: float) -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        grants = [await one.claim(["a:E", "b:S"], "ops", wait=wait) for _ in range(2)]
        await stage.sleep(1)
        for grant in grants:
            assert grant.fallback == "shadow" and set(grant.fence) == {"a", "b"}
            with pytest.raises(StaleFence):
                Guard().check("a", grant.fence["a"])
        tally = (await one.statistics()).tenants["ops"]
        assert (tally.would_refuse, tally.would_refuse_requests) == (2, 1)
        for grant in grants:
            await grant.release()
        await stage.until(lambda: stage.records() == [])

    play(act, shadow=True)


def test_higher_priority_comes_first() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        held = await one.claim(["a:E"], "ops")
        order: list[int] = []

        async def take(priority: int) -> None:
            async with one.claim(["a:E"], "ops", wait=20, priority=priority):
                order.append(priority)

        waiting = []
        for priority in (0, 1, -5):
            waiting.append(stage.sim.loop.create_task(take(priority)))
            await stage.sleep(0.1)
        await held.release()
        for task in waiting:
            await task
        assert order == [1, 0, -5]

    play(act)


def test_weights_and_dead_holders_change_while_it_runs() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        changed = ClaimPolicy(name="things", dead_holder="fail", tenants={"ops": ClaimTenant(weight=3)})
        await one.reconfigure(changed)
        old = await one.claim(["a:E"], "ops")
        one.lose(old._source)
        await stage.until(lambda: stage.records() == [])
        with pytest.raises(Refused, match='no tenant "opps"'):
            await one.verb("submit", tenant="opps", names="a:E")
        with pytest.raises(UsageError, match="paths: who holds or waits for a name"):
            await one.reconfigure(ClaimPolicy(name="things", paths=True))

    play(act)
