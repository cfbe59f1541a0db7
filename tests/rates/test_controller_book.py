"""The controller's book, stepped by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bursar.book import Send
from bursar.rates.allotment import read_allowances
from bursar.rates.columns import make_rows
from bursar.rates.controller import DEPARTED_MAX, Commit, ControllerBook, Effects
from bursar.rates.granting import Round
from bursar.rates.messages import Ack, Grant, Left, Poll, Report, Row, Started, State
from bursar.rates.terms import Terms
from bursar.rates.views import Listed, Picture, Place
from bursar.world import MILLISECOND_NS

PERIOD_NS, INTERVAL_NS = 400 * MILLISECOND_NS, 100 * MILLISECOND_NS
LIMIT = 30


def place_all_on_the_first(picture: Picture) -> Listed:
    return {view.name: {"a": (LIMIT if k == 0 else 0, 0, 0)} for k, view in enumerate(picture.servers)}


def make_leader(
    stored: State, now: int = 0, place: Place = place_all_on_the_first
) -> tuple[ControllerBook, Effects]:
    book = ControllerBook(
        "c",
        ("s1", "s2"),
        {"a": Terms(0, LIMIT)},
        place,
        period_ns=PERIOD_NS,
        interval_ns=INTERVAL_NS,
        drift_ppm=1_000,
    )
    [commit] = book.lead(stored)
    assert isinstance(commit, Commit)
    return book, book.committed(now, commit.state)


def make_report(
    server: str,
    rows: tuple[Row, ...] | None,
    sent_at: int = 0,
    stands_at: int = 0,
    left_ns: int = PERIOD_NS // 2,
    asked_at: int = 0,
    life: int = 1,
    lives: tuple[int, ...] = (),
    period: int = 1,
) -> Report:
    return Report(
        server=server,
        incarnation=life,
        asked_at=asked_at,
        sent_at=sent_at,
        stands_at=stands_at,
        epoch=2,
        sequence=0,
        period=period,
        time_left_ns=left_ns,
        seen_ns=INTERVAL_NS,
        capacity=0.0,
        rows=None if rows is None else make_rows(rows),
        lives=lives,
    )


def answer_at(
    asked_at: int, server: str, rows: tuple[Row, ...] | None, stands_at: int
) -> tuple[int, str, Report]:
    """Received at once: when, from whom, what."""
    report = make_report(server, rows, sent_at=asked_at + 1, stands_at=stands_at, asked_at=asked_at)
    return asked_at + 1, server, report


def holds(tokens: int) -> tuple[Row, ...]:
    return (Row("a", tokens, 0, 5, 5, True),)


def grants(effects: Effects) -> dict[str, int]:
    return {
        effect.to: int(np.maximum(read_allowances(effect.message.rows)[0], 0).sum())
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Grant)
    }


def polls(effects: Effects) -> dict[str, bool]:
    return {
        effect.to: effect.message.full
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Poll)
    }


def run_until(book: ControllerBook, now: int) -> Effects:
    """All that is due by then."""
    effects: Effects = []
    while (wake_at := book.wake_at()) is not None and wake_at <= now:
        effects += book.tick(now)
    return effects


def count_buried(book: ControllerBook) -> int:
    return book.tokens.count(["a"], book.tokens.buried)["a"]


TAKEN_OVER = State(1, "before", 1, (("s1", 1), ("s2", 1)))


def test_an_empty_report_is_no_answer_of_a_server_whose_full_one_was_lost() -> None:
    """It would be taken for a server without tokens, and its tokens be made a second time."""
    book, effects = make_leader(TAKEN_OVER)
    assert polls(effects) == {"s1": True, "s2": True}
    assert book.receive(1, "s1", make_report("s1", holds(10), sent_at=1, stands_at=1)) == []
    assert book.receive(2, "s2", make_report("s2", None, sent_at=5, stands_at=1)) == []
    effects = run_until(book, INTERVAL_NS // 4)
    assert grants(effects) == {"s1": 10}, "only what s1 said it holds may be moved"
    assert polls(run_until(book, INTERVAL_NS)) == {"s1": False, "s2": True}
    book.receive(*answer_at(INTERVAL_NS, "s1", None, stands_at=1))
    book.receive(*answer_at(INTERVAL_NS, "s2", holds(20), stands_at=INTERVAL_NS + 1))
    assert book.count_held(["a"])["a"] <= LIMIT


def test_a_round_waits_for_its_answers_until_its_time_is_over() -> None:
    book, _ = make_leader(TAKEN_OVER)
    assert book.tick(INTERVAL_NS // 4 - 1) == []
    book.receive(1, "s1", make_report("s1", holds(10), sent_at=1, stands_at=1))
    assert grants(book.tick(INTERVAL_NS // 4)) == {"s1": 10}


def test_a_server_is_asked_in_full_when_its_last_full_report_was_lost() -> None:
    book, _ = make_leader(TAKEN_OVER)
    for name in ("s1", "s2"):
        book.receive(1, name, make_report(name, holds(10), sent_at=1, stands_at=1))
    assert polls(run_until(book, INTERVAL_NS)) == {"s1": False, "s2": False}
    book.receive(*answer_at(INTERVAL_NS, "s1", None, stands_at=1))
    book.receive(*answer_at(INTERVAL_NS, "s2", None, stands_at=40))
    assert polls(run_until(book, 2 * INTERVAL_NS)) == {"s1": False, "s2": True}


def test_a_server_that_answered_the_poll_before_a_period_opened_is_waited_for_after_it() -> None:
    """Else the first report of a period would be placed for as if it were the only server."""
    book, _ = make_leader(State(1, "before", 0, ()))
    now = 0
    seen: list[set[str]] = []
    for step in range(40):
        now = (book.wake_at() or now) + MILLISECOND_NS // 2
        effects = book.tick(now)
        for commit in [effect for effect in effects if isinstance(effect, Commit)]:
            now += 5 * MILLISECOND_NS
            effects = book.committed(now, commit.state)
        seen += [set(grants(effects))] if grants(effects) else []
        for k, server in enumerate(polls(effects)):
            report = make_report(server, holds(0), sent_at=now + step, stands_at=now + step, asked_at=now)
            reply = book.receive(now + 1 + k, server, report)
            seen += [set(grants(reply))] if grants(reply) else []
    assert book.state.period > 3
    assert all(each == {"s1", "s2"} for each in seen), seen


def poll_on(book: ControllerBook, rounds: int, *servers: str) -> list[int]:
    """When the book asks so many times more; these servers answer at once."""
    asked: list[int] = []
    while len(asked) < rounds:
        now = book.wake_at() or 0
        effects = book.tick(now)
        for commit in [effect for effect in effects if isinstance(effect, Commit)]:
            effects = book.committed(now, commit.state)
        if polls(effects):
            asked.append(now)
            for server in servers:
                book.receive(*answer_at(now, server, holds(0), stands_at=now + 1))
    return asked


@pytest.mark.parametrize(("missed", "alive"), [(3, True), (6, False)], ids=["slow", "stale"])
def test_an_answer_that_comes_a_period_late_is_not_taken_for_a_living_server(
    missed: int, alive: bool
) -> None:
    """It was sent before its server died, perhaps: tokens would be placed where nobody spends them. One
    that only takes longer than an interval is there."""
    book, _ = make_leader(State(1, "before", 0, ()))
    book.receive(1, "s2", make_report("s2", holds(0), sent_at=1, stands_at=1))
    now = poll_on(book, missed, "s2")[-1]
    book.receive(now + 2, "s1", make_report("s1", holds(0), sent_at=2, stands_at=2, asked_at=0))
    assert ("s1" in [view.name for view in book._alive()]) == alive


def test_a_repeated_poll_does_not_make_a_server_look_dead() -> None:
    book, _ = make_leader(State(1, "before", 0, ()))
    for name in ("s1", "s2"):
        book.receive(1, name, make_report(name, holds(0), sent_at=1, stands_at=1))
    now = poll_on(book, 8, "s1", "s2")[-1]
    again = make_report("s1", holds(0), sent_at=now + 5, stands_at=now + 5, asked_at=0)
    book.receive(now + 6, "s1", again)
    assert sorted(view.name for view in book._alive()) == ["s1", "s2"]


def test_a_round_waits_for_answers_to_its_own_poll() -> None:
    book, _ = make_leader(TAKEN_OVER)
    for name in ("s1", "s2"):
        book.receive(1, name, make_report(name, holds(10), sent_at=1, stands_at=1))
    run_until(book, INTERVAL_NS)
    assert book.receive(*answer_at(INTERVAL_NS, "s2", None, stands_at=1)) == []
    late = make_report("s1", holds(10), sent_at=2, stands_at=2, asked_at=0)
    assert book.receive(INTERVAL_NS + 1, "s1", late) == [], "the answer to this poll is under way"
    effects = book.receive(*answer_at(INTERVAL_NS, "s1", None, stands_at=2))
    assert set(grants(effects)) == {"s1", "s2"}


def acknowledge(book: ControllerBook, now: int, effects: Effects) -> Effects:
    """Every grant arrived; what the book says to that."""
    said: Effects = []
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, Grant):
            grant = effect.message
            said += book.receive(now, effect.to, Ack(effect.to, 1, grant.epoch, grant.sequence, 1, ()))
    return said


@pytest.mark.parametrize(
    ("wanted", "left_ns", "follows"),
    [
        (18, PERIOD_NS, {}),
        (28, PERIOD_NS, {}),
        (LIMIT, PERIOD_NS, {"s1": LIMIT}),
        (18, 2 * INTERVAL_NS, {"s1": 18}),
    ],
    ids=["a little more", "half is there", "less than half is there", "the period ends soon"],
)
def test_a_rise_follows_the_acknowledgements_only_if_the_tenant_may_lack_it(
    wanted: int, left_ns: int, follows: dict[str, int]
) -> None:
    def place(picture: Picture) -> Listed:
        return {"s1": {"a": (wanted, 0, 0)}, "s2": {"a": (LIMIT - wanted, 0, 0)}}

    book, _ = make_leader(TAKEN_OVER, place=place)
    book.receive(1, "s1", make_report("s1", holds(15), sent_at=1, stands_at=1, left_ns=left_ns))
    effects = book.receive(2, "s2", make_report("s2", holds(15), sent_at=1, stands_at=1, left_ns=left_ns))
    assert grants(effects)["s1"] == 15, "s2 has not let go of anything yet"
    later = acknowledge(book, 3, effects)
    assert grants(later) == follows, "only to the server that lacks something"
    assert acknowledge(book, 4, later) == [], "nothing is owed any more"


def test_what_stays_owed_is_not_asked_for_again_and_again() -> None:
    """A target that the bounds do not allow: the server keeps what it has, and hears no more of it."""
    book, _ = make_leader(TAKEN_OVER, place=lambda _: {name: {"a": (LIMIT, 0, 0)} for name in ("s1", "s2")})
    book.receive(1, "s1", make_report("s1", holds(15), sent_at=1, stands_at=1))
    effects = book.receive(2, "s2", make_report("s2", holds(15), sent_at=1, stands_at=1))
    assert grants(effects) == {"s1": 15, "s2": 15}
    assert acknowledge(book, 3, effects) == []


def test_what_is_in_hand_goes_first_to_where_the_tenant_sends() -> None:
    book, _ = make_leader(TAKEN_OVER, place=lambda _: {name: {"a": (20, 0, 0)} for name in ("s1", "s2")})
    idle = (Row("a", 10, 0, 0, 0, False),)
    book.receive(1, "s1", make_report("s1", idle, sent_at=1, stands_at=1))
    effects = book.receive(2, "s2", make_report("s2", holds(10), sent_at=1, stands_at=1))
    assert grants(effects) == {"s1": 10, "s2": 20}


def test_a_tenant_with_nothing_at_a_server_has_no_row_there() -> None:
    book, _ = make_leader(TAKEN_OVER)
    book.receive(1, "s1", make_report("s1", holds(10), sent_at=1, stands_at=1))
    effects = book.receive(2, "s2", make_report("s2", holds(10), sent_at=1, stands_at=1))
    rows = {e.to: e.message.rows for e in effects if isinstance(e, Send) and isinstance(e.message, Grant)}
    assert rows["s2"].numbers == b"" and grants(effects)["s2"] == 0
    later = acknowledge(book, 3, effects)
    assert grants(later) == {"s1": LIMIT}, "what s2 gave up is known to be free"


# -- servers that come back -------------------------------------------------------------------------


def spent(tokens: int) -> tuple[Row, ...]:
    return (Row("a", tokens, tokens, 5, 5, True),)


def lead_two(lives: tuple[int, ...], *, life: int = 2, tokens: int = 4, period: int = 1) -> ControllerBook:
    """A leader whose servers held 15 each, until s1 came back and said this."""
    book, _ = make_leader(TAKEN_OVER)
    for name in ("s1", "s2"):
        book.receive(1, name, make_report(name, holds(15), sent_at=1, stands_at=1))
    rows = spent(tokens)
    back = make_report("s1", rows, sent_at=9, stands_at=9, life=life, lives=lives, period=period)
    book.receive(3, "s1", back)
    return book


def headroom(book: ControllerBook) -> int:
    tokens = book.tokens
    made = Round(tokens.roll, tokens.targets, tokens.roll.limits, ())
    return int(book._find_headroom(made)[0])


def test_a_life_that_came_back_without_a_journal_leaves_its_bound_spent() -> None:
    book = lead_two(())
    assert count_buried(book) == 15
    assert headroom(book) == 0


def test_every_life_that_came_back_without_a_journal_leaves_a_bound_of_its_own() -> None:
    book, _ = make_leader(TAKEN_OVER, place=lambda _: {"s1": {"a": (10, 0, 0)}, "s2": {}})
    book.receive(1, "s1", make_report("s1", holds(10), sent_at=1, stands_at=1))
    book.receive(1, "s2", make_report("s2", (), sent_at=1, stands_at=1))
    now = 3
    for life in (2, 3):
        [commit] = book.receive(now, "s1", make_report("s1", (), sent_at=now, stands_at=now, life=life))
        assert isinstance(commit, Commit)
        book.committed(now, commit.state)
        now += INTERVAL_NS
        assert grants(run_until(book, now))["s1"] == 10
        for name, living in (("s1", life), ("s2", 1)):
            book.receive(now, name, make_report(name, (), now, now, asked_at=now, life=living))
        now += 1
    assert book.count_held(["a"]) == {"a": 3 * 10}
    assert headroom(book) == LIMIT - 3 * 10


def test_what_an_earlier_life_did_not_charge_is_free_when_the_next_one_answers_for_it() -> None:
    book = lead_two((1,))
    assert count_buried(book) == 0
    assert book.tokens.views["s1"].count_all(book.tokens.roll)[0] == 4, "that stays spent"
    assert headroom(book) == LIMIT - 15 - 4


def test_a_journal_speaks_only_for_the_lives_that_kept_it() -> None:
    book = lead_two((7,), life=8)
    assert count_buried(book) == 15


def test_an_answer_for_another_period_is_none() -> None:
    """Asked in an earlier period it looked up that one, and may have spent something of this one."""
    book = lead_two((1,), period=0)
    assert book.tokens.views["s1"].incarnation == 1, "nothing is known of the new life yet"
    assert headroom(book) == 0
    assert polls(run_until(book, INTERVAL_NS))["s1"], "it is asked again, for everything"


def test_a_life_that_has_begun_later_periods_alone_is_heard() -> None:
    """Else a leader in whose period everybody was away waits for them until they begin no more alone."""
    book = lead_two((1,), period=4)
    assert book.tokens.views["s1"].incarnation == 2
    assert not polls(run_until(book, INTERVAL_NS))["s1"], "nothing is missing"


def test_a_late_word_of_a_server_changes_nothing() -> None:
    """Of an earlier life, sent earlier, or of a life that has said that it leaves."""
    book, _ = make_leader(TAKEN_OVER)
    for life, sent_at, tokens in ((1, 5, 10), (0, 9, 3), (1, 4, 4)):
        book.receive(6, "s1", make_report("s1", holds(tokens), sent_at=sent_at, stands_at=sent_at, life=life))
        assert (book.tokens.views["s1"].incarnation, book.count_held(["a"])) == (1, {"a": 10})
    left = Left("s1", 1, 1, 0, (("a", 7),))
    for _ in range(2):
        book.receive(7, "s1", left)
        assert book.count_held(["a"]) == {"a": 7} and book.tokens.views["s1"].left
    book.receive(8, "s1", make_report("s1", holds(9), sent_at=8, stands_at=8))
    assert book.count_held(["a"]) == {"a": 7} and book.tokens.views["s1"].left


def test_of_those_who_left_a_bounded_number_is_remembered() -> None:
    book, _ = make_leader(TAKEN_OVER)
    for life in range(10, 10 + DEPARTED_MAX + 5):
        book.receive(1, "s1", Left("s1", life, 0, 0, ()))
    assert len(book._departed) == DEPARTED_MAX and ("s1", 14) not in book._departed


def test_a_new_leader_need_not_wait_for_a_life_that_another_one_answers_for() -> None:
    book, _ = make_leader(TAKEN_OVER, place=lambda _: {})
    book.receive(1, "s2", make_report("s2", holds(15), sent_at=1, stands_at=1, left_ns=5_000))
    assert headroom(book) == 0, "s1 may hold the rest"
    book.receive(2, "s1", make_report("s1", spent(4), life=2, lives=(1,), left_ns=7_000))
    assert headroom(book) == LIMIT - 15 - 4
    assert 6_900 < book._ends_at <= 7_000, "when the last of them says that it ends, at the latest"


def test_what_a_life_held_and_what_the_next_one_charged_of_it_are_the_same_tokens() -> None:
    """While another server is silent, only what is known to be held may be moved: once."""
    stored = State(1, "before", 1, (("s1", 1), ("s2", 1), ("s3", 1)))
    book, _ = make_leader(stored)
    book.receive(1, "s1", make_report("s1", holds(10), sent_at=1, stands_at=1))
    book.receive(2, "s2", make_report("s2", holds(10), sent_at=1, stands_at=1))
    book.receive(3, "s1", make_report("s1", spent(10), sent_at=9, life=2, lives=(1,)))
    assert headroom(book) == 0, "s3 may have spent its ten"


def test_a_server_that_came_up_is_asked_at_once() -> None:
    book, _ = make_leader(TAKEN_OVER)
    assert polls(book.receive(5, "n", Started("s1"))) == {"s1": True}
    assert book.receive(5, "n", Started("nobody's")) == []
    book.deposed()
    assert book.receive(5, "n", Started("s1")) == []


def test_who_came_up_in_the_midst_of_a_period_does_not_wait_for_the_next_round() -> None:
    book = lead_two((1,))
    [listing] = [] if book.committing is None else [book.committing]
    assert ("s1", 2) in listing.servers
    effects = book.committed(4, listing)
    assert set(polls(effects)) == {"s1", "s2"}
    for name, life in (("s1", 2), ("s2", 1)):
        rows = spent(4) if name == "s1" else holds(15)
        effects = book.receive(5, name, make_report(name, rows, sent_at=20, asked_at=4, life=life))
    assert grants(effects)["s1"] == 4 + LIMIT - 15 - 4
