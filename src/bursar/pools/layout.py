"""The shared words of a pool: what each means, how it is packed, and the operations on them.

    pool/NAME/ceiling           period, count    how many pool tokens may be taken; the monitor's alone
    pool/NAME/taken             period, count    how many were asked for; clients only ever add
    pool/NAME/asked             period           reports are wanted in this period
    pool/NAME/left              period           whoever led this period has gone, and opens no other
    pool/NAME/tokens/TENANT     period, count    reservation tokens, until the client claims them
    pool/NAME/report/TENANT/k   period, waiting, unspent, spent   what a client has and had; k = period mod 2
    pool/NAME/limit/TENANT      period, count    what of its limit was charged; engines only ever add. Where
                                                 several processes share the words, and may all serve it

A period and a count share one word, so that an addition says in one step which period it was made
in. Periods are compared for equality alone; they come round again after 2^28, which is eight years
of periods of a second. A report has two words, so that the last word on a period is still there
while the next one is being reported.
"""

from __future__ import annotations

from typing import NamedTuple

from bursar.errors import UsageError
from bursar.resource import check_name
from bursar.world import (
    MILLISECOND_NS,
    NAME_MAX_BYTES,
    Add,
    Read,
    Swap,
    WordOperation,
    Words,
    Write,
)

COUNT_BITS = 36
PERIOD_BITS = 28
COUNT_MAX = (1 << COUNT_BITS) - 1
PERIOD_MAX = (1 << PERIOD_BITS) - 1

AMOUNT_BITS = 28
AMOUNT_MAX = (1 << AMOUNT_BITS) - 1
"""The most tokens of one client in one period: a report packs two such numbers, 7 bits of the
period and a flag into one word."""

CAPACITY_MAX = 1 << 35
"""The most tokens of a period. Requests beyond the ceiling still add to `taken`, and half of the
count is left for them: they cannot run over into the period."""

TICK_NS = 10 * MILLISECOND_NS
"""How often an engine looks at the words and reports, when asked."""

CHECK_NS = 5 * MILLISECOND_NS
"""How often the monitor looks. Half a tick: a check that comes late costs no capacity."""

FAR_CHECK_NS = 20 * MILLISECOND_NS
"""The same where words are a round trip away: a tick, and what a round takes."""

STEP_CHECKS = 2
"""What the capacity does between so many checks is put into the pool ahead of use."""

PACE_PERCENT = 98
"""A paced engine has its last reserved tokens due when so much of the period has passed."""


OWN = "*"
"""The client that stands for all who reserve nothing, in a monitor's own process."""


class Stamp(NamedTuple):
    """A number of tokens in a period."""

    period: int
    tokens: int


class Report(NamedTuple):
    """What a client says of a period: tokens that it still has, tokens that it spent, and whether
    requests wait. `tag` is the period mod 128."""

    tag: int
    waiting: bool
    unspent: int
    spent: int


def pack(period: int, count: int) -> int:
    return (period & PERIOD_MAX) << COUNT_BITS | min(count, COUNT_MAX)


def unpack(word: int) -> Stamp:
    return Stamp(word >> COUNT_BITS, word & COUNT_MAX)


def tag_of(period: int) -> int:
    """What of a period a report has room for."""
    return period & 127


def pack_report(period: int, unspent: int, spent: int, waiting: bool = False) -> int:
    head = tag_of(period) << 1 | waiting
    return head << 2 * AMOUNT_BITS | min(unspent, AMOUNT_MAX) << AMOUNT_BITS | min(spent, AMOUNT_MAX)


def unpack_report(word: int) -> Report:
    head = word >> 2 * AMOUNT_BITS
    return Report(head >> 1, bool(head & 1), word >> AMOUNT_BITS & AMOUNT_MAX, word & AMOUNT_MAX)


def next_period(period: int) -> int:
    """The period after this one; never 0, which is what a word that was never written says."""
    return period % PERIOD_MAX + 1


BEHIND_MAX = 1 << 20
"""A word that is at most so many periods ahead was written by one who is not late, as this one is."""


def is_ahead(period: int, other: int) -> bool:
    """Whether the other one is a later period: one that is much later is none, but garbage."""
    return 0 < (other - period) % PERIOD_MAX <= BEHIND_MAX


class Names:
    """The names of a pool's words."""

    def __init__(self, pool: str) -> None:
        check_name("pool", pool)
        self.ceiling = f"pool/{pool}/ceiling"
        self.taken = f"pool/{pool}/taken"
        self.asked = f"pool/{pool}/asked"
        self.left = f"pool/{pool}/left"
        self._prefix = f"pool/{pool}"

    def tokens(self, tenant: str) -> str:
        return self._checked(f"{self._prefix}/tokens/{tenant}", tenant)

    def limit(self, tenant: str) -> str:
        return self._checked(f"{self._prefix}/limit/{tenant}", tenant)

    def report(self, tenant: str, period: int) -> str:
        return self._checked(f"{self._prefix}/report/{tenant}/{period & 1}", tenant)

    def _checked(self, word: str, tenant: str) -> str:
        check_name("tenant", tenant)
        if len(word.encode()) > NAME_MAX_BYTES:
            raise UsageError(
                f"the words of tenant {tenant[:40]!r} would have names of more than {NAME_MAX_BYTES} "
                "bytes; choose shorter ones"
            )
        return word


def check_amount(what: str, amount: int) -> int:
    """A number of tokens of one client in one period."""
    if not isinstance(amount, int) or not 0 <= amount <= AMOUNT_MAX:
        raise UsageError(
            f"{what} is {amount!r} tokens a period; pass a whole number from 0 to {AMOUNT_MAX}, "
            "or a shorter period"
        )
    return amount


def perform(words: Words, operation: WordOperation) -> int:
    """Do one operation; what the word was before it (0 for a write)."""
    match operation:
        case Read(word):
            return words.read(word)
        case Write(word, value):
            words.write(word, value)
            return 0
        case Add(word, amount):
            return words.fetch_add(word, amount)
        case Swap(word, expected, value):
            return words.compare_and_swap(word, expected, value)
