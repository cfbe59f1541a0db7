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

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction

from bursar_lab.storm.checker.breaches import Breach, make_breach
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
        waiting = _group_waiting(history, name)
        for around in zip(periods, periods[1:], periods[2:], strict=False):
            if around[0].number + 2 == around[2].number:
                found += _check_period(history, name, period_ns, around, waiting)
    return found


class _Waiting:
    """One tenant's requests that could wait, in the order in which they were asked for."""

    def __init__(self, requests: list[Line]) -> None:
        self._requests = sorted(requests, key=lambda op: op.at)
        self._asked = [op.at for op in self._requests]
        self._longest_ns = max(op.done_at - op.at for op in requests)
        self.largest = max(op.amount or 1 for op in requests)
        self.spans = Spans((op.at, op.done_at + GAP_NS) for op in requests)

    def list_within(self, since: int, until: int) -> list[Line]:
        """Those that waited at some moment of it."""
        first = bisect_left(self._asked, since - self._longest_ns)
        last = bisect_right(self._asked, until)
        return [op for op in self._requests[first:last] if op.done_at > since]

    def kept_waiting(self, since: int, until: int) -> bool:
        within = self.list_within(since, until)
        if not within or until <= since:
            return False
        waited_ns = sum(op.done_at - op.at for op in within)
        inside_ns = sum((op.amount or 1) * (min(op.done_at, until) - max(op.at, since)) for op in within)
        return waited_ns >= WAITED_LEAST_NS * len(within) and inside_ns >= WAITING_LEAST * (until - since)


def _group_waiting(history: History, name: str) -> dict[str, _Waiting]:
    """By tenant."""
    requests: dict[str, list[Line]] = {}
    for op in history.operations:
        if op.resource == name and op.op == "acquire" and op.wait_ms and op.end is not None:
            requests.setdefault(op.tenant or "", []).append(op)
    return {tenant: _Waiting(found) for tenant, found in requests.items()}


def _check_period(
    history: History,
    name: str,
    period_ns: int,
    around: tuple[Period, Period, Period],
    all_waiting: dict[str, _Waiting],
) -> Iterator[Breach]:
    before, period, after = around
    since, until = before.first_end, after.last_at
    lead_ns = CALM_NS + CALM_PERIODS * period_ns
    if not history.is_calm(since - lead_ns, until) or history.stood.touch(since, until):
        return
    for tenant, waiting in all_waiting.items():
        due = _find_due(history, name, tenant, since - lead_ns, until, period_ns) - (waiting.largest - 1)
        if due <= 0 or not waiting.spans.cover(since - lead_ns, until):
            continue
        if not waiting.kept_waiting(since, until):
            continue
        history.judged[PROMISE] += 1
        grants = period.grants.get(tenant, [])
        told = sum(grant.amount for grant in grants)
        if told < due:
            sentence = (
                f"{tenant} was told {told} tokens of {name} in period {period.number}, kept requests waiting "
                f"throughout, and nothing was amiss; of its reservation at least {due} were due"
            )
            lines = grants or waiting.list_within(period.first_end, period.last_at)
            yield make_breach(PROMISE, period.last_at, sentence, lines)


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
