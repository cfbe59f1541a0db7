"""The engine in the client: takes a token in the time of a function call (II-D).

Tokens are minted a few at a time into a deque, whose `pop` is atomic and costs a tenth of a lock;
everything else (the clock, the decay of what is not used, the shared words) happens when the deque
is empty or at a tick, by whoever holds the lock. A minted token counts as spent until a tick
gives it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from bursar.errors import NetworkError, Refused, UsageError
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import AMOUNT_MAX, TICK_NS, perform
from bursar.pools.locks import QueueLock
from bursar.pools.refusals import refuse
from bursar.world import MILLISECOND_NS, Clock, WordOperation, Words

CHUNK = 512
"""Tokens minted at once: the most that may be used after the period has ended unseen."""


LOOK_NS = MILLISECOND_NS
"""Who takes what there is looks for more so often, not every time: tokens of a paced engine come due
all the time."""


class Taken(NamedTuple):
    """What a request and its lot were charged: the period, by its number and as the book's `opening`,
    tokens ahead, when both end, and how many more could be spent at that moment."""

    period: int
    opening: int
    ahead: int
    ends_at: int
    usable: int


class Engine:
    """One client of one pool, for any number of threads of one process and one event loop.

    Somebody must call `tick` every 10 ms; an engine that does not tick gives
    up nothing of its reservation and reports nothing, which wastes capacity but breaks no promise.

    Where the words are a round trip away (`words` is None), taking never looks at them: it spends what is
    here and leaves word of what was missing, and `rounds` carries what the book asks for."""

    def __init__(self, clock: Clock, words: Words | None, book: EngineBook) -> None:
        self.book = book
        self._clock = clock
        self._words = words
        self._lock = QueueLock()
        self._tokens: deque[None] = deque()
        self._pop = self._tokens.pop
        self._looked_at = -TICK_NS
        self._used_at = clock.now()
        self._missed = 0
        self._seen_spent = 0
        self.unreachable = 0

    # -- taking: no waiting, and almost always no shared word

    def take(self) -> bool:
        """Spend one token. False: there is none now, so the I/O must not be done."""
        try:
            self._pop()
        except IndexError:
            return self._refill()
        return True

    def take_many(self, tokens: int) -> bool:
        """Spend so many tokens, or none."""
        if not isinstance(tokens, int) or not 1 <= tokens <= AMOUNT_MAX:
            raise _unfit(tokens)
        with self._lock:
            return self._take(self._clock.now(), tokens)

    def _take(self, now: int, tokens: int) -> bool:
        if self._tokens:
            self._drain()
        self._used_at = now
        if now - self._looked_at < TICK_NS and self.book.take(now, tokens):
            return True
        self._look(now, tokens)
        return self.book.take(now, tokens)

    def take_up_to(self, tokens: int) -> int:
        """Spend as many as there are, at most so many; how many that was."""
        if not isinstance(tokens, int) or not 1 <= tokens <= AMOUNT_MAX:
            raise _unfit(tokens)
        with self._lock:
            now = self._used_at = self._clock.now()
            self._drain()
            usable, looked_ns = self.book.usable(now), now - self._looked_at
            if usable < 1 or looked_ns >= (LOOK_NS if usable < tokens else TICK_NS):
                self._look(now, tokens)
            taken = min(tokens, self.book.usable(now))
            self.book.take(now, taken)
            return taken

    # -- tokens of a request and its lot, and what comes back of them

    def take_with_lot(self, tokens: int, ahead: int) -> Taken | None:
        """Spend so many tokens, or none; and charge up to `ahead` more for requests to come, of those
        that are here: no shared word is touched for them."""
        with self._lock:
            now = self._clock.now()
            if not self._take(now, tokens):
                return None
            book = self.book
            lent = book.lend(now, ahead) if ahead else 0
            ends_at = book.began + book.period_ns
            return Taken(book.period, book.opening, lent, ends_at, book.usable(now))

    def note_spent(self, opening: int, tokens: int) -> None:
        """So many of the tokens in lots of that period were spent."""
        with self._lock:
            if self.book.opening == opening:
                self.book.note_spent(tokens)

    def give_back(self, opening: int, tokens: int) -> None:
        """Tokens of a request of that period that were not used. Of an earlier one they are void."""
        with self._lock:
            if self.book.opening == opening:
                self.book.give_back(tokens)

    def end_lot(self, opening: int, unspent: int) -> None:
        """A lot of that period is over: so many of it were not spent."""
        with self._lock:
            if self.book.opening == opening:
                self.book.end_lot(unspent)

    def _refill(self) -> bool:
        with self._lock:
            try:
                self._pop()  # another thread was faster
            except IndexError:
                return self._mint()
            return True

    def _mint(self) -> bool:
        now = self._used_at = self._clock.now()
        if self.book.usable(now) < 1 or now - self._looked_at >= TICK_NS:
            self._look(now, 1)
        chunk = min(CHUNK, self.book.usable(now))
        if chunk < 1:
            return False
        self.book.take(now, chunk)
        self._tokens.extend(repeat(None, chunk - 1))
        return True

    # -- the rest

    def tick(self) -> None:
        """See whether a new period began, give up what was not used, report if asked."""
        with self._lock:
            self._look(self._clock.now(), 0)

    def _look(self, now: int, wanted: int) -> None:
        """One round of the book. Whatever is minted is taken back first: it may be void."""
        if self._words is None:
            self._missed = max(self._missed, wanted)
            return
        self._drain()
        self._looked_at = now
        book = self.book
        book.begin(now, wanted)
        try:
            operation = book.operation()
            while operation is not None:
                book.receive(now, perform(self._words, operation))
                operation = book.operation()
        except NetworkError:
            # Words that cannot be reached: what was asked for counts as taken by nobody.
            self.unreachable += 1

    # -- a round that another carries to words that are far away

    def begin(self) -> None:
        """Begin a round: want what was missing, what is known to wait, and as much as was spent since the
        last one, so that whoever goes on at that pace finds it here."""
        with self._lock:
            book = self.book
            self._drain()
            pace = max(0, book.spent - self._seen_spent)
            self._seen_spent = book.spent
            wanted, self._missed = max(self._missed, book.pending, pace), 0
            book.begin(self._clock.now(), min(wanted, AMOUNT_MAX))

    @property
    def missed(self) -> bool:
        """Whether somebody wanted tokens that were not here."""
        return self._missed > 0

    def operations(self, now: int) -> list[WordOperation]:
        with self._lock:
            operation = self.book.operation()
            return [] if operation is None else [operation]

    def receive(self, now: int, operations: Sequence[WordOperation], values: Sequence[int]) -> None:
        with self._lock:
            self._drain()  # it may be void
            for value in values:
                self.book.receive(now, value)

    def _drain(self) -> None:
        drained = 0
        try:
            while True:
                self._pop()
                drained += 1
        except IndexError:
            if drained:
                self.book.give_back(drained)

    def refuse(self, tokens: int) -> Refused:
        """The answer to whoever asked for so many and did not get them."""
        return refuse(self.book, self._clock.now(), tokens)

    def idle_ns(self) -> int:
        """For how long nobody has used it."""
        return self._clock.now() - self._used_at

    def is_alone(self) -> bool:
        """Whether no period has been opened for half a period more than one lasts."""
        book = self.book
        return book.period == 0 or self._clock.now() - book.began >= book.period_ns * 3 // 2

    @property
    def minted(self) -> int:
        """Tokens that nobody has taken yet, though the book counts them as spent."""
        return len(self._tokens)


def _unfit(tokens: object) -> UsageError:
    return UsageError(f"take 1 to {AMOUNT_MAX} tokens at once, not {tokens!r}")
