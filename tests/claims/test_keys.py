"""The same key is one acquisition, in the whole resource."""

from __future__ import annotations

import asyncio

import pytest
from tests.claims.stage import Stage, play

from bursar.errors import Refused, Unknown, UsageError
from bursar.resource import Answer, Ticket

TWO = ("n1", "n2")


def test_a_key_is_one_acquisition_until_the_last_lets_go() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        first = await one.claim(["a:E", "b:S"], "ops", key="k")
        second = await one.claim(["b:S", "a:E"], "ops", key="k")
        assert (first.replayed, second.replayed) == (False, True)
        assert first.id == second.id and first.fence == second.fence
        await first.release()
        assert stage.held() == [second.id]
        await second.release()
        assert stage.held() == []
        third = await one.claim(["a:E", "b:S"], "ops", key="k")
        assert not third.replayed and third.fence["a"] > first.fence["a"]

    play(act)


def test_who_waits_for_more_is_told_when_its_claim_moves_elsewhere() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        held = await two.claim(["b:E"], "other")
        first = await one.claim(["a:E"], "ops", key="k")
        waiting = stage.sim.loop.create_task(stage.timed(first.more("b:E", wait=20)))
        await stage.sleep(1)
        second = await two.claim(["a:E"], "ops", key="k")
        took, said = await waiting
        assert isinstance(said, Refused) and took < 5
        await held.release()
        await second.release()

    play(act, TWO)


@pytest.mark.parametrize("name", ["a:E", "a:S"])
@pytest.mark.parametrize("wait", [0.0, 3.0])
def test_two_who_ask_at_once_with_one_key_share_it(wait: float, name: str) -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        for resources in ((one, one), (one, two), (two, one)):
            claims = [each.claim([name], "ops", key="k", wait=wait) for each in resources]
            tasks = [stage.sim.loop.create_task(claim._take()) for claim in claims]
            grants = [await task for task in tasks]
            assert sorted(grant.replayed for grant in grants) == [False, True]
            assert grants[0].fence == grants[1].fence and len(stage.held()) == 1
            for grant in grants:
                await grant.release()
            assert stage.held() == []

    play(act, TWO)


def test_a_key_asked_for_elsewhere_moves_there() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        first = await one.claim(["a:E"], "ops", key="k")
        second = await two.claim(["a:E"], "ops", key="k")
        assert second.replayed and second.fence == first.fence
        back = await one.claim(["a:E"], "ops", key="k")
        assert back.replayed
        await first.release()
        await second.release()
        assert stage.held() == [back.id]
        await back.release()
        assert stage.held() == []

    play(act, TWO)


def test_a_node_that_stops_leaves_alone_what_moved_from_it() -> None:
    ids: list[str] = []

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        await one.claim(["a:E"], "ops", key="k")
        ids.append((await two.claim(["a:E"], "ops", key="k")).id)
        ids.append((await one.claim(["b:E"], "ops")).id)
        await one.stop()
        await stage.sleep(1)
        assert sorted(stage.held()) == sorted(ids)

    history = play(act, TWO).history
    adopted = [any("claim.adopted" in line and id in line for line in history) for id in ids]
    assert adopted == [False, True]  # another node looks after what the stopped one held, and only that


def test_a_key_that_moved_while_its_node_was_cut_off_is_not_released_there() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        first = await one.claim(["a:E"], "ops", key="k")
        heal = stage.cut("n1")
        await stage.sleep(5)
        second = await two.claim(["a:E"], "ops", key="k", wait=5)
        heal()
        await stage.sleep(5)
        await first.release()
        assert second.replayed and stage.held() == [second.id]
        await second.release()
        assert stage.held() == []

    play(act, TWO)


@pytest.mark.parametrize("replies", [True, False])
def test_a_repeat_elsewhere_cancelled_at_any_moment_leaves_no_claim_to_nobody(replies: bool) -> None:
    """Also if just then the store's replies are lost for a while."""

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        moved = 0
        for moment_us in range(0, 24_000, 500):
            first = await one.claim(["a:E"], "ops", key="k", wait=1)
            repeating = stage.sim.loop.create_task(two.claim(["a:E"], "ops", key="k")._take())
            await stage.sleep(moment_us / 1e6)
            heal = None if replies else stage.cut_replies("n2")
            repeating.cancel()
            try:
                second = await repeating
                await first.release()
                assert stage.held() == [second.id]
            except asyncio.CancelledError:
                second = None
                await first.release()
            moved += any(task.attempt == 2 for task in stage.records())
            if heal is not None:
                await stage.sleep(1.2)
                heal()
            if second is not None:
                await second.release()
            await stage.until(lambda: stage.records() == [], 10)
        assert moved > 0

    play(act, TWO)


def test_a_key_asked_for_while_it_is_released_is_one_or_the_other() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        outcomes = []
        for moment_us in range(0, 5_000, 100):
            first = await one.claim(["a:E"], "ops", key="k")
            asking = stage.sim.loop.create_task(one.claim(["a:E"], "ops", key="k", wait=1)._take())
            await stage.sleep(moment_us / 1e6)
            stage.decider("n1").instance.book.plans.forget(["a"])  # so that releasing takes longer
            releasing = stage.sim.loop.create_task(first.release())
            second = await asking
            await releasing
            await stage.sleep(0.01)
            assert stage.held() == [second.id]
            assert (await one.statistics()).part.held == 1
            outcomes.append((second.replayed, second.id == first.id, stage.records()[0].attempt))
            await second.release()
            assert stage.records() == []
        # Claimed anew; shared with the one that was there; or taken over from it as it went.
        assert set(outcomes) == {(False, False, 1), (True, True, 1), (True, True, 2)}

    play(act)


def test_an_old_grant_does_not_release_a_later_acquisition_of_its_key() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        old = await one.claim(["a:S"], "ops", key="k")
        await (await two.claim(["a:S"], "ops", key="k")).release()
        new = await two.claim(["a:S"], "ops", key="k")
        assert not new.replayed
        await old.release()
        assert stage.held() == [new.id]
        assert [task["id"] for task in await stage.decider("n1").tasks.holders("a")] == [new.id]
        newest = await one.claim(["a:S"], "ops", key="k")
        await new.release()
        assert newest.replayed and stage.held() == [newest.id]

    play(act, TWO)


def test_a_key_outlives_the_process_that_held_it() -> None:
    async def act(stage: Stage) -> None:
        first = await stage.resources["n1"].claim(["a:E"], "ops", key="k")
        stage.go_down("n1", 0.5)
        await stage.sleep(5)
        again = await stage.resources["n1"].claim(["a:E"], "ops", key="k", wait=5)
        assert again.replayed and again.fence == first.fence
        await again.release()
        assert stage.held() == []

    play(act, TWO)


def test_a_key_that_waits_elsewhere_is_waited_for() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        held = await one.claim(["a:E"], "other")
        waiting = stage.sim.loop.create_task(one.claim(["a:E"], "ops", key="k", wait=20)._take())
        await stage.until(lambda: len(stage.records()) == 2)
        _, refused = await stage.timed(two.claim(["a:E"], "ops", key="k"))
        assert isinstance(refused, Refused) and "key is in use" in refused.why
        _, refused = await stage.timed(two.claim(["a:E"], "ops", key="k", wait=0.5))
        assert isinstance(refused, Refused) and "key is in use" in refused.why
        assert not stage.decider("n2").instance.claims.asked
        also = stage.sim.loop.create_task(two.claim(["a:E"], "ops", key="k", wait=20)._take())
        await stage.sleep(0.5)
        await held.release()
        first, second = await waiting, await also
        assert (first.replayed, second.replayed) == (False, True) and first.fence == second.fence
        await first.release()
        assert stage.held() == [second.id]
        await second.release()
        assert stage.held() == []

    play(act, TWO)


def test_a_key_with_other_names_or_another_tenant_is_a_mistake() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        held = await one.claim(["a:E"], "ops", key="k")
        for resource in (one, two):
            with pytest.raises(UsageError, match="key 'k' is in use for a:E"):
                await resource.claim(["b:E"], "ops", key="k")
            with pytest.raises(UsageError, match="another tenant's claim"):
                await resource.claim(["a:E"], "x", key="k")
        waiting = stage.sim.loop.create_task(one.claim(["a:E"], "x", key="w", wait=20)._take())
        await stage.sleep(0.2)
        for resource in (one, two):
            with pytest.raises(UsageError, match="key 'w' is in use"):
                await resource.claim(["a:S"], "x", key="w", wait=1)
        await held.release()
        await (await waiting).release()
        assert stage.records() == []

    play(act, TWO)


def test_a_late_grant_of_a_key_is_not_released_from_under_its_repeat() -> None:
    """The first caller gave up while the store was slow; it asked again before the answer came."""

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        await (await one.claim(["a:E"], "ops")).release()
        for again_at in (one, two):
            heal = stage.cut_replies("n1")
            _, first = await stage.timed(one.claim(["a:E"], "ops", key="k"))
            assert isinstance(first, Unknown)
            asking = again_at.claim(["a:E"], "ops", key="k", wait=30)
            again = stage.sim.loop.create_task(asking._take())
            await stage.sleep(0.1)
            heal()
            grant = await again
            await stage.sleep(10)
            assert stage.held() == [grant.id]
            await grant.release()
            await stage.until(lambda: stage.records() == [])

    play(act, TWO)


def test_a_repeat_that_is_cancelled_as_it_is_granted_keeps_nothing() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        first = await one.claim(["a:E"], "ops", key="k")
        give = Ticket.give

        def give_and_cancel(ticket: Ticket, answer: Answer) -> None:
            give(ticket, answer)
            repeat.cancel()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ticket, "give", give_and_cancel)
            repeat = stage.sim.loop.create_task(one.claim(["a:E"], "ops", key="k")._take())
            with pytest.raises(asyncio.CancelledError):
                await repeat
        await first.release()
        await stage.until(lambda: stage.held() == [], 5)

    play(act)
