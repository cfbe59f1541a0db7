"""Who gets a place: decided when a connection arrives, before a byte of it is read.

    new -> client | node -> gone

Nobody knows who a new one is, so they have the places that clients leave free, and a few that clients cannot
take, for a short time: where all are taken, the one that has said nothing for longest makes way, then the
one that has said too little; and while everyone there is fresh the next one is not taken yet, but waits in
the system's queue. How long one is fresh depends on what became of those before it: many honest clients that
come at once need time, and where hardly anyone says who they are, the next one will not either. So
connections that come and say nothing delay others by moments, wherever they come from. Clients have most of
the places, and cannot take those of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bursar.runtime.limits import Limits

NEW, CLIENT, NODE, GONE = range(4)
MEMORY = 1 / 64
"""How much each new one counts in what is expected of the next."""


class Place:
    """One connection's. `evict(reason, why)` ends the connection; `heard`: a byte of it came."""

    __slots__ = ("address", "evict", "heard", "since", "stage")

    def __init__(self, address: str, since: int, evict: Callable[[str, str], None]) -> None:
        self.address = address
        self.since = since
        self.evict = evict
        self.heard = False
        self.stage = NEW


class Admission:
    """The places of one node."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._new: dict[Place, None] = {}
        self._by_address: dict[str, dict[Place, None]] = {}
        self._honest = 1.0
        self.held = [0, 0, 0, 0]
        """How many places there are, by stage."""

    def free_at(self, now: int, address: str) -> int:
        """When there will be a place for one from this address; `now`, if there is one. It may have been
        made free by ending another."""
        crowd = self._find_crowd(address)
        if crowd is None:
            return now
        victim, when = self._choose_victim(crowd)
        if when <= now:
            self._evict(victim)
            return now
        return when

    def _find_crowd(self, address: str) -> Iterable[Place] | None:
        """Those among whom one has to go first."""
        same = self._by_address.get(address, {})
        if len(same) >= self._limits.new_per_address_max:
            return same
        unproved = self.held[NEW] + self.held[CLIENT]
        return self._new if unproved >= self._limits.unproved_max else None

    def _choose_victim(self, crowd: Iterable[Place]) -> tuple[Place, int]:
        """The one whose time is over first, and when that is."""
        places = iter(crowd)  # the oldest first
        oldest = next(places)
        quiet = oldest if not oldest.heard else next((place for place in places if not place.heard), None)
        quiet_ns, greeting_ns = self._limits.quiet_ns, self._limits.greeting_ns
        greeting_until = oldest.since + quiet_ns + int((greeting_ns - quiet_ns) * self._honest)
        if quiet is None or quiet.since + quiet_ns > greeting_until:
            return oldest, greeting_until
        return quiet, quiet.since + quiet_ns

    def _evict(self, place: Place) -> None:
        self._honest -= self._honest * MEMORY
        self.leave(place)
        place.evict("crowded", "others came, and it had not said who it is")

    def enter(self, now: int, address: str, evict: Callable[[str, str], None]) -> Place:
        """A place for a new one. `free_at` said that there is one."""
        place = Place(address, now, evict)
        self._new[place] = None
        self._by_address.setdefault(address, {})[place] = None
        self.held[NEW] += 1
        return place

    def settle(self, place: Place, *, is_node: bool) -> bool:
        """It has said who it is; false if there is no place for one more such."""
        if place.stage != NEW or (not is_node and self.held[CLIENT] >= self._limits.clients_max):
            return False
        self._honest += (1 - self._honest) * MEMORY
        self.leave(place)
        place.stage = NODE if is_node else CLIENT
        self.held[place.stage] += 1
        return True

    def leave(self, place: Place) -> None:
        """It is gone. Leaving again does nothing."""
        if place.stage == GONE:
            return
        self.held[place.stage] -= 1
        if place.stage == NEW:
            del self._new[place]
            same = self._by_address[place.address]
            del same[place]
            if not same:
                del self._by_address[place.address]
        place.stage = GONE

    def sweep(self, now: int) -> None:
        """End those who did not say in time who they are."""
        for place in list(self._new):  # the oldest first
            if now - place.since <= self._limits.hello_timeout_ns:
                return
            self.leave(place)
            place.evict("stalled", "no hello came in time")
