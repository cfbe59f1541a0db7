"""A period without a leader: what servers may begin alone, who takes over, and each rule's removal found."""

from __future__ import annotations

import pytest
from grace_bugs import BUGS, DYING, WORLDS, plant_scenario, plant_small_world

from bursar.book import Send
from bursar.rates.messages import NO_ALLOWANCES, Grant, Part, Poll, Report, State
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.rates.standing import Standing
from bursar.rates.terms import Terms
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios.rate.grace import GRACE_WORLDS
from bursar.sim.scenarios.rate.small import SmallRate
from bursar.sim.scenarios.rate.world import RateScenario
from bursar.sim.search import Search
from bursar.sim.simulation import Simulation

SEEDS_TO_FIND = 40
PERIOD_NS = 1_000
LIMIT = 30
A_THIRD = Part(0, 3)


def make_server() -> ServerBook:
    book = ServerBook("s", 1, ["a"], Scheduler([1]), period_ns=PERIOD_NS)
    book.set_terms({"a": Terms(0, LIMIT)}.get, "t")
    return book


def grant(
    book: ServerBook, now: int, period: int = 1, standing: Part = A_THIRD, over_ns: int = 1_010
) -> None:
    message = Grant(
        1, book.sequence + 1, 1, period, now, PERIOD_NS, NO_ALLOWANCES, A_THIRD, "t", over_ns, standing
    )
    assert book.receive(now, "c", message)


def ask(book: ServerBook, now: int, period: int) -> Report:
    [sent] = book.receive(now, "c", Poll(2, now, True, period))
    assert isinstance(sent, Send) and isinstance(sent.message, Report)
    return sent.message


def test_the_next_period_begins_with_the_part_once_every_clock_has_seen_this_one_end() -> None:
    book = make_server()
    grant(book, 0)
    assert not book.begin_next(1_005), "its own tokens have ended, others' may not have"
    assert not book.begin_next(1_029), "and a leader's word may be on its way"
    assert book.begin_next(1_030)
    assert (book.period, book.expires_at) == (2, 2 * PERIOD_NS)
    assert book.scheduler.read_allowance(0) == LIMIT // 3
    assert not book.begin_next(2_500), "and no further one"


def test_a_grant_that_comes_late_does_not_put_the_end_off() -> None:
    book = make_server()
    grant(book, 0, over_ns=3_000)
    assert not book.begin_next(2_500), "by then the next period is over for everybody"


def test_a_server_that_is_asked_for_a_later_period_does_not_begin_it_alone() -> None:
    """Whoever opened it takes the answer for the truth: that there is nothing of it here."""
    book = make_server()
    grant(book, 0)
    assert ask(book, 1_005, period=2).period == 1
    assert not book.begin_next(1_100)


def test_a_server_that_is_asked_for_the_present_period_says_that_it_has_begun_the_next() -> None:
    book = make_server()
    grant(book, 0)
    report = ask(book, 1_100, period=1)
    assert (report.period, report.time_left_ns, report.over_ns) == (2, 900, 910)
    assert ask(book, 1_200, period=2).over_ns is None, "somebody opened it, and may let it last longer"


def test_without_a_standing_part_nothing_begins() -> None:
    book = make_server()
    grant(book, 0)
    grant(book, 500, standing=Part(0, 0))
    assert not book.begin_next(1_100)


def test_a_standing_part_is_gone_when_a_grant_without_one_was_acknowledged() -> None:
    standing = Standing()
    lives = (("s", 1), ("t", 1), ("u", 1))
    standing.open(State(1, "c", 1, lives, "", lives, ("u",)), inherited=False)
    assert not standing.given
    assert standing.find_part(("u", 1)) == Part(0, 0), "it ends with the leader"
    standing.sent(("s", 1), 1, standing.find_part(("s", 1)))
    standing.sent(("s", 1), 2, Part(0, 0))
    standing.acknowledged(("s", 1), 1)
    assert standing.given == {("s", 1): Part(0, 3)}
    standing.acknowledged(("s", 1), 2)
    assert not standing.given


@pytest.mark.parametrize("world", GRACE_WORLDS)
def test_every_order_of_events_around_the_end_of_a_period_keeps_the_limit(world: type[SmallRate]) -> None:
    found = Search(world()).run()
    assert found.why is None, str(found)
    assert found.complete
    assert found.states > 1_000, "far fewer states than there were: is it still a search?"


@pytest.mark.parametrize("bug", WORLDS)
def test_each_mistake_around_the_end_of_a_period_is_found_by_search(bug: str) -> None:
    found = Search(plant_small_world(bug)).run()
    assert found.why is not None, f"the search did not find {bug}"
    assert "limit" in found.why or "had begun" in found.why


def test_in_these_runs_periods_are_begun_alone() -> None:
    """Else they would prove nothing."""
    alone = 0
    for seed in range(8):
        scenario = RateScenario()
        Simulation("rate", scenario, seed, keep=10, faults=DYING).run()
        alone += len(scenario.begun_alone)
    assert alone > 8


@pytest.mark.parametrize("bug", BUGS)
def test_each_mistake_around_the_end_of_a_period_is_found_by_seeds(bug: str) -> None:
    for seed in range(SEEDS_TO_FIND):
        try:
            Simulation("rate", plant_scenario(bug), seed, keep=50, faults=DYING).run()
        except RunFailedError as failure:
            assert "limit" in failure.why or "had begun" in failure.why
            return
    pytest.fail(f"{SEEDS_TO_FIND} seeds did not find {bug}")
