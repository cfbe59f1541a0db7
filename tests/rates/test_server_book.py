"""The server's book of a life that comes after others, stepped by hand."""

from __future__ import annotations

from bursar.book import Send
from bursar.rates.blocks import Blocks
from bursar.rates.columns import make_allowances, make_rows, read_columns
from bursar.rates.messages import Allowance, Allowances, Grant, Poll, Report
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.rates.terms import Terms
from bursar.world import SECOND_NS

PERIOD_NS = 60 * SECOND_NS
LIMIT = 1200
NO_ROWS = make_rows(())


def make_book(life: int, journal: list[bytes], origin: str = "boot") -> ServerBook:
    blocks = Blocks(life, ["a"], period_ns=PERIOD_NS, origin=origin)
    blocks.replay(journal)
    return ServerBook("s", life, ["a"], Scheduler([1]), blocks)


def write(book: ServerBook, journal: list[bytes]) -> None:
    assert book.blocks is not None
    journal += book.blocks.unwritten
    book.blocks.unwritten = []
    book.synced(len(journal))


def ask(book: ServerBook, now: int, period: int, epoch: int = 1) -> Report:
    [sent] = book.receive(now, "c", Poll(epoch, now, True, period))
    assert isinstance(sent, Send) and isinstance(sent.message, Report)
    return sent.message


def grant(book: ServerBook, now: int, period: int, allowance: int, left_ns: int = PERIOD_NS) -> None:
    rows = (Allowance("a", allowance, 0),)
    message = Grant(
        book.epoch, book.sequence + 1, book.incarnation, period, now, left_ns, make_allowances(rows)
    )
    assert book.receive(now, "c", message)


def serve(book: ServerBook, tokens: int) -> int:
    """How many of them go."""
    served = 0
    for _ in range(tokens):
        gone = book.scheduler.take(0, 1)
        if gone is None and book.reach(0, 1):
            gone = book.scheduler.take(0, 1)
        served += gone is not None
    return served


def make_killed(period: int, journal: list[bytes], served: int = 15) -> None:
    book = make_book(1, journal)
    ask(book, 1_000, period)
    grant(book, 1_000, period, LIMIT)
    write(book, journal)
    assert serve(book, served) == served


def held(report: Report) -> tuple[int, int]:
    assert report.rows is not None
    _, (allowance, dispatched, *_) = read_columns(report.rows)
    assert len(report.rows.names) == 1
    return int(allowance[0]), int(dispatched[0])


def test_what_was_charged_counts_as_dispatched_in_the_next_life() -> None:
    journal: list[bytes] = []
    make_killed(3, journal)
    book = make_book(2, journal)
    report = ask(book, 5_000, 3)
    assert held(report) == (20, 20)
    assert report.lives == (1,)
    assert report.time_left_ns == PERIOD_NS - 4_000, "by the clock of that machine"
    assert serve(book, 1) == 0 and not book.may_dispatch(5_000), "until a leader grants"
    grant(book, 5_000, 3, LIMIT)
    write(book, journal)
    assert serve(book, 10) == 10
    assert int(book.scheduler.dispatched[0]) == 30


def test_a_clock_that_began_anew_leaves_a_whole_period() -> None:
    journal: list[bytes] = []
    make_killed(3, journal)
    report = ask(make_book(2, journal, origin="another"), 5_000, 3)
    assert held(report) == (20, 20)
    assert report.time_left_ns == PERIOD_NS


def test_it_speaks_of_the_period_that_it_is_asked_for_and_of_no_earlier_one() -> None:
    journal: list[bytes] = []
    make_killed(3, journal)
    book = make_book(2, journal)
    assert held(ask(book, 5_000, 3)) == (20, 20)
    assert (ask(book, 5_000, 5).rows, book.period) == (NO_ROWS, 5), "nothing was charged to the fifth"
    late = ask(book, 5_000, 3)
    assert (late.period, late.lives) == (5, (1,))


def test_of_a_period_long_before_its_journal_it_says_nothing() -> None:
    journal: list[bytes] = []
    make_killed(9, journal)
    report = ask(make_book(2, journal), 5_000, 3)
    assert (report.period, report.rows, report.lives) == (0, NO_ROWS, ())


def test_once_granted_it_is_asked_in_its_own_name() -> None:
    journal: list[bytes] = []
    make_killed(3, journal)
    book = make_book(2, journal)
    ask(book, 5_000, 3)
    grant(book, 5_000, 3, LIMIT)
    assert ask(book, 6_000, 3, epoch=2).lives == (1,), "another leader must hear of it too"
    assert ask(book, 6_000, 4, epoch=2).lives == (), "of a later period the earlier life had nothing"
    grant(book, 7_000, 4, LIMIT)
    assert ask(book, 8_000, 4, epoch=2).lives == ()


def test_a_tenant_that_left_the_policy_and_came_back_has_spent_what_it_had() -> None:
    journal: list[bytes] = []
    make_killed(3, journal)
    blocks = Blocks(2, ["b"], period_ns=PERIOD_NS, origin="boot")
    blocks.replay(journal)
    book = ServerBook("s", 2, ["b"], Scheduler([1]), blocks)
    assert held(ask(book, 5_000, 3)) == (20, 20), "of a tenant that has not asked yet too"
    book.add_tenant(5_000, "a", Terms(0, LIMIT))
    assert held(ask(book, 5_000, 3)) == (20, 20)


def test_alone_it_spends_without_a_journal() -> None:
    journal: list[bytes] = []
    book = make_book(1, journal)
    ask(book, 1_000, 3)
    grant(book, 1_000, 3, LIMIT)
    book.go_on_alone(9_000, PERIOD_NS, 100, [LIMIT])
    assert serve(book, 105) == 100
    assert not book.waits_for_disk(0, 1)


def test_a_new_leader_is_told_names_until_it_has_given_numbers() -> None:
    """Those of the leader before it are not its own, though it should call its list the same."""
    book = ServerBook("s", 1, ["a"], Scheduler([1]))
    ask(book, 1_000, 3)
    grant(book, 1_000, 3, LIMIT)
    ask(book, 2_000, 3, epoch=2)
    nobody = Allowances(1, 0, (), b"", b"", b"", b"", b"", b"")
    assert book.receive(2_000, "c", Grant(2, 1, 1, 3, 2_000, PERIOD_NS, nobody))
    book.observed.arrived[0] = 5
    [sent] = book.receive(3_000, "c", Poll(2, 3_000, False, 3))
    assert isinstance(sent, Send) and isinstance(sent.message, Report) and sent.message.rows is not None
    assert (sent.message.rows.names, sent.message.rows.numbers) == (("a",), b"")


def test_a_leader_that_has_given_numbers_is_told_these() -> None:
    book = ServerBook("s", 1, ["a", "b"], Scheduler([1, 1]))
    ask(book, 1_000, 3)
    grant(book, 1_000, 3, LIMIT)
    book.observed.arrived[:] = [5, 7]
    [sent] = book.receive(3_000, "c", Poll(1, 3_000, False, 3))
    assert isinstance(sent, Send) and isinstance(sent.message, Report) and sent.message.rows is not None
    numbers, columns = read_columns(sent.message.rows)
    assert (sent.message.rows.names, numbers.tolist()) == (("b",), [0]), "b was in no grant"
    assert columns[3].tolist() == [5, 7]
