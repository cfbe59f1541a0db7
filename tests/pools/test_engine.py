"""The engine (section II-D): tokens are spent once, decay when nobody asks, and end with a period."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bursar.errors import NoAnswerError, UsageError
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import AMOUNT_MAX, Names, pack, pack_report, unpack, unpack_report
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.statistics import read_tenant
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools.node import PlainWords, VirtualClock


class Small:
    """A monitor, engines and their words, in time that is set."""

    reserves = True

    def __init__(self, capacity: int, period_ns: int = SECOND_NS, **reservations: int) -> None:
        self.clock = VirtualClock()
        self.words = PlainWords()
        self.period_ns = period_ns
        self.book = MonitorBook("p", FixedCapacity(capacity), period_ns=period_ns)
        for tenant, reservation in reservations.items():
            self.book.join(tenant, reservation)
        self.monitor = Monitor(self.clock, self.words, self.book)
        self.monitor.check()

    def engine(self, tenant: str, **options: Any) -> Engine:
        book = EngineBook("p", tenant, period_ns=self.period_ns, **options)
        engine = Engine(self.clock, self.words, book)
        engine.tick()
        return engine

    def pass_ms(self, milliseconds: int, *engines: Engine) -> None:
        """Time passes, with a check and a tick every five milliseconds."""
        for _ in range(milliseconds // 5):
            self.clock.ns += 5 * MILLISECOND_NS
            self.monitor.check()
            for engine in engines:
                engine.tick()


def take_all(engine: Engine) -> int:
    taken = 0
    while engine.take():
        taken += 1
    return taken


def test_an_engine_has_its_reservation_and_then_what_the_pool_allows() -> None:
    small = Small(1000, a=100, b=200)
    engine = small.engine("a")
    assert take_all(engine) == 105  # its own, and half of a step of the pool
    assert read_tenant(engine).spent == 105
    assert not engine.take()


def test_a_second_life_finds_its_reservation_claimed() -> None:
    small = Small(1000, a=100)
    first, second = small.engine("a"), small.engine("a")
    assert first.book.claimed and not second.book.claimed
    assert first.book.reserve == 100 and second.book.reserve == 0


@pytest.mark.parametrize(
    ("used", "given_up", "left"),
    [
        pytest.param(20, 10, 20, id="insufficient demand leaves R - rho"),
        pytest.param(40, 0, 10, id="sufficient demand leaves R - D"),
    ],
)
def test_example_1_of_the_paper(used: int, given_up: int, left: int) -> None:
    """II-B, example 1: of 50 reserved tokens, at 0.6 s."""
    small = Small(1000, a=50)
    engine = small.engine("a")
    assert engine.take_many(used)
    small.clock.ns += 600 * MILLISECOND_NS
    engine.tick()
    assert (engine.book.decayed, engine.book.reserve) == (given_up, left)


def test_what_is_known_to_wait_does_not_decay() -> None:
    small = Small(1000, a=50)
    engine = small.engine("a")
    engine.book.pending = 30
    small.clock.ns += 900 * MILLISECOND_NS
    engine.tick()
    assert engine.book.reserve == 35


def test_tokens_end_with_their_period_and_new_ones_replace_them() -> None:
    small = Small(1000, a=100)
    engine = small.engine("a")
    assert engine.take_many(10)
    small.clock.ns += SECOND_NS
    assert not engine.take(), "the period is over and no new one has begun"
    small.monitor.check()
    assert engine.take_many(100)
    assert engine.book.period == 2 and engine.book.reserve == 0


def test_a_limit_holds_across_reserved_and_pool_tokens() -> None:
    small = Small(10_000, a=100)
    engine = small.engine("a", limit=120)
    taken = 0
    for _ in range(190):
        small.pass_ms(5, engine)
        engine.book.pending = 1000
        taken += take_all(engine)
    assert taken == 120


def test_a_paced_engine_hands_out_its_reservation_over_the_period() -> None:
    small = Small(1000, a=1000)
    engine = small.engine("a", paced=True)
    engine.book.pending = 1000
    early = take_all(engine)
    assert 5 <= early <= 15
    small.clock.ns += 500 * MILLISECOND_NS
    assert 490 <= early + take_all(engine) <= 530


def test_a_reservation_comes_due_evenly_for_who_used_it_up_and_had_more_waiting() -> None:
    """`pacing = "auto"`: whoever asks now and then has it at once."""
    small = Small(1000, a=1000)
    engine = small.engine("a", paced=None)
    assert take_all(engine) == 1000, "nothing is known of it yet"
    engine.book.pending = 500
    small.pass_ms(1005, engine)
    assert engine.book.paced and take_all(engine) < 100
    engine.book.pending = 0
    small.pass_ms(1005, engine)
    assert not engine.book.paced, "it left most of its reservation unused"
    assert take_all(engine) >= 990


def test_threads_spend_every_token_once() -> None:
    small = Small(60_000, a=50_000)
    engine = small.engine("a")
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(take_all(engine))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == read_tenant(engine).spent
    assert 50_000 <= sum(counts) <= 60_000


@pytest.mark.parametrize("wrong", [0, -1, AMOUNT_MAX + 1, 1.5, "3", None])
def test_a_senseless_number_of_tokens_is_refused(wrong: Any) -> None:
    engine = Small(1000, a=100).engine("a")
    for take in (engine.take_many, engine.take_up_to):
        with pytest.raises(UsageError, match="take 1 to"):
            take(wrong)
    assert engine.book.reserve == 100


@pytest.mark.parametrize("wrong", [-1, AMOUNT_MAX + 1, 0.5])
def test_a_senseless_limit_batch_or_reservation_is_refused(wrong: Any) -> None:
    for options in ({"limit": wrong}, {"batch": wrong}):
        with pytest.raises(UsageError, match="pass a whole number from 0"):
            EngineBook("p", "a", period_ns=SECOND_NS, **options)
    book = MonitorBook("p", FixedCapacity(1000), period_ns=SECOND_NS)
    with pytest.raises(UsageError, match="the reservation of a is"):
        book.join("a", wrong)
    assert book.clients == {}


GARBAGE = (2**64 - 1, 0x123456789ABCDEF0, pack(1, 5), 0)


@pytest.mark.parametrize("word", ["ceiling", "taken", "asked", "tokens", "report"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_any_word_costs_tokens_and_the_pool_recovers(word: str, garbage: int) -> None:
    """Written in the second period; no opening of a period ever spends more than the capacity, and
    four periods later everything is as before."""
    small = Small(1000, a=300, b=400)
    names = Names("p")
    a, b = small.engine("a"), small.engine("b")
    place = {"ceiling": names.ceiling, "taken": names.taken, "asked": names.asked}
    place |= {"tokens": names.tokens("a"), "report": names.report("a", 2)}
    spent: dict[tuple[int, int], int] = {}
    for step in range(1_300):
        if step == 250:
            small.words.write(place[word], garbage)
        small.pass_ms(5, a, b)
        for engine in (a, b):
            engine.book.pending = 10_000
            opened = small.book.accounts.began, engine.book.period
            spent[opened] = spent.get(opened, 0) + take_all(engine)
    assert max(spent.values()) <= 1000
    assert list(spent.values())[-2] > 900, "the last whole period"
    assert small.book.leading


def test_garbage_words_are_no_tokens_and_are_repaired() -> None:
    small = Small(1000, a=100)
    names = Names("p")
    small.words.write(names.tokens("a"), 2**64 - 1)
    small.words.write(names.taken, 0x123456789ABCDEF0)
    engine = small.engine("a")
    assert take_all(engine) == 0
    small.pass_ms(5, engine)
    assert unpack(small.words.read(names.taken)).period == small.book.period
    small.pass_ms(1000, engine)
    assert engine.book.reserve > 0, "the next period begins anew"


def test_words_that_cannot_be_reached_leave_the_engine_without_tokens() -> None:
    class Broken(PlainWords):
        def read(self, name: str) -> int:
            raise NoAnswerError("gone")

    engine = Engine(VirtualClock(), Broken(), EngineBook("p", "a", period_ns=SECOND_NS))
    assert not engine.take() and engine.unreachable == 1


def test_words_are_packed_and_unpacked() -> None:
    assert unpack(pack(7, 9)) == (7, 9)
    assert unpack_report(pack_report(130, 5, 6, True)) == (2, True, 5, 6)
    assert unpack_report(pack_report(1, AMOUNT_MAX + 5, 0)).unspent == AMOUNT_MAX
