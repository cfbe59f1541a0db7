"""The accounts of one period: what was dispatched, what came back, what the pool may still hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bursar.pools.capacity import PPM, Outcome
from bursar.pools.layout import CAPACITY_MAX, CHECK_NS, PACE_PERCENT, STEP_CHECKS, TICK_NS, Report

RATE_NS = 10 * TICK_NS
STALE_NS = 5 * TICK_NS
FAST_PPM = 900_000
SLACK_PART = 8
BEHIND_WEIGHT = 4
IDLE_NS = 10 * TICK_NS
"""Over so long it is measured how much the node could have done and did not."""

OVERRESERVED_PART = 10


@dataclass(slots=True)
class Client:
    """What the monitor knows of one client in the present period, and of its habits.

    dispatched   reservation tokens it was given
    returned     tokens of these that it can no longer spend
    report       its last one of this period, and when it last changed
    revoked      its tokens were taken out of its word before it claimed them
    stale        for its two words in turn: one of 128 periods ago that looks like a report of the period
                 it is used for; -1 for none
    fast         it runs as fast as a client alone can
    absent       periods in a row in which it did not claim its tokens
    wasted       periods in a row in which it gave up more than a tenth of its reservation
    leaves       it is no longer in the policy: forgotten after a period without tokens
    """

    reservation: int
    dispatched: int = 0
    returned: int = 0
    report: Report | None = None
    changed_at: int = 0
    revoked: bool = False
    stale: list[int] = field(default_factory=lambda: [-1, -1])
    fast: bool = False
    measured_at: int = 0
    measured: int = 0
    absent: int = 0
    wasted: int = 0
    leaves: bool = False

    def begin(self, now: int) -> None:
        """A new period: what is left of the old one is what it says of the client's habits."""
        overreserved = self.returned * OVERRESERVED_PART > self.dispatched
        self.wasted = self.wasted + 1 if overreserved else 0
        self.revoked = False
        self.dispatched = self.returned = self.measured = 0
        self.report, self.fast = None, False
        self.changed_at = self.measured_at = now

    def note(self, now: int, report: Report) -> None:
        """Take in a report. Pool tokens hide what was given up, so the most ever seen counts."""
        if report != self.report:
            self.report, self.changed_at = report, now
        if not self.revoked:
            self.returned = max(self.returned, self.dispatched - report.unspent - report.spent)

    def behind(self, elapsed_ns: int, period_ns: int) -> int:
        """How much less it did than its reservation is worth by then, what it gave up aside; nothing
        while nobody waits for it."""
        if self.report is None or not self.report.waiting:
            return 0
        worth = self.dispatched * min(max(elapsed_ns, 0), period_ns) // period_ns
        return max(0, worth - self.returned - self.report.spent)


class Accounts:
    """One period of one pool.

    Invariant: `issued()` <= `capacity`: the tokens dispatched, less those that certainly will not
    be spent, and those that the ceiling ever allowed to be taken.
    """

    def __init__(
        self,
        period_ns: int,
        client_capacity: int | None,
        *,
        printed: bool = False,
        check_ns: int = CHECK_NS,
    ) -> None:
        """`check_ns`: how often somebody looks, and how old what is seen may be besides."""
        self.period_ns = period_ns
        self.check_ns = check_ns
        self.client_capacity = client_capacity
        self.printed = printed
        self.clients: dict[str, Client] = {}
        self.capacity = 0
        self.pooled = 0
        self.began = 0
        self._progress: deque[tuple[int, int]] = deque()

    def begin(self, now: int, capacity: int) -> None:
        self.began = now
        self.capacity = min(capacity, CAPACITY_MAX)
        self.pooled = 0
        self._progress.clear()
        for client in self.clients.values():
            client.begin(now)

    @property
    def dispatched(self) -> int:
        return sum(client.dispatched for client in self.clients.values())

    @property
    def returned(self) -> int:
        return sum(client.returned for client in self.clients.values())

    def issued(self) -> int:
        """The most tokens that may be spent in this period as things stand."""
        return self.dispatched + self.pooled - self.returned

    def set_capacity(self, capacity: int) -> None:
        """A better estimate for a period that has begun; what was issued stays issued."""
        self.capacity = min(max(capacity, self.issued()), CAPACITY_MAX)

    def note_speed(self, now: int, client: Client) -> None:
        """Measure a client over some ticks: one that runs as fast as a client can is not held up
        by the node."""
        if client.report is None or self.client_capacity is None or now - client.measured_at < RATE_NS:
            return
        done = (client.report.spent - client.measured) * self.period_ns * PPM
        client.fast = done >= self.client_capacity * (now - client.measured_at) * FAST_PPM
        client.measured_at, client.measured = now, client.report.spent

    # -- the ceiling

    def target(self, now: int, taken: int, ceiling: int) -> int:
        """Where the ceiling may be, when so many tokens were asked for (II-E, token conversion).

        The pool holds at most what the node can still do in the period less what clients have in
        hand; of that, no more than it does in a step, so that what is given up later can go to
        whoever needs it then; and in no case more than the capacity has left."""
        left_ns = max(self.period_ns - (now - self.began), 0)
        free = self.capacity * left_ns // self.period_ns - self.residual(now)
        if not self.printed:
            step = max(1, self.capacity * STEP_CHECKS * self.check_ns // self.period_ns)
            # Reports are up to a tick old: what was spent since then still counts as unspent.
            free = min(free + step // SLACK_PART, self._unclaimed(now, step))
        budget = self.capacity - self.issued()
        return min(taken + max(free, 0), max(taken, ceiling) + budget, CAPACITY_MAX)

    def allow(self, taken: int, ceiling: int, target: int) -> None:
        """The ceiling was raised. What was asked for beyond the old one was refused for good, so
        only what lies above both is newly issued."""
        self.pooled += max(0, target - max(taken, ceiling))

    def residual(self, now: int) -> int:
        """Tokens in the hands of clients."""
        return sum(self._residual(now, client) for client in self.clients.values())

    def _residual(self, now: int, client: Client) -> int:
        if client.revoked:
            return 0
        left_ns = max(self.period_ns - (now - self.began), 0)
        future = client.dispatched * left_ns // self.period_ns
        if client.report is None:
            return future
        if now - client.changed_at > STALE_NS:
            # Silent for long: stopped or dead. It may keep no more than demand could still claim.
            return min(client.report.unspent, future)
        return client.report.unspent

    def note_progress(self, now: int) -> None:
        """Remember how much was done by now."""
        done = sum(client.report.spent for client in self.clients.values() if client.report is not None)
        self._progress.append((now, done))
        while now - self._progress[0][0] > IDLE_NS:
            self._progress.popleft()

    def _unclaimed(self, now: int, step: int) -> int:
        """What the pool may hold besides what is due to clients. While requests of clients wait that
        are behind their reservations, pool tokens would come before theirs at the node: then there
        are only as many as the node has been idle."""
        # An engine that is not held up was last seen a tick and a check ago, at its pace or before it.
        pace_ns = (now - self.began) * 100 // PACE_PERCENT - self.check_ns
        behind = sum(client.behind(pace_ns, self.period_ns) for client in self.clients.values())
        return max(step // 2 - BEHIND_WEIGHT * behind, self._idle())

    def _idle(self) -> int:
        """What the node could have done between two checks beyond what it did."""
        if not self._progress or self._progress[-1][0] - self._progress[0][0] < IDLE_NS // 2:
            return 0
        (since, before), (latest, done) = self._progress[0], self._progress[-1]
        could = self.capacity * (latest - since) // self.period_ns
        return max(0, could - (done - before)) * self.check_ns // (latest - since)

    # -- how it ended

    def close(self, final: dict[str, Report | None]) -> Outcome:
        """The outcome of a period from the last word of each client, or what is known of it."""
        used, saturated = 0, False
        for name, client in self.clients.items():
            report = final.get(name) or client.report
            if report is not None:
                used += report.spent
                saturated |= report.waiting and not client.fast
        return Outcome(self.capacity, used, saturated)
