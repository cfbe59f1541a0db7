"""How much one server can do: what goes to it now, and when it is to rest."""

from __future__ import annotations

from bursar.world import MILLISECOND_NS, SECOND_NS

AHEAD_NS = 5 * MILLISECOND_NS
"""How far ahead of its capacity a server may run. It then rests until all of that is used up, so
that it wakes two hundred times a second at most, and not for every request."""

BEHIND_NS = 50 * MILLISECOND_NS
"""How much unused time it may make up for: a busy machine wakes late, and that is not idleness."""


class Capacity:
    """Tokens a second, None for any number. `free_at` is when the server will be done with what went
    to it."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.rests_until = 0
        self._free_at = 0

    def has_room(self, now: int) -> bool:
        """Whether another request may go. If not, `rests_until` says when to ask again."""
        if now < self.rests_until:
            return False
        if self._free_at > now + AHEAD_NS:
            self.rests_until = self._free_at
            return False
        return True

    def find_spare(self, now: int) -> int | None:
        """Tokens that may go before it has to rest; None for any number."""
        if self.rate is None:
            return None
        free_at = max(self._free_at, now - BEHIND_NS)
        return max(0, int((now + AHEAD_NS - free_at) * self.rate / SECOND_NS))

    def spend(self, now: int, tokens: int) -> None:
        if self.rate is not None:
            self._free_at = max(self._free_at, now - BEHIND_NS) + self._span(tokens)

    def give_back(self, now: int, tokens: int) -> None:
        """So many did not go after all. Time in which the server was idle is over."""
        if self.rate is not None:
            self._free_at = max(self._free_at - self._span(tokens), min(self._free_at, now))
            self.rests_until = min(self.rests_until, self._free_at)

    def _span(self, tokens: int) -> int:
        assert self.rate is not None, "only a given capacity is counted"
        return int(tokens * SECOND_NS / self.rate)
