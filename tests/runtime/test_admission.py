"""Places for connections: who makes way for whom, and whose places nobody can take."""

from __future__ import annotations

from bursar.runtime.admission import CLIENT, NEW, NODE, Admission, Place
from bursar.runtime.limits import Limits
from bursar.world import MILLISECOND_NS, SECOND_NS

LIMITS = Limits(connections_max=100)  # 75 clients, 20 new ones, 71 of an address


class Hall:
    def __init__(self) -> None:
        self.admission = Admission(LIMITS)
        self.evicted: list[tuple[Place, str]] = []

    def come(self, now: int, address: str) -> Place | None:
        """None: it has to wait."""
        if self.admission.free_at(now, address) > now:
            return None
        place = self.admission.enter(now, address, lambda reason, why: self.evicted.append((place, reason)))
        return place

    def fill(self, now: int, addresses: str = "ab") -> list[Place]:
        found = [self.come(now + i, addresses[i % len(addresses)]) for i in range(LIMITS.unproved_max)]
        assert all(found)
        return [place for place in found if place]


def test_while_all_are_fresh_the_next_one_waits_and_nobody_is_ended() -> None:
    hall = Hall()
    hall.fill(0)
    assert hall.admission.free_at(100, "c") == LIMITS.quiet_ns
    assert hall.come(100, "c") is None
    assert not hall.evicted


def test_who_has_said_nothing_for_longest_makes_way_first() -> None:
    hall = Hall()
    places = hall.fill(0)
    for place in places[:3]:
        place.heard = True
    assert hall.come(LIMITS.quiet_ns + 3, "c") is not None
    assert hall.evicted == [(places[3], "crowded")]
    assert hall.admission.held[NEW] == LIMITS.unproved_max


def test_who_has_said_something_has_longer_but_not_for_ever() -> None:
    hall = Hall()
    places = hall.fill(0)
    for place in places:
        place.heard = True
    assert hall.come(LIMITS.quiet_ns + 200, "c") is None
    assert hall.admission.free_at(LIMITS.quiet_ns + 200, "c") == LIMITS.greeting_ns
    assert hall.come(LIMITS.greeting_ns, "c") is not None
    assert hall.evicted == [(places[0], "crowded")]


def test_an_address_with_many_new_ones_makes_way_for_itself() -> None:
    hall = Hall()
    for i in range(LIMITS.new_per_address_max):
        assert hall.come(i, "a") is not None
    assert hall.come(100, "a") is None
    assert hall.come(100, "b") is not None, "others are not kept waiting for it"
    assert hall.come(LIMITS.quiet_ns, "a") is not None
    assert [place.address for place, _ in hall.evicted] == ["a"]


def test_clients_cannot_take_the_places_of_nodes_or_of_new_ones() -> None:
    hall = Hall()
    taken = 0
    for i in range(200):
        place = hall.come(i, "a")
        assert place is not None
        if hall.admission.settle(place, is_node=False):
            taken += 1
        else:
            hall.admission.leave(place)
    assert taken == LIMITS.clients_max == hall.admission.held[CLIENT]
    for i in range(20):
        place = hall.come(1000 + i, "a")
        assert place is not None and hall.admission.settle(place, is_node=True)
    assert hall.admission.held[NODE] == 20


def test_who_does_not_say_who_it_is_is_ended_in_time() -> None:
    hall = Hall()
    places = hall.fill(0)
    hall.admission.settle(places[1], is_node=False)
    hall.admission.sweep(LIMITS.hello_timeout_ns)
    assert not hall.evicted
    hall.admission.sweep(LIMITS.hello_timeout_ns + SECOND_NS)
    assert len(hall.evicted) == LIMITS.unproved_max - 1
    assert {reason for _, reason in hall.evicted} == {"stalled"}
    assert hall.admission.held == [0, 1, 0, 0]


def test_places_are_given_back_once() -> None:
    hall = Hall()
    for i in range(100):
        place = hall.come(i * MILLISECOND_NS, "a")
        assert place is not None
        if i % 2:
            hall.admission.settle(place, is_node=bool(i % 3))
        hall.admission.leave(place)
        hall.admission.leave(place)
        assert not hall.admission.settle(place, is_node=True)
    assert hall.admission.held == [0, 0, 0, 0]
    assert not hall.admission._by_address


def test_where_hardly_anyone_says_who_they_are_the_others_have_less_time() -> None:
    hall = Hall()
    for place in hall.fill(0):
        place.heard = True
    now, waits = 200, []
    for _ in range(600):
        free_at = hall.admission.free_at(now, "c")
        waits.append(free_at - now)
        now = free_at
        place = hall.come(now, "c")
        assert place is not None
        place.heard = True
    assert max(waits[-20:]) <= LIMITS.quiet_ns * 2
    for _ in range(300):
        place = hall.come(now, "d")
        if place is None:
            now = hall.admission.free_at(now, "d")
            continue
        hall.admission.settle(place, is_node=True)
    assert hall.admission._honest > 0.9
