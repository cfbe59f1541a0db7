"""When a candidate takes a leader's place, and when it leaves it alone."""

from __future__ import annotations

from bursar.rates.candidacy import CALM, MISSED_MAX, Candidacy

OTHERS = ("b", "c")


def miss(candidacy: Candidacy, beats: int) -> int:
    """How often others are asked."""
    return sum(candidacy.beat() for _ in range(beats))


def make_candidate(epoch: int = 1) -> Candidacy:
    candidacy = Candidacy()
    candidacy.hear(epoch, "a")
    candidacy.beat()
    return candidacy


def test_three_beats_missed_and_nobody_else_hears_the_leader() -> None:
    candidacy = make_candidate()
    assert miss(candidacy, 2) == 1
    candidacy.hear_answer(1, False)
    assert not candidacy.should_lead(OTHERS)
    miss(candidacy, 1)
    assert candidacy.should_lead(OTHERS)


def test_one_that_hears_the_leader_is_enough_to_leave_it() -> None:
    candidacy = make_candidate()
    miss(candidacy, 2)
    candidacy.hear_answer(1, False)
    candidacy.hear_answer(1, True)
    miss(candidacy, 1)
    assert not candidacy.should_lead(OTHERS)
    assert miss(candidacy, 2) == 1, "it begins to count anew"


def test_a_candidate_that_nobody_answers_is_itself_cut_off() -> None:
    candidacy = make_candidate()
    miss(candidacy, 10)
    assert not candidacy.should_lead(OTHERS)
    assert candidacy.should_lead(()), "unless there is nobody to ask"


def test_a_leader_that_was_never_heard_is_not_missed() -> None:
    candidacy = Candidacy()
    miss(candidacy, 10)
    assert not candidacy.should_lead(())


def test_a_beat_of_a_deposed_leader_does_not_count() -> None:
    candidacy = make_candidate(epoch=2)
    miss(candidacy, 1)
    candidacy.hear(1, "b")
    miss(candidacy, MISSED_MAX - 1)
    assert candidacy.should_lead(())


def test_one_that_was_deposed_soon_is_in_no_hurry_until_things_are_calm() -> None:
    candidacy = make_candidate()
    candidacy.lead()
    candidacy.deposed(beats=2)
    candidacy.hear(2, "b")
    candidacy.beat()
    miss(candidacy, MISSED_MAX)
    assert not candidacy.should_lead(())
    miss(candidacy, MISSED_MAX)
    assert candidacy.should_lead(())
    for _ in range(CALM):
        candidacy.hear(2, "b")
        candidacy.beat()
    miss(candidacy, MISSED_MAX)
    assert candidacy.should_lead(())


def test_what_is_heard_here_is_answered() -> None:
    candidacy = make_candidate(epoch=2)
    assert candidacy.answer(2) and candidacy.answer(1)
    assert not candidacy.answer(3)
    miss(candidacy, 2)
    assert not candidacy.answer(2)
