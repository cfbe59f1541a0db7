"""What is out ahead of use: never more than there is room for, and what ended counts no longer."""

from __future__ import annotations

from bursar.resource.lots import Ahead, Issue
from bursar.resource.tickets import Ticket


def issue(ahead: Ahead, tokens: int, holder: str = "h", place: str = "s1", until: int = 100) -> Issue:
    return ahead.issue("acme", place, holder, tokens, until, 1)


def test_who_does_not_ask_for_tokens_ahead_is_given_none() -> None:
    assert Ticket("acme", 3).ahead == 0


def test_half_of_what_there_is_room_for_goes_out_so_that_others_find_some_too() -> None:
    ahead = Ahead()
    assert ahead.room(0, "acme", "s1", 20, 11) == 6
    issue(ahead, 6)
    assert ahead.room(0, "acme", "s1", 20, 11) == 3
    assert ahead.room(0, "acme", "s2", 20, 11) == 6 and ahead.room(0, "acme", "s2", 9, 11) == 2
    assert ahead.room(0, "other", "s1", 20, 5) == 0
    assert ahead.out == 6


def test_a_lot_counts_until_it_ended_or_was_spent() -> None:
    ahead = Ahead()
    first, second = issue(ahead, 6), issue(ahead, 4, holder="other", until=50)
    assert ahead.room(49, "acme", "s1", 20, 20) == 5
    assert ahead.room(50, "acme", "s1", 20, 20) == 7 and ahead.of_tenant("acme") == [first]
    ahead.spend(first, 2)
    assert (first.left, second.left, ahead.out) == (4, 0, 4)
    ahead.spend(first, 9)
    assert (first.left, ahead.out) == (0, 0)


def test_a_holder_has_one_lot_of_a_tenant_at_a_place() -> None:
    ahead = Ahead()
    first, second = issue(ahead, 6), issue(ahead, 4)
    assert ahead.of_tenant("acme") == [second] and (first.left, ahead.out) == (0, 4)
    ahead.end(first)
    assert ahead.of_tenant("acme") == [second]
    third = issue(ahead, 1, place="s2")
    assert ahead.of_tenant("acme") == [second, third] and ahead.out == 5
