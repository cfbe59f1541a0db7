"""What one node needs of one account: how fast it burns, what waits, what is known to be left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.quotas.allocation import Burn, threshold
from bursar.quotas.balances import Account
from bursar.quotas.messages import Verdict
from bursar.quotas.rules import Rules

if TYPE_CHECKING:
    from bursar.quotas.requests import Request

WANTS_MAX = 256
"""Requests named one by one in an offer; those behind them wait for the next round."""

SIZE_MEMORY = 64
"""The mean request is one over about so many: sizes have heavy tails."""

REACH_MEMORY = 16
"""Re-allocations after which one that took long is mostly forgotten, if all since were short."""


class Demand:
    """theta_ns   how long a re-allocation takes, measured (eq. 1)
    reach_ns   how long one takes that goes far: the longest, and less and less of it
    size       the mean request
    charging   units that are being charged ahead, not durable yet (`fast`)
    mints      entries of the account's list in the store that were taken in, durably
    told_mints entries that are known to be there: nothing is decided before they are taken in
    owners     the ledgers that they name
    asked_upto the newest request that the last re-allocation was for
    scarce     so little is left that it stays at the root
    returned   units that came back here from holds since the last decision
    full       everything is wanted: nothing is kept
    loose_verdicts   decisions since the last change in which only a fenced ledger's transfers were open
    """

    def __init__(self, rules: Rules, account: Account) -> None:
        self.rules = rules
        self.account = account
        self.burn = Burn(rules.alpha, rules.sample_ns, rules.per_event)
        self.theta_ns = rules.theta_ns
        self.reach_ns = 0
        self.size = 0
        self._seen = 0
        self.mints = 0
        self.told_mints = 0
        self.owners: frozenset[str] = frozenset()
        self.charging = 0
        self.scarce = False
        self.returned = 0
        self.full = False
        self.asked_upto = 0
        self.loose_verdicts = 0
        self.waiting: dict[int, Request] = {}
        self._verdict: Verdict | None = None
        self._verdict_upto = 0
        self._verdict_until: int | None = None

    def see_request(self, amount: int) -> None:
        self._seen = min(self._seen + 1, SIZE_MEMORY)
        self.size += (amount - self.size) // self._seen

    @property
    def is_far(self) -> bool:
        """Whether nodes are so far apart that waiting costs more than messages."""
        return self.reach_ns > self.rules.far_ns

    def rate(self, now: int) -> float:
        return self.burn.sample(now, self.account.used)

    def threshold(self, now: int) -> int:
        """Units to keep for the time of a re-allocation (eq. 2); bursar keeps a request's worth."""
        rate = self.rate(now)
        if self.rules.per_event:
            return self.size
        kept = threshold(rate, self.theta_ns, self.rules.margin)
        return kept if self.rules.paper or rate == 0 else max(kept, self.size)

    def kept(self, now: int) -> int:
        """What stays here when the rest is offered."""
        if self.full or (not self.rules.paper and (self.scarce or self.waiting)):
            return 0
        return self.threshold(now)

    def wants(self) -> tuple[int, ...]:
        """What waits here. A cut takes whatever it can get: halves of halves can be met in part."""
        parts, debt = [], self.account.debt
        while debt:
            parts.append((debt + 1) // 2)
            debt //= 2
        parts += [request.amount for request in self.waiting.values()]
        return tuple(parts[:WANTS_MAX])

    def is_in_need(self, now: int) -> bool:
        """A cut below what was used stays open: it needs nothing once nothing is left anywhere."""
        owes = self.account.debt > 0 and self.known_left(now) != 0
        return bool(self.waiting) or owes or self.is_low(now)

    def is_low(self, now: int) -> bool:
        """Below the threshold (line 5 of algorithm 1), unless asking is known to bring nothing."""
        if self.scarce or self.known_left(now) == 0:
            return False
        return self.here() < self.threshold(now)

    def here(self) -> int:
        return self.account.unspent + self.account.block + self.charging

    def known_left(self, now: int) -> int | None:
        """What was left anywhere when that was last decided, if it is still to be believed."""
        verdict = self._verdict
        if verdict is None or verdict.mints < self.told_mints or self.rules.paper:
            return None
        if self._verdict_until is not None and now >= self._verdict_until:
            return None
        return verdict.left + verdict.served

    def owes_until(self) -> int | None:
        """When a cut that found nothing is to be tried again: units that were held may have come back."""
        return self._verdict_until if self.account.debt else None

    def left_for(self, now: int, number: int) -> int | None:
        """What was left anywhere for this request when that was decided. Those that took part in
        the decision got theirs or will not; to later ones all that was there then may yet be."""
        left = self.known_left(now)
        if self._verdict is not None and number <= self._verdict_upto:
            left = self._verdict.left
        return None if left is None else left + self.returned

    def may_be_met(self, now: int, number: int, amount: int) -> bool:
        """Whether the request could still get its units from somewhere. What is here was counted
        in the decision, so the two are not added up."""
        left = self.left_for(now, number)
        return left is None or amount <= max(left, self.here())

    def learn_verdict(self, now: int, verdict: Verdict) -> None:
        if verdict.mints < self.told_mints:
            return  # the quota has changed since
        self._verdict = verdict
        self.returned = 0
        self._verdict_upto = self.asked_upto
        self._verdict_until = now + verdict.memory_ns if verdict.memory_ns else None

    def recall_verdict(self, now: int) -> Verdict | None:
        """The last decision, for those who did not take part in it."""
        left = self.known_left(now)
        if left is None or self._verdict is None:
            return None
        memory_ns = 0 if self._verdict_until is None else self._verdict_until - now
        return Verdict(left + self.returned, 0, memory_ns, self._verdict.mints)

    def reopen_requests(self) -> None:
        """Those that took part in a decision, and are still here, were not refused by it."""
        self._verdict_upto = 0

    def forget_verdict(self) -> None:
        self._verdict = None
        self.scarce = False
        self.loose_verdicts = 0

    def hear_mints(self, mints: int) -> None:
        """The quota changes: what was decided before no longer holds."""
        if mints > self.told_mints:
            self.told_mints = mints
            self.forget_verdict()

    def learn_mints(self, mints: int, quota: int, owners: frozenset[str]) -> None:
        """What the list says is in this ledger, as far as it is this ledger's."""
        self.mints = mints
        self.owners = owners
        self.burn.quota = max(quota, 1)

    def learn_duration(self, duration_ns: int) -> None:
        self.theta_ns = (self.theta_ns + duration_ns) // 2
        self.reach_ns = max(duration_ns, self.reach_ns - self.reach_ns // REACH_MEMORY)
