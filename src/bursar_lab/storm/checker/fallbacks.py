"""What goes on without bursar is what the policy allows.

**The promise.** While bursar cannot be reached callers do what `without_bursar` says: "keep" as much
again, in each period, as this caller was charged in the last one that it saw end, at most the tenant's
limit; "safe" that rate at each place that asks; "refuse" nothing. A quota and a claim never lend.

So: a grant in place of bursar is only there where a policy that could have been in force allows it; and
of one client and one tenant, over every stretch of one period, it is at most twice the limit (two periods
may meet in it) or the safe rate with its burst (a tenth of a second, at least one), for the client itself
and for each node that it may use, since a node that reaches no controller is a caller too.

**Left out.** "keep" where neither a limit nor a capacity says how much a caller can have been charged.
The sum over callers: that is not promised. What shadow mode lets through, as long as the policy may say
`shadow`.
"""

from __future__ import annotations

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.changes import UNBOUNDED
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.policies import Resource
from bursar_lab.storm.checker.quantities import SECOND_NS, tokens_in
from bursar_lab.storm.checker.windows import find_fullest

PROMISE = "fallbacks"
SHADOW = "shadow"


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    callers: dict[tuple[str, str, str], list[Grant]] = {}
    for grant in history.grants:
        if grant.answer.fallback is not None:
            history.judged[PROMISE] += 1
            if not _is_allowed(history, grant):
                found.append(_tell_not_allowed(grant))
            elif grant.answer.fallback != SHADOW:
                callers.setdefault((grant.file, grant.resource, grant.tenant), []).append(grant)
    for (_, name, tenant), grants in callers.items():
        found += _check_caller(history, name, tenant, grants)
    return found


def _forms(history: History, grant: Grant) -> list[Resource]:
    """Those that the caller may go by. It may have been cut off for the whole run."""
    return history.changes.find_resources(grant.resource, 0, grant.end)


def _is_allowed(history: History, grant: Grant) -> bool:
    if grant.answer.fallback == SHADOW:
        return any(form.shadow for form in _forms(history, grant))
    return any(form.without_bursar == grant.answer.fallback for form in _forms(history, grant))


def _tell_not_allowed(grant: Grant) -> Breach:
    sentence = (
        f"{grant.tenant} was granted {grant.amount} of {grant.resource} in place of bursar "
        f'("{grant.answer.fallback}"), which no policy that could have been in force allows'
    )
    return make_breach(PROMISE, grant.end, sentence, [grant])


def _check_caller(history: History, name: str, tenant: str, grants: list[Grant]) -> list[Breach]:
    forms = _forms(history, max(grants, key=lambda grant: grant.end))
    window_ns = max(SECOND_NS if form.kind == "share" else form.period_ns for form in forms)
    until = max(grant.end for grant in grants)
    at_one_place = max(_most(history, form, name, tenant, window_ns, until) for form in forms)
    if at_one_place >= UNBOUNDED:
        return []
    most = at_one_place * (1 + max(len(grant.op.nodes or ()) for grant in grants))
    fullest = find_fullest(grants, window_ns)
    if fullest.tokens <= most:
        return []
    sentence = (
        f"{tenant} was granted {fullest.tokens} of {name} in place of bursar, at one client within "
        f"{window_ns / SECOND_NS:g} s; it may be {most}"
    )
    return [make_breach(PROMISE, fullest.until, sentence, fullest.grants)]


def _most(history: History, form: Resource, name: str, tenant: str, window_ns: int, until: int) -> int:
    if form.without_bursar == "safe" and form.safe is not None:
        return tokens_in(form.safe, window_ns) + max(1, tokens_in(form.safe, SECOND_NS // 10)) + 1
    if form.without_bursar == "refuse":
        return 0
    rate = history.changes.find_limit(name, tenant, 0, until)
    if form.kind in ("share", "pool") and form.capacity is not None:
        # An interval more: what a share's target hands out at its edge.
        rate = min(rate, form.capacity * 6 / 5)
    return int(UNBOUNDED) if rate >= UNBOUNDED else 2 * tokens_in(rate, window_ns)
