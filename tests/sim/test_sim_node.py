"""Crashes, disks, clocks and words: what one node has, and what of it outlives the node."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from small_runs import Ping, Plain, idle, run_nodes, sleep

from bursar.errors import CrashedError, JournalError
from bursar.sim.errors import RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS, SECOND_NS, WORD_MAX, World


async def crash_a(sim: Simulation) -> None:
    await sleep(sim, 100 * MILLISECOND_NS)
    sim.crash("a", 100 * MILLISECOND_NS)


def test_a_crash_does_not_let_finally_blocks_touch_the_world() -> None:
    acted: list[str] = []

    async def boot(world: World) -> None:
        if world.incarnation > 1:
            return
        try:
            await asyncio.gather(asyncio.sleep(3600), world.clock.sleep(SECOND_NS))
        except asyncio.CancelledError:
            acted.append("cancelled")
        finally:
            # Reached only when the run is over and everything is let go: then every port is poisoned.
            world.network.send("b", "t", Ping(1))
            acted.append("sent")

    async def take(sender: str, message: Ping) -> None:
        acted.append("received")

    run_nodes({"a": boot, "b": lambda world: world.network.serve("t", Ping, take)}, crash_a)
    assert acted == []


def test_every_port_of_a_crashed_node_raises() -> None:
    worlds: list[World] = []
    refused: list[str] = []

    async def probe(sim: Simulation) -> None:
        await crash_a(sim)
        (world,) = worlds
        journal = journals[0]
        attempts: dict[str, Any] = {
            "clock.now": world.clock.now,
            "clock.wall": world.clock.wall,
            "clock.sleep": lambda: world.clock.sleep(1),
            "network.serve": lambda: world.network.serve("t", Ping, idle),
            "network.send": lambda: world.network.send("a", "t", Ping(1)),
            "network.call": lambda: world.network.call("a", "t", Ping(1), Ping, 1),
            "network.peers": world.network.peers,
            "store.session": lambda: world.store.session,
            "store.trusted_until": world.store.trusted_until,
            "store.get": lambda: world.store.get("/"),
            "store.create": lambda: world.store.create("/a"),
            "store.renew": world.store.renew,
            "journal": lambda: world.journal("j"),
            "journal.append": lambda: journal.append(b""),
            "journal.sync": journal.sync,
            "journal.replay": journal.replay,
            "journal.rewrite": lambda: journal.rewrite([]),
            "words.read": lambda: world.words.read("w"),
            "words.write": lambda: world.words.write("w", 1),
            "words.fetch_add": lambda: world.words.fetch_add("w", 1),
            "words.compare_and_swap": lambda: world.words.compare_and_swap("w", 0, 1),
            "words.wait": lambda: world.words.wait("w", 0, 1),
            "random.random": world.random.random,
            "random.randrange": lambda: world.random.randrange(0, 2),
            "random.choice": lambda: world.random.choice([1]),
            "random.shuffle": lambda: world.random.shuffle([1]),
            "spawn": lambda: world.spawn(asyncio.sleep(0), "late"),
            "trace": lambda: world.trace("late"),
        }
        for name, attempt in attempts.items():
            with pytest.raises(CrashedError):
                result = attempt()
                if isinstance(result, Coroutine):
                    await result
            refused.append(name)

    journals: list[Any] = []

    def boot(world: World) -> None:
        if world.incarnation == 1:
            worlds.append(world)
            journals.append(world.journal("j"))

    run = run_nodes({"a": boot}, probe)
    assert len(refused) == 28
    assert not any("late" in line for line in run.history)


def test_a_restarted_node_is_a_later_incarnation_with_another_clock() -> None:
    lives: list[tuple[int, int]] = []
    run_nodes({"a": lambda world: lives.append((world.incarnation, world.clock.now()))}, crash_a)
    assert [life for life, _ in lives] == [1, 2]
    assert lives[0][1] != lives[1][1]


def test_messages_to_a_dead_node_are_lost_and_to_its_next_life_arrive() -> None:
    got: list[tuple[int, int]] = []

    def boot_a(world: World) -> None:
        async def take(sender: str, message: Ping) -> None:
            got.append((world.incarnation, message.number))

        world.network.serve("t", Ping, take)

    async def boot_b(world: World) -> None:
        for number in range(6):
            world.network.send("a", "t", Ping(number))
            await world.clock.sleep(60 * MILLISECOND_NS)

    run_nodes({"a": boot_a, "b": boot_b}, crash_a)
    assert got == [(1, 0), (1, 1), (2, 4), (2, 5)]


def test_a_task_that_ends_with_an_error_takes_the_run_down() -> None:
    async def boot(world: World) -> None:
        await world.clock.sleep(MILLISECOND_NS)
        raise KeyError("forgotten")

    with pytest.raises(
        RunFailedError, match=r"task 'boot' of a/1 ended with KeyError: 'forgotten'"
    ) as caught:
        run_nodes({"a": boot}, seed=5)
    assert caught.value.replay == "bursar sim plain --seed 5"
    assert caught.value.at_ns == MILLISECOND_NS
    assert any("a/1" in line for line in caught.value.history)


def test_a_handler_that_breaks_takes_the_run_down() -> None:
    async def take(sender: str, message: Ping) -> None:
        raise AssertionError("a bug")

    nodes = {
        "a": lambda world: world.network.serve("t", Ping, take),
        "b": lambda world: world.network.send("a", "t", Ping(1)),
    }
    with pytest.raises(RunFailedError, match="a bug"):
        run_nodes(nodes)


# Disks


def survivors(work: Any, seed: int) -> list[bytes]:
    """What the second life finds, of what `work(journal)` did in the first until its crash."""
    found: list[list[bytes]] = []

    async def boot(world: World) -> None:
        journal = world.journal("j")
        if world.incarnation > 1:
            found.append(list(journal.replay()))
        else:
            await work(journal)

    run_nodes({"a": boot}, crash_a, seed=seed)
    return found[0]


def test_a_crash_keeps_what_was_synced_and_any_prefix_of_the_rest() -> None:
    async def write(journal: Any) -> None:
        journal.append(b"0")
        journal.append(b"1")
        await journal.sync()
        for number in range(2, 5):
            journal.append(b"%d" % number)
        await asyncio.Event().wait()

    whole = [b"0", b"1", b"2", b"3", b"4"]
    kept = [survivors(write, seed) for seed in range(40)]
    assert all(records == whole[: len(records)] for records in kept)
    assert {len(records) for records in kept} == {2, 3, 4, 5}


def test_a_crash_before_the_sync_returned_may_lose_the_record() -> None:
    async def write(journal: Any) -> None:
        while True:
            journal.append(b"x")
            await journal.sync()
            synced[0] += 1

    for seed in range(20):
        synced = [0]
        assert len(survivors(write, seed)) - synced[0] in (0, 1)


def test_a_rewrite_is_all_or_nothing_and_keeps_what_was_appended_meanwhile() -> None:
    async def write(journal: Any) -> None:
        journal.append(b"old")
        await journal.sync()
        while True:
            rewriting = asyncio.ensure_future(journal.rewrite([b"new", b"newer"]))
            await asyncio.sleep(0)
            journal.append(b"last")
            await rewriting
            await journal.sync()
            await asyncio.Event().wait()

    assert survivors(write, 1) == [b"new", b"newer", b"last"]

    async def rewrite_for_ever(journal: Any) -> None:
        journal.append(b"old")
        await journal.sync()
        number = 0
        while True:
            number += 1
            await journal.rewrite([b"%d" % number] * 2)
            done[0] = number

    for seed in range(20):
        done = [0]
        records = survivors(rewrite_for_ever, seed)
        assert records in ([b"%d" % done[0]] * 2, [b"%d" % (done[0] + 1)] * 2)


def test_a_failing_disk_takes_its_node_down_and_nothing_else() -> None:
    lives: list[int] = []

    async def boot(world: World) -> None:
        lives.append(world.incarnation)
        journal = world.journal("j")
        for _ in range(100):
            journal.append(b"x")
            await journal.sync()

    run_nodes({"a": boot, "b": idle}, faults=Faults(disk_errors=0.02))
    assert lives == list(range(1, len(lives) + 1))
    assert len(lives) > 2


def test_after_a_disk_error_every_call_fails() -> None:
    async def boot(world: World) -> None:
        journal = world.journal("j")
        with pytest.raises(JournalError):
            await journal.sync()
        with pytest.raises(JournalError):
            journal.append(b"x")
        with pytest.raises(JournalError):
            await journal.sync()
        failed.append(True)

    failed: list[bool] = []
    run_nodes({"a": boot}, faults=Faults(disk_errors=1.0))
    assert failed == [True]


# Clocks


@pytest.mark.parametrize("seed", range(6))
def test_clocks_drift_within_the_bound_and_sleep_at_least_as_long_as_asked(seed: int) -> None:
    measured: list[tuple[int, int]] = []

    async def work(sim: Simulation) -> None:
        clock = sim.node("a").clock
        local_ns, true_ns = clock.now(), sim.now_ns
        for duration_ns in (1, 7, 1_000_003, SECOND_NS):
            before = clock.now()
            await clock.sleep(duration_ns)
            assert duration_ns <= clock.now() - before <= duration_ns + 2
        measured.append((clock.now() - local_ns, sim.now_ns - true_ns))
        assert clock.true_ns(clock.now()) <= sim.now_ns
        assert abs(clock.drift_ppm) <= sim.scenario.drift_ppm

    run_nodes({"a": idle}, work, seed=seed, faults=Faults(drift=True))
    ((local_ns, true_ns),) = measured
    assert abs(local_ns - true_ns) <= true_ns * 200 // 1_000_000 + 2


def test_drift_is_often_at_the_bound() -> None:
    drifts = [
        Simulation("x", Plain({"a": idle}), seed, faults=Faults(drift=True)).node("a").drift_ppm
        for seed in range(30)
    ]
    assert {-200, 200} < set(drifts)


def test_a_paused_node_stands_still_and_misses_nothing() -> None:
    seen: list[int] = []

    async def boot(world: World) -> None:
        for _ in range(4):
            await world.clock.sleep(100 * MILLISECOND_NS)
            seen.append(world.clock.now() - begun[0])

    begun: list[int] = []

    async def pause(sim: Simulation) -> None:
        begun.append(sim.node("a").clock.now())
        await sleep(sim, 150 * MILLISECOND_NS)
        sim.node("a").life.pause(sim.now_ns + SECOND_NS)

    run_nodes({"a": boot}, pause)
    assert seen == [moment * MILLISECOND_NS for moment in (100, 1150, 1250, 1350)]


# Words


def test_words_are_shared_wrap_and_outlive_a_crash() -> None:
    read: list[int] = []

    def boot_a(world: World) -> None:
        if world.incarnation == 1:
            assert world.words.read("w") == 0
            world.words.write("w", WORD_MAX)
            assert world.words.fetch_add("w", 3) == WORD_MAX
            assert world.words.compare_and_swap("w", 1, 9) == 2
            assert world.words.compare_and_swap("w", 2, 9) == 2
        read.append(world.words.read("w"))

    run_nodes({"a": boot_a, "b": lambda world: read.append(world.words.read("w"))}, crash_a)
    assert read == [9, 9, 9]


def test_waiting_for_a_word_ends_with_its_change_or_the_timeout() -> None:
    ends: list[tuple[int, int]] = []

    async def boot_a(world: World) -> None:
        begun = world.clock.now()
        for _ in range(2):
            value = await world.words.wait("w", world.words.read("w"), 100 * MILLISECOND_NS)
            ends.append((value, world.clock.now() - begun))

    async def boot_b(world: World) -> None:
        await world.clock.sleep(30 * MILLISECOND_NS)
        world.words.write("w", 5)

    run_nodes({"a": boot_a, "b": boot_b})
    assert ends == [(5, 30 * MILLISECOND_NS), (5, 130 * MILLISECOND_NS)]
