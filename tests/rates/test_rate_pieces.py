"""A large round is placed and granted in pieces, and anything may happen between two of them."""

from __future__ import annotations

from test_controller_book import LIMIT, TAKEN_OVER, acknowledge, grants, holds, make_report

from bursar.book import Send
from bursar.rates.allotment import Allotment
from bursar.rates.controller import Commit, ControllerBook, Effects
from bursar.rates.messages import Grant, Left, Row
from bursar.rates.placement import Placement
from bursar.rates.terms import Terms
from bursar.sim.scenarios.rate import RateScenario
from bursar.sim.scenarios.rate.small import SmallLeaving
from bursar.sim.search import Budget, Search
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS

SEEDS = 3


class InPieces(ControllerBook):
    """However small a round is."""

    piece = -1


class RateInPieces(RateScenario):
    controller_book = InPieces


class SmallInPieces(SmallLeaving):
    """A server leaves, or is heard again, or acknowledges, between two pieces."""

    horizon_ns = 30 * MILLISECOND_NS
    flight_max = 4
    budget = Budget(crashes=0, duplicates=0, drops=0, moves=2)
    controller_book = InPieces


def test_no_tenant_passes_its_limit_with_rounds_in_pieces() -> None:
    for seed in range(SEEDS):
        Simulation("rate", RateInPieces(), seed, keep=50).run()


def test_every_order_of_events_between_the_pieces_keeps_the_limit() -> None:
    found = Search(SmallInPieces()).run()
    assert found.why is None, str(found)
    assert found.complete
    assert found.states > 1_000


def lead() -> tuple[ControllerBook, Effects]:
    book = InPieces(
        "c",
        ("s1", "s2"),
        {"a": Terms(0, LIMIT)},
        Placement({"s1": 100.0, "s2": 100.0}),
        period_ns=400 * MILLISECOND_NS,
        interval_ns=100 * MILLISECOND_NS,
        drift_ppm=1_000,
    )
    [commit] = book.lead(TAKEN_OVER)
    assert isinstance(commit, Commit)
    book.committed(0, commit.state)
    book.receive(1, "s1", make_report("s1", holds(15), sent_at=1, stands_at=1))
    return book, book.receive(2, "s2", make_report("s2", holds(15), sent_at=1, stands_at=1))


def go_on(book: ControllerBook, now: int) -> list[Effects]:
    """What each piece of the round does."""
    pieces = []
    while book.wake_at() == 0:
        pieces.append(book.tick(now))
    return pieces


def test_a_round_in_pieces_grants_what_a_whole_one_does() -> None:
    book, effects = lead()
    assert grants(effects) == {}, "nothing at the stretch in which the last report is read"
    sent = [grants(piece) for piece in go_on(book, 3)]
    assert len(sent) > 4 and all(len(each) <= 1 for each in sent)
    assert {name for each in sent for name in each} == {"s1", "s2"}
    assert not book.settled, "nothing is acknowledged"


def test_what_is_dropped_between_two_pieces_is_not_sent() -> None:
    book, _ = lead()
    while not (effects := book.tick(3)):
        continue
    [sent] = effects
    assert isinstance(sent, Send)
    acknowledge(book, 4, effects)
    other = "s2" if sent.to == "s1" else "s1"
    book.receive(5, other, Left(other, 1, 1, 0, (("a", 4),)))
    later = [effect for piece in go_on(book, 5) for effect in piece]
    assert set(grants(later)) == {sent.to}, "the round began anew without it"
    assert book.count_held(["a"])["a"] <= LIMIT


def test_tenants_that_are_first_heard_of_between_two_pieces_wait_for_the_next_round() -> None:
    """Whatever the round is at then."""
    count = 0
    while True:
        book, _ = lead()
        effects: Effects = []
        for _ in range(count):
            effects += book.tick(3)
        done = book.wake_at() != 0
        rows = (*holds(15), Row(f"new-{count}", 0, 0, 5, 5, True))
        book.receive(3, "s1", make_report("s1", rows, sent_at=3, stands_at=3))
        effects += [effect for piece in go_on(book, 4) for effect in piece]
        sent = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Grant)]
        assert len(sent) == 2 and all(Allotment().take(grant) for grant in sent)
        if done:
            break
        count += 1
    assert count > 6


def test_a_leader_that_is_deposed_sends_no_more_of_its_round() -> None:
    book, _ = lead()
    book.tick(3)
    book.deposed()
    assert book.wake_at() is None and book.tick(3) == []
