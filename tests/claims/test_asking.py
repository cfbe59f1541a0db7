"""Asking for more while running: all or nothing, who waits, who is told to give way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.asking import Asking
from bursar.claims.book import ClaimBook, Plan
from bursar.claims.ending import Ending
from bursar.claims.instance_book import InstanceBook, More
from bursar.claims.model import State, Task
from bursar.errors import BursarError, Refused, UsageError
from bursar.policy.values import Table
from bursar.resource.grants import Grant
from bursar.sim.errors import RunFailedError
from bursar.sim.orders import OrderSearch, Walk
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.claim.asking import AskingClaims, CountedClaims
from bursar.sim.scenarios.claim.small import SmallClaims
from bursar.sim.scenarios.claim_more import MoreClaimScenario
from bursar.sim.simulation import Simulation


async def try_more(grant: Grant, *names: str, wait: float = 0.0) -> str:
    try:
        await grant.more(*names, wait=wait)
    except BursarError as error:
        return f"{type(error).__name__}: {error}"
    return "granted"


def test_more_is_held_and_released_with_the_rest() -> None:
    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        grant = await things.claim(("a:E",), "t")
        await grant.more("b:E", "c:S", "gpu:2")
        assert set(grant.fence) == {"a", "b", "c"} and grant.amount == 4
        for name in ("b:E", "c:E", "gpu:1"):
            with pytest.raises(Refused):
                await things.claim((name,), "other")
        assert await try_more(grant, "b:E") == "granted", "it has it"
        await grant.release()
        async with things.claim(("a:E", "b:E", "c:E", "gpu:2"), "other") as later:
            assert all(later.fence[name] > grant.fence[name] for name in grant.fence)

    play(act, counted=Table({"gpu": 2}))


def test_all_or_nothing_and_no_name_changes_its_mode() -> None:
    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        grant = await things.claim(("a:S",), "t")
        async with things.claim(("b:E",), "other"):
            assert (await try_more(grant, "c:E", "b:E")).startswith("Refused: b is held by other")
            async with things.claim(("c:E",), "other"):
                pass
        with pytest.raises(UsageError, match="cannot become exclusive"):
            await grant.more("a:E")
        async with things.claim(("gpu:1",), "other"):
            assert "nobody who holds something waits" in await try_more(grant, "d:E", "gpu:1", wait=5)
        assert await try_more(grant, "d:E", "gpu:1") == "granted"
        await grant.release()
        with pytest.raises(UsageError, match="released already"):
            await grant.more("b:E")

    play(act, counted=Table({"gpu": 1}))


@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2")])
def test_the_older_one_waits_and_the_younger_one_gives_way(nodes: tuple[str, ...]) -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources[nodes[0]], stage.resources[nodes[-1]]
        older = await one.claim(("a:E",), "t", wait=1)
        younger = await other.claim(("b:E",), "t", wait=1)
        waiting = stage.sim.loop.create_task(try_more(older, "b:E", wait=20))
        await stage.sleep(1)
        took, said = await stage.timed(try_more(younger, "a:E", wait=20))
        assert took < 0.2 and f"{older.id} began earlier, so let go" in said, said
        assert not waiting.done()
        await younger.release()
        took, said = await stage.timed(waiting)
        assert took < 0.2 and said == "granted" and set(older.fence) == {"a", "b"}
        await older.release()
        assert not stage.records()

    play(act, nodes)


@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2")])
def test_what_an_older_task_that_aged_has_reserved_counts_as_held(nodes: tuple[str, ...]) -> None:
    """It waits for a, which the younger one holds; b is free, and reserved for it."""

    async def act(stage: Stage) -> None:
        one, other = stage.resources[nodes[0]], stage.resources[nodes[-1]]
        first = await one.claim(("a:E",), "t", wait=1)
        large = stage.sim.loop.create_task(hold(one, ("a:E", "b:E", "c:E")))
        await stage.sleep(0.5)
        between = await other.claim(("c:E",), "t", wait=1)
        await stage.sleep(4)
        took, said = await stage.timed(try_more(between, "b:E", wait=20))
        assert took < 0.3 and "b is reserved for" in said and "began earlier" in said, said
        assert await try_more(first, "b:E", wait=5) == "granted", "who is older than it passes it over"
        await between.release()
        await first.release()
        await stage.until(large.done, 2)

    async def hold(things: Any, names: tuple[str, ...]) -> None:
        async with things.claim(names, "large", wait=60):
            pass

    play(act, nodes, aging_ns=2 * 10**9)


def test_who_gives_up_asking_reserves_nothing() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]
        older = await one.claim(("a:E",), "t", wait=1)
        younger = await other.claim(("b:E",), "t", wait=1)
        assert (await try_more(older, "b:E", wait=1)).startswith("Refused: b is held by")
        await stage.sleep(1)
        assert all(not task.asks for task in stage.records())
        await younger.release()
        async with other.claim(("b:E",), "t", wait=1):
            pass
        await older.release()

    play(act, ("n1", "n2"))


def test_a_dead_one_that_asked_keeps_what_it_held_and_no_more() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]
        older = await one.claim(("a:E",), "t", wait=1)
        younger = await other.claim(("b:E",), "t", wait=1)
        stage.sim.loop.create_task(try_more(older, "b:E", wait=60))
        await stage.sleep(1)
        assert [task.asks for task in stage.records() if task.asks] == [(("b", "E"),)]
        stage.go_down("n1", 60)
        await stage.sleep(15)
        await younger.release()
        async with other.claim(("b:E",), "t", wait=5):
            with pytest.raises(Refused):
                await other.claim(("a:E",), "t")

    play(act, ("n1", "n2"))


def test_a_task_that_is_tried_again_has_what_it_was_submitted_with() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]
        id = await one.verb("submit", tenant="t", names="a:E", payload=b"100", key="k")
        await stage.until(lambda: bool(stage.held()))
        [holder] = [task.holder for task in stage.records() if task.state is State.RUNNING]
        node = holder.partition(".")[0]
        instance = stage.decider(node).instance
        task = instance.mine[id].task
        after = await instance.more(id, task.attempt, ("b:E",), wait_ns=0)
        assert set(after) == {"a", "b"}
        there = other if node == "n1" else one
        assert await there.verb("submit", tenant="t", names="a:E", payload=b"100", key="k") == id
        stage.go_down(node, 30)
        await stage.until(lambda: any(task.attempt == 2 for task in stage.records()), 30)
        [again] = stage.records()
        assert [name for name, _ in again.needs] == ["a"]
        async with there.claim(("b:E",), "t", wait=1):
            pass

    play(act, ("n1", "n2"), works=True)


# Under every fault, and in every order

FEW = 24


@pytest.mark.parametrize("part", range(3))
def test_seeds(part: int) -> None:
    for seed in range(part * FEW // 3, (part + 1) * FEW // 3):
        run_seed("claim_more", seed, keep=50)


@pytest.mark.parametrize(("world", "departures"), [(AskingClaims, 1), (CountedClaims, 0)])
def test_every_order(world: type[SmallClaims], departures: int) -> None:
    """`bursar sim claim_more --search`, and `claim_counts`, go further."""
    found = OrderSearch(world, departures=departures).run()
    assert found.why is None, str(found)


def lets_everybody_wait(self: Asking, id: str, more: More, why: str) -> None:
    """Whoever asks waits, for whomever."""


def counts_no_reservation(self: InstanceBook, id: str) -> dict[str, int | None]:
    """Only who holds a name stands in the way."""
    found = find_blockers(self, id)
    return {other: since for other, since in found.items() if since is None}


find_blockers = InstanceBook.find_blockers


def test_who_waits_for_an_older_one_is_found_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asking, "_judge", lets_everybody_wait)
    found = OrderSearch(AskingClaims, departures=0).run()
    assert found.why is not None and "wait for each other" in found.why, str(found)


@pytest.mark.parametrize(
    ("part", "method", "mistake", "says", "first"),
    [
        (Asking, "_judge", lets_everybody_wait, "never finished|still owned|still shared|not removed", 30),
        (
            InstanceBook,
            "find_blockers",
            counts_no_reservation,
            "never finished|still owned|still shared|not removed",
            343,
        ),
    ],
)
def test_what_would_wait_for_ever_is_caught(
    part: type, method: str, mistake: Any, says: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed is the one that found it."""
    monkeypatch.setattr(part, method, mistake)
    with pytest.raises(RunFailedError, match=says):
        for seed in (first, *range(150)):
            run_seed("claim_more", seed, keep=50)


class TakesWhatIsFree(ClaimBook):
    """Of what is asked for, whatever can be had."""

    def grow(self, task: Task, wanted: Task, version: int, *arguments: Any) -> Plan | None:
        plan = super().grow(task, wanted, version, *arguments)
        if plan is not None and len(wanted.needs) > 1:
            path = self.layout.name(wanted.needs[0][0])
            plan.operations[:] = [op for op in plan.operations if not op.path.startswith(path)]
        return plan


class KeepsTheOldRecord(ClaimBook):
    """What is given besides is not written down with it."""

    def grow(self, task: Task, wanted: Task, version: int, *arguments: Any) -> Plan | None:
        plan = super().grow(task, wanted, version, *arguments)
        if plan is not None:
            plan.operations.pop()
        return plan


@pytest.mark.parametrize("mistake", [TakesWhatIsFree, KeepsTheOldRecord])
def test_a_book_that_gives_parts_is_caught(mistake: type[ClaimBook]) -> None:
    class Wrong(MoreClaimScenario):
        book = mistake

    with pytest.raises(
        RunFailedError, match=r"does not need|owned|guard|removed|shared|never finished|phase"
    ):
        for seed in range(100):
            Simulation("claim_more", Wrong(), seed, keep=50).run()


def let_go_of_what_was_changed() -> None:
    """The store is away until the session of i1 is over; i2 takes c1 over, and clears what it asked for,
    while i1 lets it go. The search of two departures found that its names were kept for ever."""
    walk = Walk(AskingClaims())

    def take_until(*parts: str) -> None:
        while not all(part in walk.labels[-1] for part in parts):
            walk.take(0)

    try:
        walk.take(0)
        take_until("i2: check /claims/things/names, set /claims/things/names/0/b")
        walk.take(0)
        walk.take(0)
        walk.take([label for label, _ in walk.moves()].index("the store is away"))
        take_until("i2: check /claims/things/tasks/0/c1, create /claims/things/busy/0/c1")
        walk.take(0)
        walk.take([label for label, _ in walk.moves()].index("i1: c1 lets go"))
        while walk.moves():
            walk.take(0)
        walk.finish()
    finally:
        walk.close()


def test_a_record_that_another_one_changed_is_let_go_of() -> None:
    let_go_of_what_was_changed()


look_again = Ending._look_again


async def knows_the_whole_record(self: Ending, task: Task) -> bool | None:
    """What is another record by now is another grant's."""
    found = await self._reader.read_task(task.id)
    if found is not None and found[0] != task:
        self.taken_away(task)
        return False
    return await look_again(self, task)


def test_who_knows_its_grant_by_the_whole_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, "_look_again", knows_the_whole_record)
    with pytest.raises(AssertionError, match="not over"):
        let_go_of_what_was_changed()
