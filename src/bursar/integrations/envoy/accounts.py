"""What the Envoys of one node have of one tenant: cells, one an Envoy, and what is owed for them."""

from __future__ import annotations

from bursar.integrations.envoy.cells import REPORT_NS, Cell, Terms
from bursar.world import MILLISECOND_NS, SECOND_NS

SEEN_MIN_NS = SECOND_NS
SAYING = 3.0
"""Requests that a newcomer was taken to make: of fewer, that none came says nothing."""

HEADROOM = 1.25
RISE_NS = 250 * MILLISECOND_NS
RESERVE_NS = 250 * MILLISECOND_NS
REVIEW_NS = SECOND_NS
REVIEW_TOKENS = 20
REVIEW_MAX_NS = 20 * SECOND_NS
CONTENDED_NS = 10 * SECOND_NS
CLOSE = 0.02
ROOMY = 0.5
CLOSE_S = 10.0
CLOSE_PART = 0.25
SHORT = 0.95
EAGER = 1.1
FORGETTING = 0.9
CREDIT_LEAST = 2.0
OWED_LEAST = 6.0
OWED_S = 0.2
ASKED_PART = 0.05
RETRY_NS = 200 * MILLISECOND_NS
REPAY_S = 10.0
REPAY_PART = 0.25
PROBE = 1.05
CUT = 0.8
CUT_MOST = 0.3
CUT_SEEN_S = 0.3
CUT_NS = SECOND_NS // 2
CUT_TOKENS = 4.0
"""What is got says something from so many on: of a small limit, the next token comes in a second."""

BURST_S = 3.0
SCARCE_BURST_S = 0.05
UNLIMITED = 1e12
GUESS = 100.0
STANDING_NS = 600 * SECOND_NS


class Account:
    """What the Envoys here have of one tenant.

    due      tokens that they may have used, ever;  charged  what was charged for them
    credit   tokens to be asked for now;  denied  requests that Envoys denied, ever"""

    def __init__(self, tenant: str, terms: Terms, now: int) -> None:
        self.tenant = tenant
        self.terms = terms
        self.cells: dict[int, Cell] = {}
        self.due = self.charged = self.credit = 0.0
        self.refused = 0.0
        self.denied = 0
        self.covered = UNLIMITED
        self.got: float | None = None
        self.others_asked = self.others_got = 0.0
        self.contended_until = 0
        self.reviewed_at = self.cut_at = now
        self.at = now
        self.retry_at: int | None = None
        self._asked = 0.0
        self._charged_then = 0.0
        self._owed_then = 0.0

    @property
    def owed(self) -> float:
        return self.due - self.charged

    def is_contended(self, now: int) -> bool:
        return now < self.contended_until

    def is_scarce(self, now: int) -> bool:
        """Whether all that there is will be used."""
        return self.is_contended(now) or self.wish(now) >= SHORT * self.terms.limit

    def demand(self) -> float:
        """Requests a second, of all."""
        return sum(cell.peak for cell in self.cells.values() if not cell.gone)

    def in_force(self, now: int) -> float:
        return sum(cell.in_force(now) for cell in self.cells.values())

    def wish(self, now: int) -> float:
        """Tokens a second that they should have, if they can be had."""
        headroom = 1.0 if self.is_contended(now) else HEADROOM
        floor = 0.0 if self.is_contended(now) else min(self.terms.limit, 1.0) / 10
        wanted = sum(c.peak * headroom + floor for c in self.cells.values() if not c.gone and c.peak)
        return min(self.terms.limit, wanted, self._fair_part(now))

    def _fair_part(self, now: int) -> float:
        """Beside callers of this node who want the same tokens: by what each wants."""
        if not self.is_contended(now) or not self.others_asked:
            return UNLIMITED
        demand = self.demand()
        return ((self.got or 0.0) + self.others_got) * demand / max(demand + self.others_asked, 1e-9) * PROBE

    # -- what falls due, and what is charged

    def advance(self, now: int) -> None:
        passed_s = (now - self.at) / SECOND_NS
        if passed_s <= 0:
            return
        wish = max(self.in_force(self.at), self.wish(now))
        for cell in self.cells.values():
            self.fall_due(cell, cell.in_force(self.at) * passed_s)
        self._asked += wish * passed_s
        # A tenant that waits uses its pace to the full, one that idles does not: so at its limit it waits.
        eager = wish * EAGER if wish >= SHORT * self.terms.limit else wish
        self.credit = min(self.credit + eager * passed_s, max(CREDIT_LEAST, wish * RESERVE_NS / SECOND_NS))
        self.refused += max(0.0, self.demand() - wish) * passed_s
        self.at = now
        ahead = max(1.0, wish * RESERVE_NS / SECOND_NS) + self.terms.burst
        if -self.owed > ahead:
            self.due = self.charged - ahead  # it was charged ahead for use that did not come

    def fall_due(self, cell: Cell, tokens: float) -> None:
        cell.due += tokens
        self.due += tokens

    def take_back(self, now: int, cell: Cell, used: int) -> None:
        """A report says what was used: what else fell due was not, but for what the bucket may still hold.
        After one that came late others may be under way: then the next one in time says it."""
        cell.due = max(0.0, cell.due - used)
        if abs(now - cell.seen_at - REPORT_NS) <= SECOND_NS:
            unused = max(0.0, cell.due - cell.burst)
            cell.due -= unused
            self.due -= unused

    def find_amount(self) -> int:
        """Whole tokens to ask for now: few at a time, because a period may have less than many left. (By
        twos, the fifth of five tokens in a period was never had.)"""
        most = max(1.0, min(self.terms.burst / 2, self.terms.limit * self.terms.period_s * ASKED_PART))
        return int(min(max(self.credit, self.owed), most))

    def charge(self, tokens: float) -> None:
        self.charged += tokens
        self.credit = max(0.0, self.credit - tokens)

    def take_refused(self) -> int:
        """Whole requests that were refused, not told of yet."""
        whole = int(self.refused)
        self.refused -= whole
        return whole

    def find_repayment(self) -> float:
        """Tokens a second that Envoys get less while what they used before is being charged; or more, while
        more is charged than they use."""
        ahead = -self.owed - max(1.0, self.in_force(self.at) * RISE_NS / SECOND_NS / 2)
        if ahead > 0:
            return -ahead / REPAY_S
        less = max(0.0, self.owed - self.most_owed / 2) / REPAY_S
        return min(less, self.terms.limit * REPAY_PART)

    @property
    def most_owed(self) -> float:
        return self.terms.burst + max(OWED_LEAST, self.in_force(self.at) * OWED_S)

    def find_review(self, now: int) -> bool:
        """Whether it is time to see what was really charged."""
        rate = max(self.in_force(now), self.wish(now), 1e-9)
        least_ns = max(REVIEW_NS, int(2 * self.terms.period_s * SECOND_NS))
        window_ns = max(min(int(REVIEW_TOKENS / rate * SECOND_NS), REVIEW_MAX_NS), least_ns)
        return now - self.reviewed_at >= window_ns

    def retry(self, now: int) -> bool:
        """Whether it is time to try again what could not be charged at once."""
        if self.retry_at is None or now < self.retry_at:
            return False
        self.retry_at = None
        return True

    def review(self, now: int, others_asked: float, others_got: float) -> None:
        """What was charged since the last time, and what callers of this node asked for and got themselves:
        in tokens."""
        passed_s = (now - self.reviewed_at) / SECOND_NS
        if passed_s <= 0:
            return
        charged = self.charged - self._charged_then
        noise = max(2.0, self.terms.burst / 2)
        is_short = charged + noise < SHORT * self._asked
        if is_short or others_got + noise < SHORT * others_asked:
            self.contended_until = now + CONTENDED_NS
        got = charged / passed_s
        self.got = got if self.got is None else (self.got + got) / 2
        self.others_asked, self.others_got = others_asked / passed_s, others_got / passed_s
        if is_short:
            steady = self.covered if self.covered < UNLIMITED else self.got
            self.covered = (steady + self.got) / 2
            if self.owed < 0:  # more is charged than they use
                self.covered = max(self.covered, charged / passed_s)
        else:
            self.covered = UNLIMITED
        self.reviewed_at, self._charged_then, self._asked = now, self.charged, 0.0

    def cut(self, now: int) -> bool:
        """Whether Envoys have so much more than is charged for them that they must have less at once."""
        falls = self.owed < self._owed_then
        out = self.in_force(now)
        least_ns = max(CUT_NS, int(min(CUT_TOKENS / max(out, 1e-9) * SECOND_NS, REVIEW_MAX_NS)))
        if now - self.cut_at < least_ns:
            return False
        self._owed_then = self.owed
        if self.owed <= self.most_owed or falls:
            return False
        self.cut_at, self.contended_until = now, now + CONTENDED_NS
        passed_s = (now - self.reviewed_at) / SECOND_NS
        is_seen = passed_s >= CUT_SEEN_S and out * passed_s >= CUT_TOKENS
        got = (self.charged - self._charged_then) / passed_s if is_seen else out
        self.covered = min(self.covered, max(min(got, out * CUT), out * CUT_MOST))
        return True

    def expire(self, now: int) -> None:
        """Forget cells of Envoys that are gone, or have not asked for long, once nothing of them counts."""
        for slot, cell in list(self.cells.items()):
            idle = cell.rate is None and now - cell.busy_at >= STANDING_NS
            if now >= cell.until and (cell.gone or idle):
                del self.cells[slot]
