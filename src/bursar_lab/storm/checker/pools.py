"""A pool hands out no more than its data node does in a period.

**The promise.** Tokens issued in a period never exceed the capacity, and those of a tenant never its
limit.

So: by resource and period, what clients were told (less what they gave back unused) is at most the
capacity; by tenant too, at most the highest limit that could have been in force.

**Left out.** Pools whose capacity is estimated ("auto"): nobody outside knows the estimate. Grants in
place of bursar. Numbers of periods may begin anew when the shared words are lost with the last process
that had them: grants of one number that lie further apart than three periods are two periods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.changes import UNBOUNDED
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.periods import Period, group_by_period
from bursar_lab.storm.checker.quantities import SECOND_NS, tokens_in
from bursar_lab.storm.checker.rates import FOLLOWING_NS, PERIODS_BEFORE

PROMISE = "pools"


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    for name, grants in history.grants_of("pool").items():
        forms = history.changes.all_resources("pool")[name]
        period_ns = forms[0].period_ns
        capacities = [form.capacity for form in forms]
        most = max((tokens_in(rate, period_ns) for rate in capacities if rate is not None), default=0)
        for period in _list_periods(grants, period_ns):
            if None not in capacities:
                found += _check_capacity(history, name, period, most)
            found += _check_limits(history, name, period, period_ns)
    return found


def _list_periods(grants: Iterable[Grant], period_ns: int) -> Iterator[Period]:
    """Grants of one number in order of time; a new one of the same number begins after a gap."""
    apart_ns = 3 * period_ns + SECOND_NS
    for period in group_by_period(grants).values():
        ordered = sorted(period.list_all(), key=lambda grant: grant.end)
        part: list[Grant] = []
        for grant in ordered:
            if part and grant.at > part[0].end + apart_ns:
                yield from group_by_period(part).values()
                part = []
            part.append(grant)
        yield from group_by_period(part).values()


def _check_capacity(history: History, name: str, period: Period, most: int) -> Iterator[Breach]:
    history.judged[PROMISE] += 1
    told = sum(period.used.values())
    if told > most:
        grants = sorted(period.list_all(), key=lambda grant: grant.end)
        sentence = f"{told} tokens of {name} were told in period {period.number}; its capacity is {most}"
        yield make_breach(PROMISE, grants[-1].end, sentence, grants)


def _check_limits(history: History, name: str, period: Period, period_ns: int) -> Iterator[Breach]:
    since = period.last_at - PERIODS_BEFORE * period_ns - FOLLOWING_NS
    until = max(period.last_at, period.first_end + 2 * period_ns)
    for tenant, used in period.used.items():
        limit = history.changes.find_limit(name, tenant, since, until)
        if limit >= UNBOUNDED or used <= tokens_in(limit, period_ns):
            continue
        grants = period.grants[tenant]
        sentence = (
            f"{tenant} was told {used} tokens of {name} in period {period.number}; "
            f"its limit was at most {tokens_in(limit, period_ns)}"
        )
        yield make_breach(PROMISE, max(grant.end for grant in grants), sentence, grants)
