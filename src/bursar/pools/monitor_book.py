"""The monitor's book: opens periods, dispatches reservations, and raises the ceiling of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bursar.errors import UsageError
from bursar.pools.accounts import Accounts, Client
from bursar.pools.admission import admit, admit_all
from bursar.pools.capacity import AdaptiveCapacity, Capacity, Outcome
from bursar.pools.layout import (
    CHECK_NS,
    OWN,
    TICK_NS,
    Names,
    Report,
    next_period,
    pack,
    tag_of,
    unpack,
    unpack_report,
)
from bursar.world import Read, Swap, WordOperation, Write

SETTLE_NS = 3 * TICK_NS
"""So long after a period began, the last reports of the one before are in."""

LAST_REPORTS_NS = 4 * TICK_NS
"""So long before the end of a period reports are asked for, even if nobody touched the pool."""

REVOKE_NS = 5 * TICK_NS
OVERRESERVED_PERIODS = 5
PATIENCE_PERCENT = 150
"""A standby takes over when no period was opened for so much of a period."""

_DECIDED_BY_ANSWERS = frozenset({"settled", "raise", "ask"})
"""What cannot be said before everything that was asked for earlier in the round is answered."""


class MonitorBook:
    """One monitor of one pool. Every operation on a shared word is asked for here: `begin` starts a
    round, `operation` says what to do next, `receive` takes what the word was. Where words are a round
    trip away, `operations` says all that can be done at once.

    Of several monitors, that one leads whose compare-and-swap of `ceiling` opened the present
    period; one that fails to move the ceiling stands by from then on. Invariants, in each period:
    - one monitor leads it, and its ceiling never falls;
    - `accounts.issued()` <= `accounts.capacity`;
    - tokens count as returned only by a report of the life that claimed them, or by taking them
      out of the word before anybody claimed them;
    - nothing is dispatched or allowed before the period is open.
    """

    def __init__(
        self,
        pool: str,
        capacity: Capacity,
        *,
        period_ns: int,
        client_capacity: int | None = None,
        convert: bool = True,
        printed: bool = False,
        check_ns: int = CHECK_NS,
    ) -> None:
        """`convert` off: unused reservations are wasted (the paper's basic version). `printed`: the
        pool by the paper's formula, all at once."""
        if period_ns < 10 * TICK_NS:
            raise UsageError(
                f"a period of {period_ns} ns is too short for a pool: pass at least {10 * TICK_NS}"
            )
        self.names = Names(pool)
        self.estimate = capacity
        self.accounts = Accounts(period_ns, client_capacity, printed=printed, check_ns=check_ns)
        self.leading = False
        self.period = 0
        self.outcome: Outcome | None = None
        self._convert = convert
        self._ceiling = 0
        self._taken = 0
        self._changed_at: int | None = None
        self._asked = self._settled = False
        self._final: dict[str, Report | None] = {}
        self._closing: Accounts | None = None
        self._plan: list[tuple[str, str]] = []
        self._found = 0
        self._next_period = 0
        self._own: dict[int, int] = {}
        self.seen = 0
        self._opened_at = 0

    @property
    def clients(self) -> dict[str, Client]:
        return self.accounts.clients

    # -- who is admitted

    def join(self, tenant: str, reservation: int) -> None:
        """Admit a client, or change what it reserves, from the next period on. Raises Refused."""
        others = sum(client.reservation for name, client in self.clients.items() if name != tenant)
        admit(tenant, reservation, others, self.estimate.value, self.accounts.client_capacity)
        self._set(tenant, reservation)
        self._set_floor()

    def set_terms(
        self, reservations: Mapping[str, int], capacity: Capacity, client_capacity: int | None
    ) -> None:
        """Who reserves how much, and of how much, from the next period on. Raises Refused if it does not
        all fit; then nothing has changed. The tokens that a client has in this period stay counted."""
        before = {name: client.reservation for name, client in self.clients.items()}
        admit_all(reservations, before, capacity.value, client_capacity)
        for tenant, reservation in {**dict.fromkeys(before, 0), **reservations}.items():
            self._set(tenant, reservation)
            self.clients[tenant].leaves = tenant not in reservations
        self.estimate = capacity
        self.accounts.client_capacity = client_capacity
        self._set_floor()

    def _set(self, tenant: str, reservation: int) -> None:
        if tenant != OWN:
            self.names.report(tenant, 0)
        self.clients.setdefault(tenant, Client(0)).reservation = reservation

    def _set_floor(self) -> None:
        if isinstance(self.estimate, AdaptiveCapacity):
            self.estimate.floor = sum(client.reservation for client in self.clients.values())

    def alerts(self) -> list[str]:
        """Clients that keep reserving more than they use."""
        return [name for name, client in self.clients.items() if client.wasted >= OVERRESERVED_PERIODS]

    def opened_at(self, period: int) -> int | None:
        """When this monitor saw the present period begin; None for another one."""
        return self._opened_at if period == self.seen else None

    def is_led(self, now: int) -> bool:
        """Whether anybody opens periods, as far as is known here."""
        return self.seen > 0 and not self._is_overdue(now, PATIENCE_PERCENT)

    def _is_overdue(self, now: int, percent: int) -> bool:
        return (now - self._opened_at) * 100 >= self.accounts.period_ns * percent

    def _see(self, now: int, period: int) -> None:
        if period != self.seen:
            self.seen, self._opened_at = period, now

    def resign(self) -> WordOperation | None:
        """This monitor goes: whoever stands by need not wait to see that no period is opened."""
        if not self.leading:
            return None
        self.leading = False
        return Write(self.names.left, self.period)

    # -- rounds

    def begin(self, now: int) -> None:
        """Start a round: open a period if it is time, or look what was taken and raise the
        ceiling."""
        if not self.leading:
            self._plan = [("watch", "")]
        elif now - self.accounts.began >= self.accounts.period_ns:
            self._plan_opening()
        else:
            self._plan = list(self._checking(now))

    def _plan_opening(self) -> None:
        """The period first, by a swap; then words that hold nothing of value any more are written. A
        monitor that is so late with it that another one leads does harm to nobody: what it writes is of
        a period that is over, and void."""
        self._next_period = next_period(unpack(self._ceiling).period)
        clients = list(self.clients)
        self._plan = [
            *(("stale", tenant) for tenant in clients),
            *(("unclaimed", tenant) for tenant in clients),
            ("open", ""),
            ("empty", ""),
            *(("dispatch", tenant) for tenant in clients),
            ("raise", ""),
        ]

    def _checking(self, now: int) -> Iterator[tuple[str, str]]:
        if not self._settled and now - self.accounts.began >= SETTLE_NS:
            yield from (("settle", tenant) for tenant in self.clients)
            yield "settled", ""
        if self._asked:
            yield from (("report", tenant) for tenant in self.clients)
        yield from (("revoke", name) for name, client in self.clients.items() if self._is_idle(client, now))
        yield "taken", ""
        yield "raise", ""
        if not self._asked:
            yield "ask", ""

    def _is_idle(self, client: Client, now: int) -> bool:
        """It did not claim its last tokens, nor these yet: the others may have them."""
        waited = now - self.accounts.began >= REVOKE_NS
        return waited and client.absent > 0 and not client.revoked and client.report is None

    def operation(self, now: int) -> WordOperation | None:
        """The next operation of the round; None when it is done."""
        return next(iter(self._ahead(now, 1)), None)

    def operations(self, now: int) -> list[WordOperation]:
        """The next operations of the round, as many as need no answer to one another."""
        return self._ahead(now, len(self._plan))

    def _ahead(self, now: int, most: int) -> list[WordOperation]:
        found: list[WordOperation] = []
        while len(found) < min(most, len(self._plan)):
            action, tenant = self._plan[len(found)]
            decided = action in _DECIDED_BY_ANSWERS
            if decided and found:
                break
            operation = self._next(now, action, tenant)
            if operation is None:
                self._plan.pop(len(found))
                continue
            found.append(operation)
            if decided:
                break
        return found

    def _next(self, now: int, action: str, tenant: str) -> WordOperation | None:
        if tenant == OWN:
            self._look_at_own(now, action)
            return None
        names = self.names
        match action:
            case "watch":
                return Read(names.ceiling)
            case "left":
                return Read(names.left)
            case "stale":
                return Read(names.report(tenant, self._next_period))
            case "unclaimed":
                return Read(names.tokens(tenant))
            case "open":
                return Swap(names.ceiling, self._ceiling, pack(self._next_period, 0))
            case "empty":
                return Write(names.taken, pack(self._next_period, 0))
            case "repair":
                return Swap(names.taken, self._found, pack(self.period, self._taken))
            case "dispatch":
                client = self.clients.get(tenant)
                tokens = 0 if client is None else client.reservation
                return Write(names.tokens(tenant), pack(self._next_period, tokens + 1))
            case "taken":
                return Read(names.taken)
            case "settle":
                return Read(names.report(tenant, self.period - 1))
            case "settled":
                self._close()
                return None
            case "report":
                return Read(names.report(tenant, self.period))
            case "revoke":
                tokens = self.clients[tenant].dispatched
                return Swap(names.tokens(tenant), pack(self.period, tokens + 1), pack(self.period, 0))
            case "raise":
                return self._plan_raise(now)
            case "ask":
                late = now - self.accounts.began >= self.accounts.period_ns - LAST_REPORTS_NS
                return Write(names.asked, self.period) if self._taken > 0 or late else None
        raise AssertionError(f"there is no action {action}")

    def receive(self, now: int, operation: WordOperation, value: int) -> None:
        """What the word of this operation was before it."""
        action, tenant = self._plan.pop(0)
        client = self.clients.get(tenant)
        match action:
            case "watch":
                self._watch(now, value)
            case "left" if value == self.seen:
                self._plan_opening()
            case "open":
                self._open(now, value)
            case "taken":
                self.accounts.note_progress(now)
                self._take(value)
            case "raise":
                self._raise(now, operation, value)
            case "ask":
                self._asked = True
        if client is not None:
            self._receive_of(now, action, tenant, client, operation, value)

    def _receive_of(
        self, now: int, action: str, tenant: str, client: Client, operation: WordOperation, value: int
    ) -> None:
        match action:
            case "stale":
                tag = tag_of(self._next_period)
                client.stale[self._next_period & 1] = value if unpack_report(value).tag == tag else -1
            case "unclaimed":
                found = unpack(value)
                unclaimed = found.period == self._next_period - 1 and found.tokens > 0
                client.absent = client.absent + 1 if unclaimed or client.revoked else 0
            case "settle":
                self._final[tenant] = _read_report(client, value, self.period - 1)
            case "report":
                self._note_report(now, client, value)
            case "revoke":
                client.revoked = isinstance(operation, Swap) and value == operation.expected
                client.absent = client.absent if client.revoked else 0
                if client.revoked and self._convert:
                    client.returned = client.dispatched

    # -- leading

    def _watch(self, now: int, ceiling: int) -> None:
        """Standing by: somebody else leads for as long as periods are opened."""
        if ceiling != self._ceiling or self._changed_at is None:
            self._ceiling, self._changed_at = ceiling, now
        self._see(now, unpack(ceiling).period)
        waited_ns = now - self._changed_at
        if ceiling == 0 or waited_ns * 100 >= self.accounts.period_ns * PATIENCE_PERCENT:
            self._plan_opening()
        elif self._is_overdue(now, 100):
            self._plan = [("left", "")]  # it is over: has its monitor gone, or is it only late?

    def _open(self, now: int, before: int) -> None:
        if before != self._ceiling:
            self._stand_by(now, before)
            return
        self._closing = self._copy_accounts() if self.leading else None
        self.leading = True
        self.period = self._next_period
        self._see(now, self.period)
        self._ceiling = pack(self.period, 0)
        # What was promised stays promised, even if the estimate has fallen below it since.
        promised = sum(client.reservation for client in self.clients.values())
        self._forget_leavers()
        self.accounts.begin(now, max(self.estimate.value, promised))
        self._taken = 0
        for client in self.clients.values():
            # Charged before it can be used: if no answer comes, it may have been dispatched.
            client.dispatched = client.reservation
        self._asked = False
        self._settled = self._closing is None

    def _forget_leavers(self) -> None:
        for tenant in [name for name, each in self.clients.items() if each.leaves and not each.dispatched]:
            del self.clients[tenant]

    def _copy_accounts(self) -> Accounts:
        """The period that ends, as it was: its last reports are read in the next one."""
        old = self.accounts
        copy = Accounts(old.period_ns, old.client_capacity)
        copy.capacity = old.capacity
        for name, client in old.clients.items():
            copy.clients[name] = Client(client.reservation, report=client.report, fast=client.fast)
        return copy

    def _stand_by(self, now: int, ceiling: int) -> None:
        self.leading = False
        self._ceiling, self._changed_at = ceiling, now
        self._plan = []

    def _close(self) -> None:
        """The last reports of the period before are in: learn from them."""
        self._settled = True
        if self._closing is not None:
            self.outcome = self._closing.close(self._final)
            self.estimate.close(self.outcome)
            self.accounts.set_capacity(self.estimate.value)
        self._final = {}

    # -- reports and the ceiling

    def _note_report(self, now: int, client: Client, word: int) -> None:
        report = _read_report(client, word, self.period)
        if report is None:
            return
        client.note(now, report)
        if not self._convert:
            client.returned = 0
        self.accounts.note_speed(now, client)

    def note_own(self, period: int, report: int) -> None:
        """What tenants without a reservation have and use in this process, told by no word."""
        self._own = {each: word for each, word in self._own.items() if each == period - 1}
        self._own[period] = report

    def _look_at_own(self, now: int, action: str) -> None:
        if action == "report":
            self._note_report(now, self.clients[OWN], self._own.get(self.period, 0))
        elif action == "settle" and self.period - 1 in self._own:
            self._final[OWN] = unpack_report(self._own[self.period - 1])

    def _take(self, word: int) -> None:
        taken = unpack(word)
        if taken.period == self.period and taken.tokens >= self._taken:
            self._taken = taken.tokens
            return
        # Left over from an opening that could not be finished, or garbage. What was taken is
        # unknown, so all that was ever allowed counts as taken.
        self._found = word
        self._taken = max(self._taken, unpack(self._ceiling).tokens)
        self._plan.insert(0, ("repair", ""))

    def _plan_raise(self, now: int) -> WordOperation | None:
        ceiling = unpack(self._ceiling).tokens
        target = self.accounts.target(now, self._taken, ceiling)
        if target <= ceiling:
            return None
        return Swap(self.names.ceiling, self._ceiling, pack(self.period, target))

    def _raise(self, now: int, operation: WordOperation, before: int) -> None:
        assert isinstance(operation, Swap), "the ceiling is moved by a swap"
        if before != self._ceiling:
            self._stand_by(now, before)
            return
        target = unpack(operation.value).tokens
        self.accounts.allow(self._taken, unpack(before).tokens, target)
        self._ceiling = operation.value


def _read_report(client: Client, word: int, period: int) -> Report | None:
    """None for a report of another period, however long ago."""
    report = unpack_report(word)
    is_of_it = report.tag == tag_of(period) and word != client.stale[period & 1]
    return report if is_of_it else None
