"""The next period, begun by a server that has heard nothing of it.

A leader that dies leaves its servers with tokens that end with the period. Another takes over within a
few polls, but seldom in time to open the next period. So each period that a leader opens fixes, in the
store, what every listed server may use of the one after it: its part of every tenant's limit (`parts`),
under the same terms. That is charged to the next period, whether it is used or not: whoever opens it
begins with these parts as bounds, and nobody has to be asked what they are.

    period p                       | p + 1, begun alone             | without_bursar
    granted_______________expires_at                        expires_at + T
                                   over_at: p has ended on every clock

*When.* Not when the server's own tokens end, which may be sooner than others' do: the leader says with
every grant how long it takes until all of them have ended on the slowest clock. And not later than a
period after its own tokens ended, on its own clock: by then the period is over for everybody.

*Once.* The part is of the next period and of no further one. A server that nobody has spoken to for a
whole period may be one that everybody else has written off, and to count its parts for ever would cost
every tenant that much for ever. After that it does as `without_bursar` says. (A whole zone has its part of
some more periods: `zones`.)

*Given up* as soon as a controller asks for a later period than the server has: that period was opened by
somebody, who takes the answer at its word.
"""

from __future__ import annotations

from bursar.rates.messages import NO_PART, Grant, Part

LATE_PART = 50
"""A leader that is well opens the next period just when this one is over; its word has a fiftieth of a period
to arrive. Whoever begins alone a moment before it comes has its part twice moved for nothing."""


class Grace:
    """Whether and when this server may begin the next period alone.

    unheard   the present period was begun alone, and no leader has said anything of it yet
    over_at   when every token of the present period has ended, wherever it is, by this server's clock
    """

    def __init__(self, period_ns: int, periods: int = 1) -> None:
        """`periods`: how many in a row may be begun alone."""
        self.unheard = False
        self._period_ns = period_ns
        self._periods = periods
        self._left = 0
        self._part = NO_PART
        self._over_at: int | None = None

    def hear(self, now: int, grant: Grant, part: Part, *, opens: bool) -> None:
        """A grant was taken, of a new period or of the present one. What each says is true, so the
        soonest counts; but what the server made out by itself does not, once a leader has said more."""
        over_at = now + grant.over_ns
        known = None if opens or self.unheard else self._over_at
        self._over_at = over_at if known is None else min(known, over_at)
        self._part, self._left, self.unheard = part, self._periods, False

    def give_up(self) -> None:
        self._part = NO_PART

    def find_start(self, expires_at: int) -> int | None:
        """When the next period may be begun alone; None if it may not."""
        if not self._part.of or self._over_at is None:
            return None
        start = self._over_at + self._period_ns // LATE_PART
        return start if start < self.find_end(expires_at) else None

    def find_end(self, expires_at: int) -> int:
        return expires_at + self._period_ns

    def is_due(self, now: int, expires_at: int) -> bool:
        start = self.find_start(expires_at)
        return start is not None and start <= now < self.find_end(expires_at)

    def begin(self) -> Part:
        """The next period begins here, with this part of it."""
        assert self._over_at is not None, "it is due"
        part, self._left = self._part, self._left - 1
        if not self._left:
            self._part = NO_PART
        self._over_at += self._period_ns
        self.unheard = True
        return part

    def tell(self, now: int, period: int, asked_for: int) -> int | None:
        """In how long every token of the present period will have ended, if that is known. Of a period
        begun alone it is, unless somebody else has opened it: then it may end later."""
        if self._over_at is None or (self.unheard and asked_for >= period):
            return None
        return max(0, self._over_at - now)
