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
    to it, but for its *debt*: what a request that went without priority takes longer than the server may
    run ahead. Time in which the server would be idle pays for that, and until it is paid nobody goes but
    those who have priority: so however large a request is, only requests without priority wait for it."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.rests_until = 0
        self.debt_ns = 0
        self._free_at = 0

    @property
    def clear_at(self) -> int:
        """When all is done and paid, if nothing else goes."""
        return max(self.rests_until, self._free_at + self.debt_ns)

    def has_room(self, now: int) -> bool:
        """Whether another request may go. If not, `rests_until` says when to ask again."""
        if now < self.rests_until:
            return False
        if self.debt_ns and now > self._free_at:
            paid = min(self.debt_ns, now - self._free_at)
            self.debt_ns -= paid
            self._free_at += paid
        if self._free_at > now + AHEAD_NS:
            self.rests_until = self._free_at
            return False
        return True

    def find_spare(self, now: int) -> int | None:
        """Tokens that may go before it has to rest; None for any number."""
        if self.rate is None:
            return None
        if self.debt_ns:
            return 0
        free_at = max(self._free_at, now - BEHIND_NS)
        return max(0, int((now + AHEAD_NS - free_at) * self.rate / SECOND_NS))

    def is_large(self, tokens: int) -> bool:
        """Whether a request takes longer than the server may run ahead."""
        return self.rate is not None and self._span(tokens) > AHEAD_NS

    def spend(self, now: int, tokens: int, beyond: int = 0) -> None:
        """`beyond` of the tokens went without priority, in one large request."""
        if self.rate is not None:
            span = self._span(tokens)
            owed = max(0, min(self._span(beyond), span - AHEAD_NS))
            self.debt_ns += owed
            self._free_at = max(self._free_at, now - BEHIND_NS) + span - owed

    def give_back(self, now: int, tokens: int) -> None:
        """So many did not go after all. Time in which the server was idle is over."""
        if self.rate is not None:
            span = self._span(tokens)
            unpaid = min(self.debt_ns, span)
            self.debt_ns -= unpaid
            self._free_at = max(self._free_at - (span - unpaid), min(self._free_at, now))
            self.rests_until = min(self.rests_until, self._free_at)

    def _span(self, tokens: int) -> int:
        assert self.rate is not None, "only a given capacity is counted"
        return int(tokens * SECOND_NS / self.rate)
