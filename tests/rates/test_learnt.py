"""What is learnt of a server's capacity: the algorithm alone, beside a server in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bursar.rates.learnt import START_LIMIT, UNLIMITED, UNSEEN_RATE, LearntCapacity, Stay
from bursar.world import MILLISECOND_NS, SECOND_NS

TICK_NS = 100 * MILLISECOND_NS
NETWORK_NS = 300_000


class World:
    """Callers that always want more, and a server with so many workers. `rate` may change; random ones
    take as long as chance has it."""

    def __init__(self, rate: float, workers: int, callers: int = 100, *, random: bool = False) -> None:
        self.learnt = LearntCapacity()
        self.rate, self.workers, self.random = rate, workers, Random(1) if random else None
        self.waiting, self.done, self.stalled_until, self.paused = callers, 0, 0, False
        self.come_back = True
        self.now = 0
        self._busy, self._queue = 0, list[Stay]()
        self._events: list[tuple[int, int, Callable[..., None], Any]] = []
        self._serial = 0
        self._at(0, self._tick)

    def run(self, seconds: float) -> LearntCapacity:
        until = self.now + int(seconds * SECOND_NS)
        while self._events[0][0] <= until:
            self.now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
        self.now = until
        return self.learnt

    def _at(self, moment: int, act: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heapq.heappush(self._events, (moment, self._serial, act, arguments))

    def _tick(self) -> None:
        self._pump()
        self._at(self.now + TICK_NS, self._tick)

    def _pump(self) -> None:
        while self.waiting and not self.paused and not self.learnt.is_full(self.now):
            self.waiting -= 1
            self._at(self.now + NETWORK_NS // 2, self._arrive, self.learnt.begin(self.now, 1))

    def _arrive(self, stay: Stay) -> None:
        self._queue.append(stay)
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._busy < self.workers:
            self._busy += 1
            takes = self.workers * SECOND_NS / self.rate * (self.random.expovariate(1) if self.random else 1)
            self._at(max(self.now, self.stalled_until) + int(takes), self._answer, self._queue.pop(0))

    def _answer(self, stay: Stay) -> None:
        self._busy -= 1
        self._serve()
        self._at(self.now + NETWORK_NS // 2, self._end, stay)

    def _end(self, stay: Stay) -> None:
        self.learnt.end(self.now, stay)
        self.done += 1
        self.waiting += self.come_back
        self._pump()


SERVERS = [(500, 1), (2_000, 1), (300, 20), (1_000, 20), (1_000, 4)]


@pytest.mark.parametrize(("rate", "workers"), SERVERS)
def test_within_a_tenth_three_seconds_after_every_change(rate: int, workers: int) -> None:
    world = World(rate, workers)
    assert world.run(3).rate == pytest.approx(rate, rel=0.1)
    world.rate = rate / 2
    assert world.run(3).rate == pytest.approx(rate / 2, rel=0.1)
    world.rate = rate
    assert world.run(3).rate == pytest.approx(rate, rel=0.1)
    world.paused = True
    assert world.run(5).rate == pytest.approx(rate, rel=0.1)
    world.paused = False
    assert world.run(3).rate == pytest.approx(rate, rel=0.1)
    world.stalled_until = world.now + SECOND_NS
    assert world.run(4).rate == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize(("rate", "workers"), SERVERS)
def test_the_server_is_kept_busy_and_its_queue_short(rate: int, workers: int) -> None:
    world = World(rate, workers, callers=400)
    world.run(4)
    done = world.done
    levels = [world.run(0.05).in_service for _ in range(80)]
    assert world.done - done >= 0.97 * 4 * rate
    busy_with = workers + rate * NETWORK_NS / SECOND_NS
    assert sum(levels) / 80 <= 3 * busy_with + rate * 0.01 + 4, "who waits, waits here"


def test_requests_of_random_length_are_learnt_as_well() -> None:
    world = World(1_000, 20, random=True)
    assert [world.run(3).rate for _ in range(4)] == pytest.approx([1_000] * 4, rel=0.1)


def test_few_callers_that_never_have_to_wait_here_show_a_slower_server_too() -> None:
    world = World(1_000, 4, callers=8)
    assert world.run(3).rate == pytest.approx(1_000, rel=0.1)
    world.rate = 250
    assert world.run(3).rate == pytest.approx(250, rel=0.1)


def test_an_idle_server_is_not_a_slow_one() -> None:
    world = World(2_000, 1)
    world.run(3)
    world.come_back, world.waiting = False, 0
    for _ in range(100):  # now and then one request
        world.run(0.05)
        world.waiting = 1
    assert world.learnt.rate == pytest.approx(2_000, rel=0.02)


def test_hiccups_under_light_load_do_not_lower_the_estimate() -> None:
    world = World(2_000, 1, callers=200)
    world.run(3)
    world.come_back, world.waiting = False, 0
    for step in range(400):
        world.waiting = 10
        world.stalled_until = world.now + 200 * MILLISECOND_NS if step % 20 == 0 else 0
        world.run(0.05)
    assert world.learnt.rate == pytest.approx(2_000, rel=0.1)


def test_what_is_served_without_saturation_is_a_lower_bound() -> None:
    world = World(50_000, 50, callers=10)
    assert UNSEEN_RATE < world.run(3).rate <= 50_000


def test_callers_that_never_say_when_they_are_done_are_not_kept_waiting_for_long() -> None:
    """And what went is the lower bound."""
    learnt = LearntCapacity()
    went = 0
    for moment in range(0, 10 * SECOND_NS, SECOND_NS // 4_000):
        if not learnt.is_full(moment):
            learnt.begin(moment, 1)
            went += 1
    assert learnt.limit == UNLIMITED
    assert went >= 0.8 * 40_000
    assert learnt.rate == pytest.approx(4_000, rel=0.1)


def test_grants_that_are_forgotten_at_once_limit_nobody() -> None:
    learnt = LearntCapacity()
    for moment in range(0, 3 * SECOND_NS, SECOND_NS // 4_000):
        assert not learnt.is_full(moment)
        learnt.forget(moment, learnt.begin(moment, 1))
    assert learnt.in_service == 0
    assert learnt.rate == pytest.approx(4_000, rel=0.1)


def test_tokens_that_were_not_used_tell_nothing() -> None:
    learnt = LearntCapacity()
    for moment in range(0, 3 * SECOND_NS, SECOND_NS // 4_000):
        stay = learnt.begin(moment, 5)
        learnt.undo(moment, stay, 5)
        learnt.end(moment, stay)
    assert (learnt.in_service, learnt.rate) == (0, UNSEEN_RATE)


def test_a_request_that_ends_after_it_was_given_up_is_counted_once() -> None:
    learnt = LearntCapacity()
    late = learnt.begin(0, 1)
    learnt.look(2 * SECOND_NS)
    assert learnt.in_service == 0
    learnt.end(3 * SECOND_NS, late)
    learnt.look(4 * SECOND_NS)
    assert learnt.in_service == 0


def test_until_the_server_was_seen_saturated_some_may_always_go() -> None:
    learnt = LearntCapacity()
    for second in range(5):
        stay = learnt.begin(second * SECOND_NS, 1)
        learnt.end(second * SECOND_NS + MILLISECOND_NS, stay)
    assert learnt.limit >= START_LIMIT


def test_one_large_request_goes_when_nothing_is_in_service() -> None:
    learnt = LearntCapacity()
    stay = learnt.begin(0, 10_000)
    assert learnt.is_full(0)
    learnt.end(MILLISECOND_NS, stay)
    assert not learnt.is_full(MILLISECOND_NS)
