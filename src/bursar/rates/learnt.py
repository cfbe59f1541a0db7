"""What a server can do, where nobody says: learnt from requests that are seen to begin and to end.

Three things are kept, all from counts over short slices of time:

- `hold_ns`, how long a request takes when nothing queues at the server. It is measured while few
  requests are there: by itself under light load, and under steady load by a *dip*, in which for a
  moment somewhat fewer are let in than seem to keep the server busy;
- `limit`, how many tokens may be in service at once: twice what keeps the server busy (rate times
  hold, by Little's law), and a few milliseconds' worth more. So the server always has work while
  requests wait, which is what makes its rate visible; and nearly all of the waiting is done here,
  where a reservation comes first, and not in the server's own queue. Where the server turns out to
  do more than it was taken for, the limit doubles from slice to slice;
- `rate`, the estimate: what was completed, over slices in which the server was *saturated*, that is,
  never without work, and slower with the usual request than it is without a queue. Otherwise what was
  completed is a lower bound, and only raises the estimate. A server that idles is not a slow one.

The idea is that of BBR (bandwidth from deliveries, a window of twice their product with the delay) and
of the gradient limits of services; but the rate is a mean over saturated time and not a maximum,
which lateness of a busy machine would inflate, and the hold is a mean over a dip and not a minimum,
because requests differ.

A dip looks at few requests. Where they differ much it may see only short ones, and the limit would then
be too low to keep the server busy, with nothing to show it. So after each dip comes a *surge*: for a
slice, twice as many are let in. If more is completed then, nothing had queued before, and what requests
took then is the hold.

**Error.** The estimate is the mean rate of the last `WINDOW_NS` of saturated time (or of `WINDOW_HOLDS`, if
that is longer). It is off by one hold of those and by chance: where requests take a random time, by
1/sqrt(n) of the n that were counted. A change of the server is known in part after half a second or five
holds, and whole after the window; so three seconds are enough where a hold takes up to 100 ms. What
it cannot know: what a server can do that is never saturated. Then it is taken for the most that it did,
`UNSEEN_RATE` at least, even if it has become slower since.

**Callers that do not say when they are done.** Whoever forgets a grant, or keeps it for longer than
`patience_ns`, counts as served, for the lower bound, and as gone. Where more than `UNSAID_PART` do, what
is in service is not known, and nothing is limited by it.

Pure: time is an argument. A wrong estimate costs accuracy, never a limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from bursar.world import MILLISECOND_NS, SECOND_NS

UNSEEN_RATE = 1_000.0
"""Tokens a second that a server is taken for until it was seen at work."""

SLICE_NS = 100 * MILLISECOND_NS
"""How long to count at least; and for two holds, because requests that began together end together."""

WINDOW_NS = 1500 * MILLISECOND_NS
WINDOW_HOLDS = 12
"""Of saturated time, the longer of the two makes the estimate."""

LOWER_NS = 500 * MILLISECOND_NS
LOWER_HOLDS = 5
"""Of saturated time without a break, the longer of the two can lower it. A pause of the server or of this
machine is shorter than that, and no reason to take an idle server for a slow one."""

RECENT_SLICES = 10

GAIN = 2
"""Times what keeps the server busy: also one that has just become twice as fast, or slow."""

SLACK_NS = 10 * MILLISECOND_NS
"""Of work in store at the server, for when this machine wakes late."""

LEAST = 2
"""Tokens in service, beside all that."""

START_LIMIT = 32
"""Tokens in service, at least, until the server was seen saturated: nobody is to be kept waiting for a
server that only seems small because little was asked of it."""

UNLIMITED = 2**62

DIP_NS = 2 * SECOND_NS
DIP_HOLDS = 100
"""Between two dips, the two together: one costs about a hold's work of the server."""

DIP_TOKENS = 32
"""How many a dip looks at, at least; and at as many as it lets in at once."""

HOLDS_MAX = 64
"""Requests of a slice of which is kept how long each took."""

ENOUGH_TOKENS = 8
"""Completed in a slice, to learn how long they take."""

SURGE_ROSE = 1.3
"""Times the rate before, in a surge: then the server was not saturated."""

DIP_PART = 0.75
FIRST_DIP_PART = 0.5
"""Of what keeps the server busy is in service in a dip, and in the first one, when little is known."""

DIP_ROSE = 1.25
"""A rate that many times as high as at the last dip, or as it was since, is a reason for the next: with a
hold that is too long, requests would queue at the server."""

DIP_AGAIN = 0.85
"""If a dip finds the hold below this part of what it was, there was still a queue, and it goes on."""

QUEUED = 1.3
"""Times the usual hold that a request takes at a server that is saturated: at the limit it takes twice. The
usual one is the median, which a few long requests do not move."""

IDLE_PART = 0.1
"""Of a slice, in which a saturated server may have been without work: between two periods it is."""

PATIENCE_NS = SECOND_NS
PATIENCE_HOLDS = 8
UNSAID_PART = 0.2

Counts = deque[tuple[int, int]]
"""Pairs of tokens, and the nanoseconds in which they were served."""


@dataclass(slots=True)
class Slice:
    """Counts since a moment.

    completed, held_ns   tokens that were served, and the time that they took, of each added up
    holds                how long some of the requests took
    unsaid, elsewhere    tokens that may be served, and those that were where nobody watched
    level_ns, idle_ns    tokens in service, over time; time without any
    dipped               whether there was a dip in it
    """

    since: int
    completed: int = 0
    held_ns: int = 0
    unsaid: int = 0
    elsewhere: int = 0
    level_ns: int = 0
    idle_ns: int = 0
    dipped: bool = False
    holds: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Dip:
    """Few requests are let in for a while, `limit` at once, and the first so many are looked at until
    the last of them has ended: `wanted` tokens have still to begin, `open` to end."""

    until: int
    part: float
    limit: int
    wanted: int
    open: int = 0
    completed: int = 0
    held_ns: int = 0
    holds: list[int] = field(default_factory=list)

    def admit(self, tokens: int) -> None:
        self.wanted -= tokens
        self.open += tokens

    def end(self, took_ns: int, tokens: int) -> None:
        self.open -= tokens
        self.completed += tokens
        self.held_ns += took_ns * tokens
        self.holds.append(took_ns)

    @property
    def is_over(self) -> bool:
        return self.wanted <= 0 and self.open <= 0


@dataclass(slots=True, eq=False)
class Stay:
    """A request in service, since when, and the dip that looks at it."""

    since: int
    tokens: int
    dip: Dip | None


class LearntCapacity:
    """Told of every request's begin and end; says the `rate`, in tokens a second, and whether
    another may go (`is_full`)."""

    def __init__(self) -> None:
        self.limit = START_LIMIT
        self.in_service = 0
        self.hold_ns = 0.0
        self.typical_ns = 0.0
        self._found = 0.0
        self._was_saturated = False
        self._counted_at = 0
        self._slice = Slice(0)
        self._ends_at = 0
        self._recent: Counts = deque(maxlen=RECENT_SLICES)
        self._saturated: Counts = deque()
        self._saturated_at = -SECOND_NS
        self._in_a_row = 0
        self._last = (0, 0)
        self._dip: Dip | None = None
        self._dip_at = 0
        self._dipped_at = 0
        self._dip_rate = 0.0
        self._surge = 0.0
        self._begun: dict[int, int] = {}
        self._said = 0.0
        self._unsaid = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second that the server can do, as far as is known."""
        return self._found if self._was_saturated else max(self._found, UNSEEN_RATE)

    # -- what happens -----------------------------------------------------------------------

    def begin(self, now: int, tokens: int) -> Stay:
        if not self._ends_at:
            self._slice, self._counted_at, self._ends_at = Slice(now), now, now + SLICE_NS
        self.look(now)
        self._count(now, tokens)
        born = now // SLICE_NS
        self._begun[born] = self._begun.get(born, 0) + tokens
        dip = self._dip if self._dip is not None and self._dip.wanted > 0 else None
        if dip is not None:
            dip.admit(tokens)
        return Stay(now, tokens, dip)

    def end(self, now: int, stay: Stay) -> None:
        """It is served."""
        self.look(now)
        took_ns = now - stay.since
        self._slice.completed += stay.tokens
        self._slice.held_ns += took_ns * stay.tokens
        if len(self._slice.holds) < HOLDS_MAX:
            self._slice.holds.append(took_ns)
        self._leave(now, stay.since, stay.tokens)
        dip = stay.dip
        if dip is not None:
            dip.end(took_ns, stay.tokens)
            if dip is self._dip and dip.is_over:
                self._end_dip(now, dip)

    def forget(self, now: int, stay: Stay) -> None:
        """Nobody will say when it was served."""
        tokens = stay.tokens
        self.undo(now, stay, tokens)
        self._slice.unsaid += tokens

    def undo(self, now: int, stay: Stay, tokens: int) -> None:
        """So many of its tokens were not used."""
        self.look(now)
        stay.tokens -= tokens
        self._leave(now, stay.since, tokens)
        if stay.dip is not None:
            stay.dip.open -= tokens

    def note(self, now: int, tokens: int) -> None:
        """So many were served that nobody watched: those of lots."""
        self.look(now)
        self._slice.elsewhere += tokens

    def is_full(self, now: int) -> bool:
        self.look(now)
        return self.in_service >= self.limit

    def is_calm(self, now: int) -> bool:
        """Whether there is so little to do that requests may go unwatched."""
        self.look(now)
        quiet = now - self._saturated_at >= SECOND_NS and self._dip is None
        return quiet and 4 * self.in_service <= self.limit

    def look(self, now: int) -> None:
        """Take in what time alone brings."""
        if self._dip is not None and now >= self._dip.until:
            self._end_dip(now, self._dip)
        if now >= self._ends_at and self._ends_at:
            self._close(now)

    @property
    def drain_ns(self) -> int:
        """How long those in service take, about."""
        return int(self.hold_ns + self.in_service * SECOND_NS / self.rate)

    @property
    def patience_ns(self) -> int:
        """How long a request may be in service before whoever has it seems not to say when it is done."""
        return max(PATIENCE_NS, int(PATIENCE_HOLDS * self.hold_ns))

    # -- counting ---------------------------------------------------------------------------

    def _count(self, now: int, change: int) -> None:
        elapsed_ns = now - self._counted_at
        self._slice.level_ns += self.in_service * elapsed_ns
        if not self.in_service:
            self._slice.idle_ns += elapsed_ns
        self._counted_at = now
        self.in_service += change

    def _leave(self, now: int, began_at: int, tokens: int) -> None:
        """In service no more, unless it has been given up already."""
        born = began_at // SLICE_NS
        if born in self._begun:
            self._begun[born] -= tokens
            if not self._begun[born]:
                del self._begun[born]
            self._count(now, -tokens)
        else:
            self._unsaid = max(0.0, self._unsaid - tokens)

    def _give_up_old(self, now: int) -> None:
        oldest = (now - self.patience_ns) // SLICE_NS
        for born in [born for born in self._begun if born < oldest]:
            tokens = self._begun.pop(born)
            self._slice.unsaid += tokens
            self._count(now, -tokens)

    # -- learning ---------------------------------------------------------------------------

    def _close(self, now: int) -> None:
        self._give_up_old(now)
        self._count(now, 0)
        seen, self._slice = self._slice, Slice(now, dipped=self._dip is not None)
        elapsed_ns = now - seen.since
        self._learn(now, seen, elapsed_ns)
        self._weigh_unsaid(seen, elapsed_ns)
        self._set_limit()
        self._ends_at = now + max(SLICE_NS, int(2 * self.hold_ns))

    def _learn(self, now: int, seen: Slice, elapsed_ns: int) -> None:
        self._recent.append((seen.completed + seen.elsewhere + seen.unsaid, elapsed_ns))
        if len(self._recent) == RECENT_SLICES:
            self._found = max(self._found, _mean(self._recent))
        if seen.completed and not seen.dipped:
            if self._surge:
                self._end_surge(seen, elapsed_ns)
            self._learn_hold(seen, elapsed_ns)
            self._learn_rate(now, seen, elapsed_ns)
        else:
            self._in_a_row = 0
            if seen.idle_ns == elapsed_ns:
                self._saturated.clear()

    def _learn_hold(self, seen: Slice, elapsed_ns: int) -> None:
        """From few requests; and from any that took less than seemed possible."""
        hold_ns = seen.held_ns / seen.completed
        busy_with = max(self._found * self.hold_ns / SECOND_NS if self._was_saturated else 0.0, 1.0)
        if not self.hold_ns:
            self.hold_ns, self.typical_ns = seen.level_ns / seen.completed, median(seen.holds)
        elif seen.completed >= ENOUGH_TOKENS and (
            hold_ns < self.hold_ns or GAIN * seen.level_ns <= busy_with * (elapsed_ns - seen.idle_ns)
        ):
            self.hold_ns = (self.hold_ns + hold_ns) / 2
            self.typical_ns = (self.typical_ns + median(seen.holds)) / 2

    def _learn_rate(self, now: int, seen: Slice, elapsed_ns: int) -> None:
        busy = seen.idle_ns <= IDLE_PART * elapsed_ns and seen.level_ns >= QUEUED * elapsed_ns
        queued = median(seen.holds) >= QUEUED * self.typical_ns
        if busy and queued:
            self._note_saturated(now, seen.completed + seen.elsewhere, elapsed_ns)
        else:
            self._in_a_row = 0
            self._saturated.clear()
        if busy and self._is_dip_due(now, queued):
            rate = self._found or seen.completed * SECOND_NS / elapsed_ns
            part = DIP_PART if self._dip_at else FIRST_DIP_PART
            self._begin_dip(now, part, part * rate * self.hold_ns / SECOND_NS)

    def _is_dip_due(self, now: int, queued: bool) -> bool:
        if not self._dip_at:
            return True
        rose = self._found > DIP_ROSE * self._dip_rate and now - self._dipped_at >= SECOND_NS
        return queued and (rose or now >= self._dip_at)

    def _note_saturated(self, now: int, tokens: int, elapsed_ns: int) -> None:
        """The first and the last slice of several in a row are left out: the server had begun within the
        one, and may have stopped within the other."""
        self._saturated_at = now
        self._in_a_row += 1
        last, self._last = self._last, (tokens, elapsed_ns)
        if self._in_a_row >= 3:
            self._saturated.append(last)
            self._set_rate()

    def _set_rate(self) -> None:
        total_ns = sum(ns for _, ns in self._saturated)
        while total_ns - self._saturated[0][1] >= max(WINDOW_NS, WINDOW_HOLDS * self.hold_ns):
            total_ns -= self._saturated.popleft()[1]
        if total_ns >= max(LOWER_NS, LOWER_HOLDS * self.hold_ns):
            self._found, self._was_saturated = _mean(self._saturated), True
            self._dip_rate = min(self._dip_rate, self._found)

    def _begin_dip(self, now: int, part: float, level: float) -> None:
        self.limit = limit = max(1, int(level))
        longest_ns = int(4 * self.hold_ns + 2 * self.in_service * SECOND_NS / self._peak) + SLICE_NS
        self._dip = Dip(now + longest_ns, part, limit, max(DIP_TOKENS, limit))
        self._slice.dipped = True

    def _end_dip(self, now: int, dip: Dip) -> None:
        self._dip = None
        before = self.hold_ns
        if dip.completed >= ENOUGH_TOKENS:
            self.hold_ns, self.typical_ns = dip.held_ns / dip.completed, median(dip.holds)
        self._dipped_at, self._dip_rate = now, self._found
        self._dip_at = now + DIP_NS + int(DIP_HOLDS * self.hold_ns if dip.is_over else 0)
        if dip.is_over and dip.limit > 1 and self.hold_ns < DIP_AGAIN * before:
            self._begin_dip(now, dip.part, dip.part * dip.limit)
        elif self._was_saturated:
            # Not by the estimate, which lags behind a server that has just become faster.
            self._surge = self._peak
        self._set_limit()

    def _end_surge(self, seen: Slice, elapsed_ns: int) -> None:
        """Twice as many were let in. If more was completed, nothing had queued before, however long it
        took: a dip sees few requests, and where they differ much, it may have seen short ones only."""
        rate = seen.completed * SECOND_NS / elapsed_ns
        if rate > SURGE_ROSE * self._surge:
            self._surge = rate
            self.hold_ns = max(self.hold_ns, seen.level_ns / seen.completed)
            self.typical_ns = max(self.typical_ns, median(seen.holds))
        else:
            self._surge = 0.0

    @property
    def _peak(self) -> float:
        return max([self._found, *(tokens * SECOND_NS / ns for tokens, ns in self._recent)])

    def _weigh_unsaid(self, seen: Slice, elapsed_ns: int) -> None:
        """Of late, in about a second."""
        kept = (1 - 1 / RECENT_SLICES) ** (elapsed_ns / SLICE_NS)
        self._said = self._said * kept + seen.completed
        self._unsaid = self._unsaid * kept + seen.unsaid

    def _set_limit(self) -> None:
        if self._dip is not None:
            return
        if self._unsaid > UNSAID_PART * (self._said + self._unsaid):
            self.limit = UNLIMITED
            return
        limit = LEAST + int(self._peak * (GAIN * self.hold_ns + SLACK_NS) / SECOND_NS)
        limit *= GAIN if self._surge else 1
        self.limit = limit if self._was_saturated else max(limit, START_LIMIT)


def _mean(counts: Counts) -> float:
    return sum(tokens for tokens, _ in counts) * SECOND_NS / sum(ns for _, ns in counts)
