"""How soon a controller may ask its servers out of turn again, because demand has moved.

Every round wakes every server twice. Where many tenants move all the time, rounds out of turn would take more
than they are worth: so after each time they pause, until what they took is `MOST` of the time gone by.
"""

from __future__ import annotations

MOST = 0.02
"""The part of the time that rounds out of turn may take."""

SMOOTHED = 4
"""How long a round takes is a mean of about so many."""


class Haste:
    """Nothing that safety rests on. A round takes as long as goes by between its first message and the last
    answer to it."""

    def __init__(self) -> None:
        self._took_ns = 0
        self._began_at = 0
        self._heard_at = 0

    def talk(self, now: int) -> None:
        """Something is sent that servers answer; what was sent before has taken what it has."""
        self._took_ns += (self._heard_at - self._began_at - self._took_ns) // SMOOTHED
        self._began_at = self._heard_at = now

    def hear(self, now: int) -> None:
        """A server answered."""
        self._heard_at = now

    def find_pause(self, rounds: int, most_ns: int) -> int:
        """After so many rounds out of turn; never longer than `most_ns`."""
        return min(most_ns, round(rounds * self._took_ns / MOST))
