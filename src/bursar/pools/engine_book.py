"""The client's book: the tokens that one client has, and where each of them is."""

from __future__ import annotations

from collections.abc import Callable

from bursar.pools.layout import (
    AMOUNT_MAX,
    PACE_PERCENT,
    TICK_NS,
    Names,
    Stamp,
    check_amount,
    is_ahead,
    pack,
    pack_report,
    unpack,
)
from bursar.world import Add, Read, Swap, WordOperation, Write

BATCH_MIN = 16
LIMIT_PART = 50
"""Of a limit that several processes share at least one part of so many is charged at a time: what is charged
and not used is nobody's in this period."""

LATE_TICKS = 5
"""Whoever comes back for reserved tokens when a period opens may be late by so much."""


PPM = 1_000_000
USED_UP_PPM = 900_000

OpenedAt = Callable[[int], int | None]


def _nobody_knows(period: int) -> int | None:
    return None


class EngineBook:
    """One client of one pool. Every operation on a shared word is asked for here, one at a time:
    `begin` starts a round, `operation` says what to do next, `receive` takes what the word was.

    Invariants, in each period:
    - `reserve` is set once, to what this life claimed by a compare-and-swap that emptied the word;
      it rises only by tokens given back unused. So a dispatch is used by one life of one client.
    - `hand` rises only by tokens between what `taken` was and the ceiling that was read *before*
      adding to it, both of this period: what was asked for beyond the ceiling is nobody's.
    - `spent` + `hand` + `reserve` never exceeds `allowed`: the limit, or where several processes share
      it what of it this life charged to the shared word, which never gives out more than the limit. What
      is charged stays charged until the period is over, so nobody has to know what became of it.
    - tokens that decayed are gone: `reserve` + `spent` of a client that took nothing from the pool
      says how many of its tokens are still to be used, and that number only falls.
    - a report is made only of a period whose dispatch this life claimed.
    - `lent`, of `spent`, are tokens in lots that nobody is known to have spent: they are charged, so
      that the limit holds, and reported as unspent, which changes nothing of what may be returned.
    """

    def __init__(
        self,
        pool: str,
        tenant: str,
        *,
        period_ns: int,
        batch: int = 1000,
        adaptive: bool = True,
        limit: int | None = None,
        paced: bool | None = False,
        reserves: bool = True,
        shares_limit: bool = False,
        opened_at: OpenedAt = _nobody_knows,
        looks_first: bool = False,
    ) -> None:
        """`reserves`: a monitor dispatches to this client; if not, it takes from the pool alone, has no
        words of its own and reports nothing. `shares_limit`: other processes may have engines of the same
        tenant. `opened_at`: when somebody in this process saw a period
        begin, if it did: an engine that is not used may look late. `looks_first`: it asks for no more than
        the pool was seen to have. Where a look and an addition are apart by a round trip, additions of others
        that were for nothing would come in between, time and again."""
        self.names = Names(pool)
        self.pool = pool
        self.tenant = tenant
        self.period_ns = period_ns
        self.set_limit(limit)
        self.limit = self._next_limit
        self.shares_limit = shares_limit
        self.allowed = 0 if self._must_charge else self.limit
        self.shut = False
        """Nothing more of the limit is to be had in this period: other processes were charged the rest."""
        self._charging = 0
        self._seen_limit = 0
        self._for_claim = False
        self.set_pacing(paced)
        self.paced = paced is True
        self.reserves = reserves
        self._opened_at = opened_at
        self._looks_first = looks_first
        self._pooled = AMOUNT_MAX
        self.pending = 0
        self.period = 0
        self.opening = 0
        """Which one it is of the periods that this life saw begin: a period's number may come again,
        out of a word that somebody spoiled."""
        self.began = 0
        self.claimed = False
        self.reservation = self.reserve = self.hand = self.spent = 0
        self.decayed = self.denied = self.lent = 0
        self._hand_spent = 0
        self.set_batch(batch, adaptive)
        self._filled_at = 0
        self._ceiling = Stamp(0, 0)
        self._phase = ""
        self._wanted = self._adding = 0
        self._denied_ceiling = -1
        self._denied_at = 0
        self.asked = 0

    def set_pacing(self, paced: bool | None) -> None:
        """From the next period on. None: as the last period showed. Who used its reservation up and had
        more waiting has it come due evenly, since that is how all who always wait get theirs; whoever asks
        now and then has it at once."""
        self._next_paced = paced

    def _had_more(self) -> bool:
        used_up = self.reservation > 0 and self.spent * PPM >= self.reservation * USED_UP_PPM
        return used_up and (self.pending > 0 or self.denied > 0)

    def set_batch(self, batch: int, adaptive: bool) -> None:
        """One that reserves nothing begins with few: there may be very many such, and what they have in
        hand is nobody else's."""
        self._batch_max = self._batch = max(1, check_amount("the batch", batch))
        self._adaptive = adaptive
        if adaptive and not self.reserves:
            self._batch = min(BATCH_MIN, self._batch_max)

    def set_limit(self, limit: int | None) -> None:
        """From the next period on; None: no limit."""
        self._next_limit = AMOUNT_MAX if limit is None else check_amount(f"the limit of {self.tenant}", limit)

    @property
    def _must_charge(self) -> bool:
        return self.shares_limit and self.limit < AMOUNT_MAX

    @property
    def may_have_more(self) -> bool:
        """Whether the limit lets it use more in this period."""
        return self.spent < self.limit and not (self.shut and self.spent >= self.allowed)

    def may_fit(self, tokens: int) -> bool:
        """Whether so many could be spent at once in this period or the next."""
        return tokens <= max(self.limit, self._next_limit)

    # -- tokens: local, no shared word

    def usable(self, now: int) -> int:
        """Tokens that could be spent now."""
        if self.is_over(now):
            return 0
        return min(self._due(now) + self.hand, self.allowed - self.spent)

    def take(self, now: int, tokens: int) -> bool:
        """Spend so many tokens, or none."""
        if self.is_over(now) or tokens > self.allowed - self.spent:
            return False
        due = self._due(now)
        if tokens > due + self.hand:
            return False
        reserved = min(tokens, due)
        self.reserve -= reserved
        self.hand -= tokens - reserved
        self._hand_spent += tokens - reserved
        self.spent += tokens
        return True

    def give_back(self, tokens: int) -> None:
        """Tokens of this period that were taken and not used."""
        pooled = min(tokens, self._hand_spent)
        self._hand_spent -= pooled
        self.hand += pooled
        self.reserve += tokens - pooled
        self.spent -= tokens

    def lend(self, now: int, tokens: int) -> int:
        """Take up to so many for a lot; how many that was."""
        tokens = min(tokens, self.usable(now))
        if tokens < 1 or not self.take(now, tokens):
            return 0
        self.lent += tokens
        return tokens

    def note_spent(self, tokens: int) -> None:
        """So many tokens of lots were spent."""
        self.lent = max(0, self.lent - tokens)

    def end_lot(self, unspent: int) -> None:
        """A lot is over, and so many of its tokens were not spent."""
        unspent = min(unspent, self.lent)
        self.lent -= unspent
        self.give_back(unspent)

    def is_over(self, now: int) -> bool:
        """Whether the period is over by this clock. It began before the engine saw it, so it is
        over for the monitor too, whose tokens these are."""
        return now - self.began >= self.period_ns or self.period == 0

    def decay(self, now: int) -> None:
        """Give up what demand did not claim: at most R - rho(t) stays, and what is known to wait
        (II-B, II-D). Given up is given up: the monitor may already have passed it on."""
        keep = self._future(now - self.began) + self.pending
        if self.reserve > keep:
            self.decayed += self.reserve - keep
            self.reserve = keep

    def _due(self, now: int) -> int:
        """Reserved tokens that may be used now: all, or when paced those of the time up to the
        next tick. The pace is a little faster than R/T, so that the last ones are not too late."""
        if not self.paced:
            return self.reserve
        return max(0, self.reserve - self._future((now - self.began) * 100 // PACE_PERCENT + TICK_NS))

    def ready_ns(self, now: int, tokens: int) -> int | None:
        """After so long so many can be spent at once, if nobody else asks for any; None where that
        cannot be promised: tokens of the pool come as others leave them, and reserved ones fade
        while nobody asks for them."""
        if tokens > min(self._sure(), self._next_limit):
            return None
        waits_ns = [max(0, self.began + self.period_ns - now) + TICK_NS]
        if self.paced and tokens <= min(self.reserve, self.allowed - self.spent):
            missing = tokens - self._due(now) - self.hand + 1
            waits_ns.append(missing * self.period_ns * PACE_PERCENT // (100 * self.reservation) + 1)
        return max(0, min(waits_ns))

    def _sure(self) -> int:
        """Reserved tokens that are there a few ticks after a period was opened, used or not."""
        sure_ns = TICK_NS if self.paced else self.period_ns - LATE_TICKS * TICK_NS
        return self.reservation * sure_ns // self.period_ns

    def _future(self, elapsed_ns: int) -> int:
        """R - rho(t): what the reservation is worth for the rest of the period."""
        left_ns = min(max(self.period_ns - elapsed_ns, 0), self.period_ns)
        return self.reservation * left_ns // self.period_ns

    # -- rounds: what is asked of the shared words

    def begin(self, now: int, wanted: int = 0) -> None:
        """Start a round: see whether a new period began, claim its tokens, report if asked; then,
        if fewer than `wanted` can be spent, ask the pool."""
        self._wanted = wanted
        self._phase = "look"

    def operation(self) -> WordOperation | None:
        """The next operation of the round; None when it is done."""
        match self._phase:
            case "look":
                return Read(self.names.ceiling)
            case "close":
                return self._report()
            case "find":
                return Read(self.names.tokens(self.tenant))
            case "claim":
                expected = pack(self._ceiling.period, self.reservation + 1)
                return Swap(self.names.tokens(self.tenant), expected, pack(self._ceiling.period, 0))
            case "limit":
                return Read(self.names.limit(self.tenant))
            case "charge":
                return Add(self.names.limit(self.tenant), self._charging)
            case "begin":
                first = pack(self.period, self._charging)
                return Swap(self.names.limit(self.tenant), self._seen_limit, first)
            case "asked":
                return Read(self.names.asked)
            case "report" | "declare":
                return self._report()
            case "count":
                return Read(self.names.taken)
            case "add":
                self._adding = self._batch_now()
                return Add(self.names.taken, self._adding)
        return None

    def receive(self, now: int, value: int) -> None:
        """What the word of the last operation was."""
        match self._phase:
            case "look":
                self._look(now, unpack(value))
            case "close":
                self._open(now)
            case "find":
                self._find(now, unpack(value))
            case "claim":
                self._claim(now, value)
            case "limit":
                self._see_limit(now, value)
            case "charge":
                before = unpack(value)
                left = self.limit - before.tokens if before.period == self.period else 0
                self._allow(now, max(0, min(self._charging, left)))
            case "begin":
                if value == self._seen_limit:
                    self._allow(now, self._charging)
                else:
                    self._phase = "limit"
            case "asked":
                self.asked = value
                reporting = self.claimed and value == self.period
                self._phase = "report" if reporting else self._after_report(now)
            case "report":
                self._phase = self._after_report(now)
            case "count":
                self._count(now, unpack(value))
            case "declare":
                self._phase = "add"
            case "add":
                self._grant(now, unpack(value))
                self._phase = ""

    def _look(self, now: int, ceiling: Stamp) -> None:
        self._ceiling = ceiling
        if ceiling.period == 0:
            self._phase = ""
        elif ceiling.period != self.period:
            if self.claimed:
                self._phase = "close"
            else:
                self._open(now)
        elif not self.claimed:
            self._phase = self._before_claim(now)
        else:
            self.decay(now)
            self._phase = "asked"

    def _open(self, now: int) -> None:
        """A new period: what is left of the old one is void."""
        self.paced = self._had_more() if self._next_paced is None else self._next_paced
        self.period = self._ceiling.period
        self.opening += 1
        seen_at = self._opened_at(self.period)
        self.began = now if seen_at is None else min(now, seen_at)
        self.claimed = False
        self.reservation = self.reserve = self.hand = self.spent = 0
        self._hand_spent = self.decayed = self.denied = self.lent = 0
        self._denied_ceiling = -1
        self.limit = self._next_limit
        self.allowed, self.shut = 0 if self._must_charge else self.limit, False
        self._phase = self._before_claim(now)

    def _before_claim(self, now: int) -> str:
        return "find" if self.reserves else self._after_report(now)

    def _find(self, now: int, found: Stamp) -> None:
        if found.period == self.period and 0 < found.tokens <= AMOUNT_MAX + 1:
            self.reservation = found.tokens - 1
            self._phase = "claim"
        else:
            # Not dispatched yet, or claimed by another life: the pool is open to it all the same.
            self._phase = self._after_report(now)

    def _claim(self, now: int, before: int) -> None:
        self.claimed = before == pack(self.period, self.reservation + 1)
        if not self.claimed:
            self.reservation = 0
        if self.reservation and self._must_charge:
            self._charge(self.reservation, for_claim=True)
            return
        self._have_reserved()

    def _have_reserved(self) -> None:
        self.reserve = min(self.reservation, self.allowed - self.spent - self.hand)
        self._phase = "asked"

    # -- a limit that several processes share

    def _charge(self, tokens: int, for_claim: bool = False) -> None:
        self._charging = min(tokens, self.limit - self.allowed)
        self._for_claim = for_claim
        self._phase = "limit"

    def _see_limit(self, now: int, word: int) -> None:
        """A word of an earlier period is begun anew. One of a later one is another's, whose period this
        engine has not seen yet: to begin that anew would forget what was charged in it."""
        found = unpack(word)
        self._seen_limit = word
        if found.period == self.period:
            if found.tokens >= self.limit or self._charging < 1:
                self._allow(now, 0)
            else:
                self._phase = "charge"
        elif is_ahead(self.period, found.period):
            self._allow(now, 0)
        else:
            self._phase = "begin"

    def _allow(self, now: int, tokens: int) -> None:
        self.allowed += tokens
        self.shut = tokens < self._charging or self.allowed >= self.limit
        if self._for_claim:
            self._have_reserved()
        elif self._room() < 1:
            self._phase = ""
        else:
            self._phase = self._after_charge()

    def _after_report(self, now: int) -> str:
        missing = self._wanted - self.usable(now)
        if missing < 1 or self.is_over(now):
            return ""
        if self._ceiling.tokens == self._denied_ceiling and now - self._denied_at < TICK_NS:
            return ""
        if self._must_charge and not self.shut and self._room() < missing:
            self._charge(max(missing - self._room(), min(self._batch, self.limit // LIMIT_PART)))
            return self._phase
        return "" if self._room() < 1 else self._after_charge()

    def _after_charge(self) -> str:
        return "count" if self._looks_first else self._before_add()

    def _before_add(self) -> str:
        # Before the first pool token, say how many of the reserved ones were given up: afterwards
        # the numbers no longer tell.
        return "declare" if self.claimed else "add"

    def _count(self, now: int, taken: Stamp) -> None:
        """What the pool has. A word of another period says nothing: then it is tried."""
        self._pooled = AMOUNT_MAX
        if taken.period == self._ceiling.period:
            self._pooled = max(0, self._ceiling.tokens - taken.tokens)
        if self._pooled:
            self._phase = self._before_add()
            return
        self.denied += self._batch_now()
        self._phase = ""

    def _report(self) -> WordOperation:
        unspent = self.reserve + self.hand + self.lent
        waiting = self.pending > 0 and self.may_have_more
        report = pack_report(self.period, unspent, self.spent - self.lent, waiting)
        return Write(self.names.report(self.tenant, self.period), report)

    def _room(self) -> int:
        return self.allowed - self.spent - self.reserve - self.hand

    def _batch_now(self) -> int:
        wanted = max(self._batch, self._wanted - self.hand)
        return min(wanted, self._room(), self._pooled or wanted)

    def _grant(self, now: int, before: Stamp) -> None:
        batch = self._adding
        granted = 0
        if before.period == self.period == self._ceiling.period:
            granted = max(0, min(batch, self._ceiling.tokens - before.tokens))
        if granted < batch:
            self.denied += batch - granted
            self._denied_ceiling = self._ceiling.tokens
            self._denied_at = now
        self.hand += granted
        self._adapt(now, granted)

    def _adapt(self, now: int, granted: int) -> None:
        """As many as are spent in about a tick: a batch that lasts longer keeps tokens from others,
        one that lasts much less costs an addition too often."""
        if not self._adaptive or granted == 0:
            return
        lasted_ns, self._filled_at = now - self._filled_at, now
        if lasted_ns < TICK_NS // 2:
            self._batch = min(self._batch * 2, self._batch_max)
        elif lasted_ns > 2 * TICK_NS:
            self._batch = max(self._batch // 2, min(BATCH_MIN, self._batch_max))
