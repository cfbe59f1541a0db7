"""A rate's limit holds in every period.

**The promise.** What is charged to a tenant in a period is never above its limit, over all servers,
through every failure. A grant says the period that it was charged to, and periods are numbers that only
grow.

So: by resource, tenant and period, what clients were told (less what they gave back unused) is at most
the highest limit that could have been in force. A new policy is in force from the next period on, and
what the store says fixes the next period's parts too: a limit that was cut may hold for two periods and
the second in which nodes learn of it; one that was raised counts from the moment it was asked for.

**Left out.** Grants in place of bursar (`fallback`): they are counted apart. Grants that nobody was told
of: they can only make it less. Tenants without a limit. Whether what came back came back in time: it is
taken off in any case.
"""

from __future__ import annotations

from collections.abc import Iterator

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.changes import UNBOUNDED
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.periods import Period, group_by_period
from bursar_lab.storm.checker.quantities import SECOND_NS, tokens_in

PROMISE = "rates"
FOLLOWING_NS = SECOND_NS
"""In which nodes learn of a new policy."""

PERIODS_BEFORE = 3
"""A period lasts one, or a little more after a silent server; its parts may rest on the one before."""


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    for name, grants in history.grants_of("rate").items():
        period_ns = history.changes.all_resources("rate")[name][0].period_ns
        periods = group_by_period(grants)
        for period in periods.values():
            found += _check_limits(history, name, period, period_ns)
        found += _check_numbers(name, list(periods.values()), period_ns)
        found += (_tell_without_period(grant) for grant in grants if grant.period <= 0)
    return found


def _check_limits(history: History, name: str, period: Period, period_ns: int) -> Iterator[Breach]:
    since = period.last_at - PERIODS_BEFORE * period_ns - FOLLOWING_NS
    until = max(period.last_at, period.first_end + 2 * period_ns)
    for tenant, used in period.used.items():
        limit = history.changes.find_limit(name, tenant, since, until)
        if limit >= UNBOUNDED:
            continue
        history.judged[PROMISE] += 1
        most = tokens_in(limit, period_ns)
        if used > most:
            grants = period.grants[tenant]
            sentence = (
                f"{tenant} was told {used} tokens of {name} in period {period.number}, "
                f"in {len(grants)} grants; its limit was at most {most}"
            )
            yield make_breach(PROMISE, max(grant.end for grant in grants), sentence, grants)


def _check_numbers(name: str, periods: list[Period], period_ns: int) -> Iterator[Breach]:
    """A grant that was asked for well after a later period's was answered is of a period that was over."""
    later: Period | None = None
    for period in reversed(periods):
        if later is not None and period.last_at > later.first_end + 2 * period_ns + FOLLOWING_NS:
            one = max(period.list_all(), key=lambda grant: grant.at)
            other = min(later.list_all(), key=lambda grant: grant.end)
            sentence = (
                f"a grant of {name} was charged to period {period.number} though asked for "
                f"{(one.at - other.end) / SECOND_NS:.1f} s after one of period {later.number} was told"
            )
            yield make_breach(PROMISE, one.end, sentence, [other, one])
        if later is None or period.first_end < later.first_end:
            later = period


def _tell_without_period(grant: Grant) -> Breach:
    sentence = f"a grant of {grant.amount} of {grant.resource} to {grant.tenant} says no period"
    return make_breach(PROMISE, grant.end, sentence, [grant])
