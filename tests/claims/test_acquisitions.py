"""Claims behind the door: answers in time whatever the store does, and nothing held by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.acquisitions import Acquisitions
from bursar.claims.holding import Holdings
from bursar.claims.limits import SMALL_IN_FLIGHT_MAX
from bursar.claims.resource import ClaimDecider
from bursar.errors import Refused, Unknown
from bursar.resource import Answer, Ticket
from bursar.resource.grants import Grant
from bursar.sim.errors import RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.scenarios.claim import ClaimScenario
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS, Operation, Stat, World

TWO = ("n1", "n2")
SPARE_S = 0.251
"""What an answer may take beyond the wait."""


# Answers in time


def test_a_name_that_is_held_is_refused_at_once() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        async with one.claim(["a:E"], "ops"):
            seconds, refused = await stage.timed(one.claim(["a:S"], "x"))
            assert isinstance(refused, Refused) and "a is held by ops" in refused.why
            assert refused.retry_after is None and seconds < 0.05

    play(act)


@pytest.mark.parametrize("wait", [0.0, 1.0])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("after", [0.0, 3.0])
@pytest.mark.parametrize("replies", [False, True])
def test_nothing_decided(wait: float, known: bool, after: float, replies: bool) -> None:
    """It is Unknown, in time, and nothing stays held. The store is away for a minute: from just now, or so
    long that the session is lost. A name that was seen free is asked for in one transaction, of which
    nobody knows what became: it is granted, if only the replies are lost."""

    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        if known:
            await (await one.claim(["a:E"], "ops")).release()
        heal = stage.cut_replies("n1") if replies else stage.cut("n1")
        await stage.sleep(after)
        seconds, answer = await stage.timed(one.claim(["a:E"], "x", wait=wait))
        assert isinstance(answer, Unknown), answer
        assert seconds <= wait + SPARE_S
        await stage.sleep(60)
        heal()
        await stage.sleep(5)
        assert stage.records() == []
        async with one.claim(["a:E"], "x", wait=10):
            pass

    play(act)


def test_a_wait_that_began_before_an_outage_is_not_refused_for_what_was_seen_before_it() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        held = await two.claim(["a:E"], "ops")
        waiting = stage.sim.loop.create_task(stage.timed(one.claim(["a:E"], "x", wait=8)))
        await stage.sleep(1)
        stage.cut("n1")
        await stage.sleep(1)
        await held.release()
        seconds, answer = await waiting
        assert isinstance(answer, Unknown) and seconds <= 8 + SPARE_S

    play(act, TWO)


def test_a_wait_that_ends_is_refused_with_who_holds_it() -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        async with two.claim(["a:E"], "ops") as held:
            seconds, answer = await stage.timed(one.claim(["a:E", "b:E"], "x", wait=1))
            assert isinstance(answer, Refused) and f"a is held by {held.id}" in answer.why
            assert 1 <= seconds <= 1 + SPARE_S
            await stage.until(lambda: len(stage.records()) == 1)
            assert stage.held() == stage.marks() == [held.id]

    play(act, TWO)


def test_a_claim_begins_anew_in_the_next_session() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        held = await one.claim(["a:E"], "ops")
        waiting = stage.sim.loop.create_task(one.claim(["a:E"], "x", wait=60)._take())
        await stage.sleep(1)
        before = [task.id for task in stage.records()]
        heal = stage.cut("n1")
        await stage.sleep(10)
        heal()
        await stage.sleep(5)
        await held.release()
        grant = await waiting
        assert len(before) == 2 and grant.id not in before  # whoever takes back the old one finds nothing
        assert grant.fence["a"] > held.fence["a"] and stage.held() == [grant.id]
        await grant.release()
        assert stage.held() == []

    play(act)


def test_a_node_is_ready_while_it_has_a_session_that_it_can_trust() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        assert one.decider.is_ready() and (await one.statistics()).ready
        heal = stage.cut("n1")
        await stage.until(lambda: not one.decider.is_ready(), 3)
        heal()
        await stage.until(one.decider.is_ready)

    play(act)


# Nothing is held by nobody


MOMENTS_US = (*range(0, 6_000, 250), 100_000, 199_000, 201_000, 300_000)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("busy", [False, True])
def test_cancelled_at_any_moment(key: str | None, busy: bool) -> None:
    """It leaves nothing: of a name that is free, and of one that another node holds and then lets go."""

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        granted = 0
        for moment_us in MOMENTS_US:
            held = await two.claim(["a:E"], "ops", wait=5) if busy else None
            claim = one.claim(["a:E", "b:S"], "x", wait=2, key=key)
            claiming = stage.sim.loop.create_task(claim._take())
            await stage.sleep(0.2 if busy else 0)
            letting_go = stage.sim.loop.create_task(held.release()) if held else None
            await stage.sleep(moment_us / 1e6)
            claiming.cancel()
            try:
                await (await claiming).release()
                granted += 1
            except asyncio.CancelledError:
                pass
            if letting_go is not None:
                await letting_go
            await stage.until(lambda: stage.records() == [], 5)
        assert 0 < granted < len(MOMENTS_US)

    play(act, TWO)


def test_a_cancelled_release_releases_all_the_same() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        for moment_us in range(0, 3_000, 250):
            grant = await one.claim(["a:E"], "x", wait=1)
            releasing = stage.sim.loop.create_task(grant.release())
            await stage.sleep(moment_us / 1e6)
            releasing.cancel()
            await stage.until(lambda: stage.records() == [], 5)

    play(act)


def test_a_release_goes_on_until_the_store_is_back() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        grant = await one.claim(["a:E"], "x")
        heal = stage.cut("n1")
        releasing = stage.sim.loop.create_task(stage.timed(grant.release()))
        await stage.sleep(120)
        assert stage.held() == [grant.id]
        heal()
        await stage.until(lambda: stage.records() == [], 20)
        await releasing

    play(act)


def test_what_stops_leaves_nothing_that_nobody_holds() -> None:
    """A grant is under way when the node stops; what waits is told so."""

    async def act(stage: Stage) -> None:
        for moment_us in range(0, 8_000, 250):
            one, two = stage.resources["n1"], stage.resources["n2"]
            held = await two.claim(["b:E"], "ops", wait=5)
            claims = [one.claim(["a:E"], "x", wait=5), one.claim(["b:E"], "x", wait=5)]
            asked = [stage.sim.loop.create_task(stage.timed(claim)) for claim in claims]
            await stage.sleep(moment_us / 1e6)
            stopping = stage.sim.loop.create_task(stage.timed(one.stop()))
            answers = [(await each)[1] for each in asked]
            assert isinstance(answers[1], Unknown) and "stopping" in answers[1].why
            assert (await stopping)[0] <= 1
            if not isinstance(answers[0], Unknown):
                await stage.decider("n2").tasks.force_release("a")  # it was told before
            await held.release()
            await stage.until(lambda: stage.records() == [], 10)
            stage.go_down("n1", 0.1)
            await stage.until(lambda: "n1" in stage.resources)

    play(act, TWO)


@pytest.mark.parametrize("dead_holder", ["keep", "fail"])
def test_what_a_lost_client_held_goes_as_the_policy_says(dead_holder: str) -> None:
    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        old = await one.claim(["a:E"], "ops", key="k")
        assert one.lose(old._source) is None
        assert stage.decider("n1").instance.claims.holdings.ids == []
        _, answer = await stage.timed(two.claim(["a:E"], "x", wait=3))
        if dead_holder == "keep":
            assert isinstance(answer, Refused) and stage.held() == [old.id]
            again = await two.claim(["a:E"], "ops", key="k")
            assert again.replayed and again.fence == old.fence
            await again.release()
        else:
            assert answer.fence["a"] > old.fence["a"]
            await answer.release()
        assert stage.held() == []

    play(act, TWO, dead_holder=dead_holder)


def test_whoever_waits_hears_of_sharers_that_came_after_an_owner() -> None:
    """Another node tells of their end than of the owner's."""

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        owner = await two.claim(["a:E"], "ops")
        waiting = stage.sim.loop.create_task(one.claim(["a:E"], "x", wait=60)._take())
        await stage.sleep(0.5)
        sharing = stage.sim.loop.create_task(two.claim(["a:S"], "ops", wait=60, priority=9)._take())
        await stage.sleep(0.5)
        await owner.release()
        sharer = await sharing
        await stage.sleep(0.5)
        assert not waiting.done()
        await sharer.release()
        seconds, grant = await stage.timed(waiting)
        assert seconds < 1
        await grant.release()

    play(act, TWO)


def test_whoever_waits_for_the_claim_of_a_dead_process_hears_of_its_end() -> None:
    async def act(stage: Stage) -> None:
        old = await stage.resources["n1"].claim(["a:E"], "ops")
        stage.go_down("n1", 20)
        await stage.sleep(10)
        two = stage.resources["n2"]  # which looks after it by now
        waiting = stage.sim.loop.create_task(two.claim(["a:E"], "x", wait=60)._take())
        await stage.until(lambda: "n1" in stage.resources)
        await stage.sleep(1)
        assert not waiting.done()
        assert await stage.decider("n1").tasks.force_release("a") == [old.id]
        seconds, grant = await stage.timed(waiting)
        assert seconds < 1 and grant.fence["a"] > old.fence["a"]

    play(act, TWO)


def test_whoever_waits_for_a_kept_claim_hears_of_its_end() -> None:
    """Wherever it is ended: by force, or by whoever has its key."""

    async def act(stage: Stage) -> None:
        one, two = stage.resources["n1"], stage.resources["n2"]
        for ends in ("force", "key"):
            old = await one.claim(["a:E"], "ops", key="k")
            waiting = stage.sim.loop.create_task(one.claim(["a:E"], "x", wait=20)._take())
            await stage.sleep(0.5)
            one.lose(old._source)
            await stage.sleep(0.5)
            if ends == "force":
                assert await stage.decider("n2").tasks.force_release("a") == [old.id]
            else:
                await (await two.claim(["a:E"], "ops", key="k")).release()
            seconds, grant = await stage.timed(waiting)
            assert seconds < 1
            await grant.release()

    play(act, TWO)


def test_whoever_gives_up_twice_gave_up() -> None:
    """The time is up while a grant is under way; then the caller goes too."""

    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        await (await one.claim(["a:E"], "ops")).release()
        heal = stage.cut_replies("n1")
        claiming = stage.sim.loop.create_task(one.claim(["a:E"], "x", wait=0.3)._take())
        await stage.sleep(0.4)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await stage.sleep(1)
        heal()
        await stage.until(lambda: stage.records() == [])

    play(act)


def test_few_transactions_are_under_way_at_once_however_many_are_granted_and_end() -> None:
    async def act(stage: Stage) -> None:
        store, things = stage.decider("n1").instance.world.store, stage.resources["n1"]
        transact, most, under_way, granted = store.transact, 0, 0, list[int]()

        async def count(operations: Sequence[Operation]) -> list[str | Stat | None]:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            try:
                return await transact(operations)
            finally:
                under_way -= 1

        store.transact = count  # type: ignore[method-assign]

        async def hold(name: str) -> None:
            async with things.claim((name,), "t", wait=20):
                granted.append(stage.sim.now_ns)

        for number in range(40):
            stage.sim.loop.create_task(hold(f"n{number}:E"))
            await stage.sleep(0.0001)
        asked_ns = stage.sim.now_ns
        await stage.until(lambda: len(granted) == 40)
        assert max(granted) - asked_ns < 50 * MILLISECOND_NS, "who waits for one under way is next"
        assert 1 < most <= 2 * SMALL_IN_FLIGHT_MAX, "of grants, and of ends"

    play(act)


# Tickets


class Answers:
    """What became of every ticket, in one run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: dict[Ticket, World] = {}
        self.counts: dict[Ticket, int] = {}
        withdrawn: dict[Ticket, None] = {}
        decide, withdraw, give = ClaimDecider.decide, ClaimDecider.withdraw, Ticket.give

        def note_decide(decider: ClaimDecider, ticket: Ticket) -> None:
            self.asked[ticket] = decider._world
            self.counts[ticket] = 0
            decide(decider, ticket)

        def note_withdraw(decider: ClaimDecider, ticket: Ticket) -> Any:
            answer = withdraw(decider, ticket)
            if answer is not None:
                self.counts[ticket] += 1
                withdrawn[ticket] = None
            return answer

        def note_give(ticket: Ticket, answer: Answer) -> None:
            is_doors_own = ticket in withdrawn or str(answer).endswith("did not decide in time")
            self.counts[ticket] += not is_doors_own
            give(ticket, answer)

        patch.setattr(ClaimDecider, "decide", note_decide)
        patch.setattr(ClaimDecider, "withdraw", note_withdraw)
        patch.setattr(Ticket, "give", note_give)


@pytest.mark.parametrize("seed", range(8))
def test_every_ticket_is_answered_once_or_taken_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Under every fault, by every node that lives to the end."""
    answers, scenario = Answers(monkeypatch), ClaimScenario()
    Simulation("claim", scenario, seed, keep=50).run()
    last = {name: scenario.sim.node(name).incarnation for name in scenario.sim.names}
    lived = [ticket for ticket, world in answers.asked.items() if world.incarnation == last[world.name]]
    assert len(lived) > 5
    assert {answers.counts[ticket] for ticket in lived} == {1}


def test_on_a_slow_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up while a grant is under way, for which another node was faster."""
    answers = Answers(monkeypatch)
    outcomes: dict[str, int] = {}

    async def act(stage: Stage) -> None:
        async def work(node: str) -> None:
            for number in range(80):
                wait = (0.0, 0.05, 0.2, 0.25)[number % 4]
                seconds, outcome = await stage.timed(stage.resources[node].claim(["a:E"], "x", wait=wait))
                outcomes[type(outcome).__name__] = outcomes.get(type(outcome).__name__, 0) + 1
                assert seconds <= wait + SPARE_S
                if isinstance(outcome, Grant):
                    await outcome.release()

        for task in [stage.sim.loop.create_task(work(node)) for node in TWO]:
            await task
        await stage.sleep(20)
        assert stage.records() == []

    play(act, TWO, faults=Faults(store_slow=1.0, slow_ns=80_000_000))
    assert set(outcomes) == {"Grant", "Refused", "Unknown"}
    assert set(answers.counts.values()) == {1}


# Breaches


def keeps_what_is_let_go(self: Holdings, held: Any) -> None:
    held.holders -= 1


def forgets_what_was_sent(self: Acquisitions) -> None:
    for asked in list(self._asked.values()):
        asked.may_be_recorded = True
        if not asked.is_settling:
            self._settling.begin(asked)


def always_refuses(self: Acquisitions, asked: Any) -> Refused:
    return Refused("not granted in time")


def forgets_records(self: Acquisitions, asked: Any) -> None:
    self._instance.admission.drop_claim(asked.task.id)
    self._forget(asked)


def thinks_it_is_decided(self: Acquisitions, asked: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("whose", "method", "breach", "test", "arguments"),
    [
        (Holdings, "finish", keeps_what_is_let_go, test_cancelled_at_any_moment, (None, False)),
        (Acquisitions, "lose_session", forgets_what_was_sent, test_nothing_decided, (1.0, True, 0.0, True)),
        (Acquisitions, "_explain", always_refuses, test_nothing_decided, (1.0, False, 0.0, False)),
        (Acquisitions, "_leave", forgets_records, test_cancelled_at_any_moment, (None, True)),
        (Acquisitions, "_is_undecided", thinks_it_is_decided, test_nothing_decided, (0.0, True, 0.0, True)),
    ],
)
def test_a_breach_is_caught(
    monkeypatch: pytest.MonkeyPatch, whose: Any, method: str, breach: Any, test: Any, arguments: Any
) -> None:
    test(*arguments)
    monkeypatch.setattr(whose, method, breach)
    with pytest.raises((RunFailedError, KeyError)):
        test(*arguments)
