"""The simulated network: what it loses and repeats, and what it never does."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import Ping, Pong, Work, idle, run_nodes, sleep

from bursar.errors import NoAnswerError, RemoteError, UnreachableError, UsageError
from bursar.sim.faults import Faults
from bursar.sim.simulation import Simulation
from bursar.world import MESSAGE_MAX_BYTES, MILLISECOND_NS, SECOND_NS, Message, World

COUNT = 400


class Big(Message, frozen=True):
    data: bytes


def exchange(faults: Faults, seed: int = 1, work: Work | None = None) -> list[int]:
    """What `b` receives of the numbers that `a` sends, one each millisecond."""
    received: list[int] = []

    async def take(sender: str, message: Ping) -> None:
        assert sender == "a"
        received.append(message.number)

    async def boot_a(world: World) -> None:
        for number in range(COUNT):
            world.network.send("b", "t", Ping(number))
            await world.clock.sleep(MILLISECOND_NS)

    nodes = {"a": boot_a, "b": lambda world: world.network.serve("t", Ping, take)}
    run_nodes(nodes, work, seed=seed, faults=faults)
    return received


def test_a_quiet_network_delivers_everything_once_in_order() -> None:
    assert exchange(Faults()) == list(range(COUNT))


def test_loss_loses_about_as_many_as_it_says() -> None:
    received = exchange(Faults(loss=0.25))
    assert 0.6 * COUNT < len(received) < 0.9 * COUNT
    assert received == sorted(set(received))


def test_duplicates_arrive_twice() -> None:
    received = exchange(Faults(duplicate=0.25))
    assert set(received) == set(range(COUNT))
    assert 1.1 * COUNT < len(received) < 1.4 * COUNT


def test_reordering_keeps_every_message() -> None:
    received = exchange(Faults(reorder=0.5, slow=0.1))
    assert received != sorted(received)
    assert sorted(received) == list(range(COUNT))


def test_a_cut_loses_one_direction_for_its_time() -> None:
    async def cut(sim: Simulation) -> None:
        await sleep(sim, 100 * MILLISECOND_NS)
        mend = sim.fabric.cut([("a", "b")])
        await sleep(sim, 100 * MILLISECOND_NS)
        mend()

    received = exchange(Faults(), work=cut)
    assert received[:95] == list(range(95))
    assert received[-195:] == list(range(205, COUNT))
    assert 290 < len(received) < 310

    async def cut_other_way(sim: Simulation) -> None:
        sim.fabric.cut([("b", "a")])

    assert exchange(Faults(), work=cut_other_way) == list(range(COUNT))


def test_overlapping_cuts_end_with_the_last() -> None:
    async def cut(sim: Simulation) -> None:
        first = sim.fabric.cut([("a", "b")])
        second = sim.fabric.cut([("a", "b")])
        first()
        await sleep(sim, 2 * COUNT * MILLISECOND_NS)
        second()

    assert exchange(Faults(), work=cut) == []


def test_a_clog_holds_messages_back_and_then_delivers_them() -> None:
    times: list[int] = []

    async def boot_a(world: World) -> None:
        for number in range(10):
            world.network.send("b", "t", Ping(number))
            await world.clock.sleep(MILLISECOND_NS)

    def boot_b(world: World) -> None:
        async def take(sender: str, message: Ping) -> None:
            times.append(world.clock.now() - begun)

        begun = world.clock.now()
        world.network.serve("t", Ping, take)

    async def clog(sim: Simulation) -> None:
        sim.fabric.clog(("a", "b"), SECOND_NS)

    run_nodes({"a": boot_a, "b": boot_b}, clog)
    assert times == [SECOND_NS] * 10


PING = Ping(1)


def call_b(serve: Any, message: Message = PING, reply: Any = Pong, **given: Any) -> Any:
    """What comes of calling `b`: the reply or the error."""
    outcome: list[Any] = []

    async def boot_a(world: World) -> None:
        await world.clock.sleep(MILLISECOND_NS)
        try:
            outcome.append(await world.network.call(given.get("peer", "b"), "t", message, reply, SECOND_NS))
        except Exception as error:  # noqa: BLE001  # the test looks at it
            outcome.append(error)

    def boot_b(world: World) -> None:
        if serve is not None:
            world.network.serve("t", Ping, serve)

    run_nodes(
        {"a": boot_a, "b": boot_b}, given.get("work"), faults=given.get("faults"), seed=given.get("seed", 1)
    )
    assert len(outcome) == 1
    return outcome[0]


async def answer(sender: str, message: Ping) -> Pong:
    return Pong(message.number + 1)


def test_a_call_brings_the_reply_as_an_equal_value_of_its_own() -> None:
    sent = Ping(1)
    seen: list[Ping] = []

    async def keep(sender: str, message: Ping) -> Pong:
        seen.append(message)
        return Pong(2)

    assert call_b(keep, sent) == Pong(2)
    assert seen == [sent] and seen[0] is not sent


def test_a_handler_that_refuses_is_a_remote_error() -> None:
    async def refuse(sender: str, message: Ping) -> Pong:
        raise UsageError("not that number")

    error = call_b(refuse)
    assert isinstance(error, RemoteError) and "not that number" in str(error)


def test_requests_and_replies_of_another_type_never_reach_anyone() -> None:
    async def never(sender: str, message: Ping) -> Pong:
        raise AssertionError("a request of another type reached the handler")

    assert isinstance(call_b(never, Pong(1)), RemoteError)
    assert "another type" in str(call_b(answer, reply=Ping))
    assert "does not serve" in str(call_b(None))


def test_no_reply_is_no_answer() -> None:
    async def silent(sender: str, message: Ping) -> None:
        return None

    assert isinstance(call_b(silent), NoAnswerError)


def test_an_unknown_peer_is_unreachable() -> None:
    assert isinstance(call_b(answer, peer="nobody"), UnreachableError)


def test_a_peer_that_is_down_is_unreachable_or_silent() -> None:
    async def kill(sim: Simulation) -> None:
        sim.crash("b", 5 * SECOND_NS)

    found = {type(call_b(answer, work=kill, seed=seed)) for seed in range(12)}
    assert found == {UnreachableError, NoAnswerError}


def test_a_lost_call_or_reply_is_no_answer_and_may_have_happened() -> None:
    handled: list[int] = []

    async def note(sender: str, message: Ping) -> Pong:
        handled.append(message.number)
        return Pong(1)

    outcomes = [call_b(note, faults=Faults(loss=0.5), seed=seed) for seed in range(40)]
    answered = outcomes.count(Pong(1))
    assert all(outcome == Pong(1) or isinstance(outcome, NoAnswerError) for outcome in outcomes)
    assert 0 < answered < len(handled) < 40


def test_a_message_that_is_too_large_or_none_is_refused_before_it_is_sent() -> None:
    assert isinstance(call_b(answer, Big(b"x" * MESSAGE_MAX_BYTES)), UsageError)
    with pytest.raises(Exception, match="is no Message"):
        run_nodes({"a": lambda world: world.network.send("b", "t", "text"), "b": idle})  # type: ignore[arg-type]


def test_a_node_knows_its_peers() -> None:
    peers: list[Any] = []
    run_nodes({"a": lambda world: peers.append(world.network.peers()), "b": idle, "c": idle})
    assert peers == [("b", "c")]
