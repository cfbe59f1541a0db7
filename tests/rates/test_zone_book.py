"""A zone's book, stepped by hand: what it is granted, what it says, and when it goes on alone."""

from __future__ import annotations

from typing import Any

import pytest
from test_controller_book import (
    LIMIT,
    PERIOD_NS,
    TAKEN_OVER,
    holds,
    make_leader,
    make_report,
)

from bursar.book import Effects, Send
from bursar.rates.columns import Seen, list_rows, make_allowances, read_columns
from bursar.rates.controller import ControllerBook
from bursar.rates.messages import NO_PART, UNBOUNDED, Ack, Allowance, Grant, Part, Poll, Report, Row
from bursar.rates.terms import Terms
from bursar.rates.zones import ALONE_PERIODS, ZoneBook
from bursar.world import MILLISECOND_NS

ANSWER_NS = 50 * MILLISECOND_NS
DUE_NS = PERIOD_NS + PERIOD_NS // 50
"""When a zone goes on alone that was granted something of the present period at 0."""

LIFE = 2
"""The epoch in which the zone's controller leads."""

TERMS = Terms(10, LIMIT)


@pytest.fixture
def book() -> ControllerBook:
    return make_leader(TAKEN_OVER, place=lambda _: {})[0]


@pytest.fixture
def zone(book: ControllerBook) -> ZoneBook:
    return ZoneBook(
        "eu", (0, 2), book, {"s1": 100.0, "s2": 50.0}.__getitem__, period_ns=PERIOD_NS, answer_ns=ANSWER_NS
    )


def hear_servers(book: ControllerBook, rows: tuple[Row, ...] = holds(10)) -> None:
    """Each says that it holds ten of acme's tokens."""
    for name in ("s1", "s2"):
        book.receive(1, name, make_report(name, rows, sent_at=1, stands_at=1))


def grant(zone: ZoneBook, tokens: int, sequence: int = 1, now: int = 0, **fields: Any) -> int:
    """What it has of acme's tokens after this grant."""
    usual: dict[str, Any] = {
        "epoch": 5,
        "incarnation": LIFE,
        "period": 1,
        "sent_at": 0,
        "time_left_ns": PERIOD_NS,
        "rows": make_allowances([Allowance("a", tokens, 3, 40)]),
        "part": NO_PART,
        "terms": "t",
        "over_ns": PERIOD_NS,
        "standing": NO_PART,
        "short": (("a", 7),),
    }
    assert zone.receive(now, "top", Grant(sequence=sequence, **usual | fields)) == []
    return zone.find("a", TERMS)


def ask(zone: ZoneBook, now: int = 2, period: int = 1, epoch: int = 5, full: bool = True) -> list[Report]:
    effects = zone.receive(now, "top", Poll(epoch, now, full, period))
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Report)]


def rows_of(report: Report) -> list[Row]:
    if report.rows is None:
        return []
    numbers, columns = read_columns(report.rows)
    return list_rows(report.rows.names, Seen(numbers, *columns))


def acks(effects: Effects) -> list[Ack]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)]


def test_only_a_newer_grant_for_this_life_is_taken(zone: ZoneBook) -> None:
    assert grant(zone, 12, sequence=2) == 12
    assert zone.short == {"a": 7} and zone.terms == "t" and zone.granted
    assert grant(zone, 20, sequence=2) == 12, "it was seen"
    assert grant(zone, 20, sequence=1) == 12, "it is older"
    assert grant(zone, 20, sequence=9, epoch=4) == 12, "of a leader that was deposed"
    assert grant(zone, 20, sequence=3, incarnation=LIFE - 1) == 12, "for a life that is over"
    assert grant(zone, 20, sequence=3, period=0) == 12, "of a period that is over"
    assert grant(zone, 9, sequence=3) == 9
    assert grant(zone, 20, sequence=1, epoch=6) == 20


def test_whoever_asks_in_a_later_epoch_deposes_the_one_before(zone: ZoneBook, book: ControllerBook) -> None:
    hear_servers(book)
    assert grant(zone, 12, sequence=3) == 12
    assert ask(zone, epoch=6)[0].epoch == 6
    assert grant(zone, 20, sequence=4) == 12
    assert grant(zone, 20, sequence=1, epoch=6) == 20


def test_a_zone_has_what_it_was_granted_and_its_part_of_everybody_elses_limit(zone: ZoneBook) -> None:
    """Number 0 of two."""
    grant(zone, 12, part=Part(0, 2))
    narrow = zone.narrow({"a": TERMS, "b": Terms(9, 21), "free": Terms(0, None), "c": Terms(0, 20, pace=5)})
    assert (narrow["a"].limit, narrow["a"].reservation, narrow["a"].pace) == (12, 3, 40)
    assert narrow["b"].limit in (10, 11) and narrow["b"].reservation in (4, 5)
    assert narrow["b"].pace == narrow["b"].limit
    assert (narrow["free"].limit, narrow["free"].reservation, narrow["free"].pace) == (None, 0, 0)
    assert (narrow["c"].limit, narrow["c"].pace) == (10, 10)
    assert list(zone.find_named()) == ["a"]
    assert zone.nest(Part(1, 3)) == Part(1, 3, 0, 2) and zone.nest(NO_PART) == NO_PART
    grant(zone, 2, sequence=2)
    assert zone.narrow({"a": TERMS})["a"].reservation == 2, "no more than there is"
    assert zone.nest(Part(1, 3)) == NO_PART, "the zone has no part any more"


def test_of_another_period_than_the_controllers_there_is_what_is_held(
    zone: ZoneBook, book: ControllerBook
) -> None:
    terms = {"a": TERMS}
    grant(zone, 12, period=2)
    assert zone.is_new() and zone.narrow(terms) == terms, "the servers have not all answered"
    hear_servers(book)
    assert zone.narrow(terms)["a"].limit == 20


def test_a_smaller_grant_is_acknowledged_when_servers_gave_up_the_rest_or_soon_anyway(
    zone: ZoneBook, book: ControllerBook
) -> None:
    hear_servers(book)
    assert zone.acknowledge(1) == []
    grant(zone, 12, now=1)
    assert zone.wake_at() == 1 + ANSWER_NS
    assert not book.settled and zone.acknowledge(ANSWER_NS) == []
    [ack] = acks(zone.acknowledge(1 + ANSWER_NS))
    assert (ack.server, ack.incarnation, ack.epoch, ack.sequence, ack.period) == ("eu", LIFE, 5, 1, 1)
    assert ack.raised == (("a", 20),), "they hold more than the grant says, and that counts"
    assert zone.acknowledge(2 + ANSWER_NS) == [] and zone.wake_at() is None
    grant(zone, 25, sequence=2, now=3)
    assert acks(zone.acknowledge(3 + ANSWER_NS))[0].raised == ()


def test_what_lives_before_this_one_had_is_told_when_all_servers_have_said_what_they_hold(
    zone: ZoneBook, book: ControllerBook
) -> None:
    assert ask(zone) == [], "they have not"
    hear_servers(book)
    [report] = ask(zone, now=3)
    assert (report.server, report.incarnation, report.period, report.lives) == ("eu", LIFE, 1, (1,))
    assert report.capacity == 150.0 and report.seen_ns == PERIOD_NS and report.asked_at == 3
    [row] = rows_of(report)
    assert (row.tenant, row.allowance, row.pending) == ("a", 20, 10)
    assert zone.find("a", TERMS) == 20


def test_where_servers_do_not_answer_the_zone_begins_with_nothing_after_a_while(zone: ZoneBook) -> None:
    assert ask(zone, now=10) == [] and ask(zone, now=9 + ANSWER_NS) == []
    [report] = ask(zone, now=10 + ANSWER_NS)
    assert report.lives == () and rows_of(report) == []
    assert zone.find("a", TERMS) == 0 and zone.leader == "top" and zone.asked_at == 10 + ANSWER_NS


def test_of_a_period_that_nobody_here_opened_there_is_nothing(zone: ZoneBook) -> None:
    [report] = ask(zone, period=2)
    assert (report.period, rows_of(report), report.lives) == (2, [], (1,))


def test_what_did_not_change_is_not_told_again_but_to_somebody_else(
    zone: ZoneBook, book: ControllerBook
) -> None:
    hear_servers(book)
    told = ask(zone, now=3)
    assert rows_of(told[0]) and told[0].stands_at == 3
    [again] = ask(zone, now=4, full=False)
    assert again.rows is None and again.stands_at == 3 and again.sent_at == 4
    assert ask(zone, now=5, full=False, epoch=6)[0].rows == told[0].rows
    assert ask(zone, now=6, epoch=6)[0].rows == told[0].rows


def test_the_next_period_is_begun_alone_with_the_standing_part_and_not_for_ever(zone: ZoneBook) -> None:
    grant(zone, 12, standing=Part(0, 2))
    assert acks(zone.acknowledge(ANSWER_NS)) and zone.wake_at() == DUE_NS
    assert not zone.begin_next(DUE_NS - 1) and zone.period == 1
    for number in range(ALONE_PERIODS):
        assert zone.begin_next(DUE_NS + number * PERIOD_NS) and zone.period == 2 + number
        assert zone.find("a", TERMS) == LIMIT // 2, "its part, and nothing of what was granted"
    assert not zone.begin_next(DUE_NS + ALONE_PERIODS * PERIOD_NS)
    assert zone.wake_at() is None


def test_a_zone_that_hears_of_a_later_period_gives_its_standing_part_up(
    zone: ZoneBook, book: ControllerBook
) -> None:
    hear_servers(book)
    grant(zone, 12, standing=Part(0, 2))
    ask(zone, now=DUE_NS - 1, period=2)
    assert not zone.begin_next(DUE_NS)


def test_what_the_servers_see_is_added_up(zone: ZoneBook, book: ControllerBook) -> None:
    """A tenant that always waits wants all that a server can do, unless it has turned to another."""
    waits, asks = Row("a", 10, 4, 6, 5, True, 3, 20), Row("a", 10, 2, 1, 5, False, 2, 10)
    book.receive(1, "s1", make_report("s1", (waits,), sent_at=1, stands_at=1))
    book.receive(1, "s2", make_report("s2", (asks,), sent_at=1, stands_at=1))
    [report] = ask(zone, now=3)
    [row] = rows_of(report)
    wanted = int((100 + 50) * PERIOD_NS / 1e9)
    assert (row.dispatched, row.pending, row.arrived) == (6, 7, wanted), "5 in 100 ms are 50 a second"
    assert (row.front, row.front_ns) == (3, 20), "of the one that has waited longest"
    assert row.allowance == 20 and not row.backlogged


def test_who_turned_to_another_server_waits_only_for_what_it_left(
    zone: ZoneBook, book: ControllerBook
) -> None:
    left, turned_to = Row("a", 10, 0, 6, 0, True), Row("a", 10, 0, 0, 5, False)
    book.receive(1, "s1", make_report("s1", (left,), sent_at=1, stands_at=1))
    book.receive(1, "s2", make_report("s2", (turned_to,), sent_at=1, stands_at=1))
    [row] = rows_of(ask(zone, now=3)[0])
    assert row.arrived == int(50 * PERIOD_NS / 1e9)


def test_what_a_server_of_the_zone_took_with_it_counts_as_dispatched(
    zone: ZoneBook, book: ControllerBook
) -> None:
    hear_servers(book)
    grant(zone, 30, now=2)
    book.receive(3, "s1", make_report("s1", (), sent_at=3, stands_at=3, life=2))
    [row] = rows_of(ask(zone, now=4)[0])
    assert (row.dispatched, row.allowance) == (10, 30)


def test_without_a_limit_a_zone_has_no_bound(zone: ZoneBook) -> None:
    grant(zone, 12, part=Part(0, 2))
    assert zone.find("free", Terms(0, None)) == UNBOUNDED
