"""A rate's reservation is met where it is due.

**The promise.** If demand and capacity hold steady and nothing fails, a tenant that keeps requests
waiting gets its reservation in every period, if that can be met at all.

So: in a whole period in calm, in which the tenant had requests waiting throughout, it is told at least 97
% of its reservation, less what rules of lots allow to be elsewhere (5 ms of each server) and what does
not divide (its largest request).

**Left out.** Everything but calm: ten seconds and three periods before, and the period itself, without a
fault, a change, a node that came or went, and without the machine standing still. Tenants that kept fewer
than four tokens waiting on average, or whose requests waited less than 50 ms on average: they may have
been slow to ask. Resources with a server of unknown capacity, or whose smallest server could not meet all
reservations alone: whether they can be met then depends on who asks where. Reservations of pools: they
rest on the client too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import Line
from bursar_lab.storm.checker.periods import Period, group_by_period
from bursar_lab.storm.checker.policies import MILLISECOND_NS, Resource, Terms
from bursar_lab.storm.checker.quantities import SECOND_NS, tokens_in
from bursar_lab.storm.checker.spans import Spans

PROMISE = "reservations"
CALM_NS = 10 * SECOND_NS
CALM_PERIODS = 3
DUE = Fraction(97, 100)
LOT_NS = 5 * MILLISECOND_NS
GAP_NS = 10 * MILLISECOND_NS
"""Between an answer and the next request of who asks all the time."""

WAITING_LEAST = 4
WAITED_LEAST_NS = 50 * MILLISECOND_NS


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    for name, grants in history.grants_of("rate").items():
        period_ns = history.changes.all_resources("rate")[name][0].period_ns
        periods = list(group_by_period(grants).values())
        waiting = _Waiting(history, name)
        for before, period, after in zip(periods, periods[1:], periods[2:], strict=False):
            if before.number + 1 == period.number == after.number - 1:
                found += _check_period(history, name, period_ns, before, period, after, waiting)
    return found


class _Waiting:
    """Requests of one resource that could wait, by tenant."""

    def __init__(self, history: History, name: str) -> None:
        self.requests: dict[str, list[Line]] = {}
        for op in history.operations:
            if op.resource == name and op.op == "acquire" and op.wait_ms and op.end is not None:
                self.requests.setdefault(op.tenant or "", []).append(op)
        self._spans: dict[str, Spans] = {}

    def spans(self, tenant: str) -> Spans:
        if tenant not in self._spans:
            requests = self.requests.get(tenant, [])
            self._spans[tenant] = Spans((op.at, op.done_at + GAP_NS) for op in requests)
        return self._spans[tenant]


def _check_period(
    history: History,
    name: str,
    period_ns: int,
    before: Period,
    period: Period,
    after: Period,
    waiting: _Waiting,
) -> Iterator[Breach]:
    since, until = before.first_end, after.last_at
    lead_ns = CALM_NS + CALM_PERIODS * period_ns
    if since - lead_ns < history.began_at or not history.is_calm(since - lead_ns, until):
        return
    for tenant in waiting.requests:
        due = _find_due(history, name, tenant, since - lead_ns, until, period_ns)
        if due <= 0 or not waiting.spans(tenant).cover(since - lead_ns, until):
            continue
        if not _kept_waiting(waiting.requests[tenant], since, until):
            continue
        history.judged[PROMISE] += 1
        grants = period.grants.get(tenant, [])
        told = sum(grant.amount for grant in grants)
        largest = max((op.amount or 1 for op in waiting.requests[tenant]), default=1)
        if told < due - (largest - 1):
            yield _tell(name, tenant, period, told, due - (largest - 1), grants, waiting.requests[tenant])


def _find_due(history: History, name: str, tenant: str, since: int, until: int, period_ns: int) -> int:
    """Whole tokens of a period, 0 if none are due."""
    terms = list(history.changes.find_terms(name, tenant, since, until))
    reserved = min((each.reservation for each in terms if isinstance(each, Terms)), default=Fraction(0))
    if None in terms or not reserved:
        return 0
    forms = history.changes.find_resources(name, since, until)
    if not all(_can_be_met(history, form, name) for form in forms):
        return 0
    servers = max(len(history.nodes), *(len(form.servers) for form in forms))
    capacity = max(rate for form in forms for rate in form.servers.values() if rate is not None)
    return int(DUE * tokens_in(reserved, period_ns)) - tokens_in(capacity * servers, LOT_NS)


def _can_be_met(history: History, form: Resource, name: str) -> bool:
    capacities = list(form.servers.values())
    set_beside = [
        change.value.reservation
        for (resource, _), changes in history.changes.tenants.items()
        for change in changes
        if resource == name and change.value is not None
    ]
    total = sum((terms.reservation for terms in form.tenants.values()), sum(set_beside, Fraction(0)))
    return all(rate is not None and total <= rate for rate in capacities)


def _kept_waiting(requests: Sequence[Line], since: int, until: int) -> bool:
    within = [op for op in requests if op.at < until and op.done_at > since]
    if not within or until <= since:
        return False
    waited_ns = sum(op.done_at - op.at for op in within)
    inside_ns = sum((op.amount or 1) * (min(op.done_at, until) - max(op.at, since)) for op in within)
    return waited_ns >= WAITED_LEAST_NS * len(within) and inside_ns >= WAITING_LEAST * (until - since)


def _tell(
    name: str, tenant: str, period: Period, told: int, due: int, grants: list[Grant], requests: list[Line]
) -> Breach:
    sentence = (
        f"{tenant} was told {told} tokens of {name} in period {period.number}, kept requests waiting "
        f"throughout, and nothing was amiss; of its reservation at least {due} were due"
    )
    waited = [op for op in requests if op.at <= period.last_at and op.done_at >= period.first_end]
    lines: list[Grant | Line] = [*grants] if grants else [*waited]
    return make_breach(PROMISE, period.last_at, sentence, lines)
