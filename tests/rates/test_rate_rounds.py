"""How long a controller and its servers talk, as it is counted (section IV-E)."""

from __future__ import annotations

from bursar.book import Send
from bursar.rates.messages import NO_ALLOWANCES, Ack, Grant, Poll, Report
from bursar.rates.rounds import Rounds
from bursar.world import MILLISECOND_NS as MS


def poll(server: str) -> Send:
    return Send(server, Poll(1, 0, False, 1))


def grant(server: str, sequence: int) -> Send:
    return Send(server, Grant(1, sequence, 1, 1, 0, 0, NO_ALLOWANCES))


def report(server: str) -> Report:
    return Report(server, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, None)


def ack(server: str, sequence: int) -> Ack:
    return Ack(server, 1, 1, sequence, 1, ())


def test_a_round_lasts_from_its_first_question_to_the_last_acknowledgement_without_computing() -> None:
    rounds = Rounds()
    rounds.send(0, [poll("a"), poll("b")])
    rounds.hear(2 * MS, report("a"), 0)
    rounds.hear(3 * MS, report("b"), 1 * MS)
    rounds.send(4 * MS, [grant("a", 1), grant("b", 2)])
    rounds.hear(5 * MS, ack("b", 2), 0)
    assert rounds.rounds == 0
    rounds.hear(7 * MS, ack("a", 1), 0)
    assert (rounds.rounds, rounds.messages, rounds.talking_ns) == (1, 8, 6 * MS)


def test_who_does_not_acknowledge_is_not_waited_for_beyond_the_next_round() -> None:
    rounds = Rounds()
    rounds.send(0, [grant("a", 1), grant("b", 2)])
    rounds.hear(2 * MS, ack("a", 1), 0)
    rounds.send(200 * MS, [poll("a"), poll("b")])
    assert (rounds.rounds, rounds.talking_ns) == (1, 2 * MS)


def test_a_grant_that_follows_an_acknowledgement_belongs_to_the_round() -> None:
    rounds = Rounds()
    rounds.send(0, [grant("a", 1), grant("b", 2)])
    rounds.hear(1 * MS, ack("a", 1), 0)
    rounds.send(1 * MS, [grant("a", 3)])
    rounds.hear(2 * MS, ack("b", 2), 0)
    rounds.hear(3 * MS, ack("a", 3), 0)
    assert (rounds.rounds, rounds.talking_ns) == (1, 3 * MS)
