"""What clients let go of is let go of: the holds of a quota.

**The promise.** Cancelling, at any await, leaves nothing held. A settlement that was told as done is done,
through lost connections and restarts; a repeat of its key says what was used.

So: (1) between any two looks at the books in calm what is held of an account grows by no more than what
clients were told and have not let go of, or could not learn; less what they surely held before and have
let go of. (2) Whoever asks again in calm for a key that was settled is told what it was settled for. (3)
Whoever was told a grant, and alone, can settle it: that is not refused as wrong use.

**Left out.** Times within 15 s of a fault. Runs in which a ledger was lost, spoilt or written off. (1)
Runs with `acquire_all`. What was let go of within 5 s before a look, if that took longer than 150 ms or
was cancelled: it may be told again in the background. What was cancelled over HTTP: the answer may have
been on its way to somebody who had left, and what it granted expires. (2) Settlements less than 15 s
before, and those of clients that were killed later: they may not have had the time to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History, name_of
from bursar_lab.storm.checker.lines import ACQUIRING, ENDING, Line
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.troubles import FOREVER, STATE

PROMISE = "quotas"
CALM_NS = 15 * SECOND_NS
QUICK_NS = 150_000_000
TOLD_AGAIN_NS = 5 * SECOND_NS


def check(history: History) -> list[Breach]:
    if history.troubles.had(STATE) or history.others.get("fence"):
        return []
    found: list[Breach] = []
    for name, grants in history.grants_of("quota").items():
        found += _check_repeats(history, name, grants)
        found += _check_known(history, name, grants)
        shows = [line for line in history.lines_of("show") if line.resource == name and line.figures]
        for before, after in combinations(shows, 2):
            if not history.troubles.spans.touch(before.at - CALM_NS, after.done_at):
                found += _check_held(history, name, grants, before, after)
    return found


# -- repeats


def _check_repeats(history: History, name: str, grants: list[Grant]) -> Iterator[Breach]:
    for grant in grants:
        if not grant.answer.replayed or not grant.ends:
            continue
        settled = _find_settled(history, grant)
        if settled is None or history.troubles.spans.touch(grant.at - CALM_NS, grant.end):
            continue
        history.judged[PROMISE] += 1
        used = next(iter({line.used for line in grant.ends}))
        if grant.answer.used != used:
            said = "open" if grant.answer.used is None else f"used for {grant.answer.used}"
            sentence = (
                f"the key {grant.op.key!r} of {name} was settled for {used}, and "
                f"{(grant.at - settled.done_at) / SECOND_NS:.0f} s later it is {said}"
            )
            yield make_breach(PROMISE, grant.end, sentence, [settled, grant])


def _find_settled(history: History, grant: Grant) -> Line | None:
    """The line that settled it well before it was asked for again, if there is no doubt about it."""
    if len({line.used for line in grant.ends if isinstance(line.used, int)}) != 1:
        return None
    first = min(grant.ends, key=lambda line: line.done_at)
    surely = all(isinstance(line.used, int) and not _was_killed(history, line) for line in grant.ends)
    return first if surely and first.done_at + CALM_NS < grant.at else None


def _was_killed(history: History, line: Line) -> bool:
    killed_at = history.troubles.killed_at(name_of(line))
    return killed_at is not None and killed_at >= line.at


# -- what was told


def _check_known(history: History, name: str, grants: list[Grant]) -> Iterator[Breach]:
    told = Counter(grant.answer.id for grant in grants)
    alone = {(grant.file, grant.op.n): grant for grant in grants if told[grant.answer.id] == 1}
    for op in history.operations:
        grant = alone.get((op.file, op.grant)) if op.op in ENDING else None
        if grant is None or op.answer is None or grant.answer.replayed:
            continue
        history.judged[PROMISE] += 1
        used = op.used if isinstance(op.used, int) else 0
        if op.answer.is_ == "usage" and used <= grant.amount and not grant.ends:
            sentence = f"{grant.answer.id} of {name} was told to {grant.tenant}, and cannot be settled: "
            yield make_breach(PROMISE, op.done_at, sentence + (op.answer.why or ""), [grant, op])


# -- what is held


def _check_held(
    history: History, name: str, grants: list[Grant], before: Line, after: Line
) -> Iterator[Breach]:
    if any((op.of or op.op) == "acquire_all" for op in history.operations):
        return
    whole, held = (after.figures or {}).get("whole", {}), (before.figures or {}).get("whole", {})
    for account in sorted(set(whole) & set(held)):
        history.judged[PROMISE] += 1
        grown = whole[account]["held"] - held[account]["held"]
        may = _sum_new(history, name, account, grants, before, after)
        gone = _sum_gone(account, grants, before, after)
        if grown > may - gone:
            sentence = (
                f"{grown + gone} more of {account} in {name} are held than "
                f"{(after.at - before.done_at) / SECOND_NS:.0f} s before; by what clients were told and let "
                f"go of it can be {may}"
            )
            yield make_breach(PROMISE, after.done_at, sentence, [before, after])


def _is_of(account: str, tenant: str) -> bool:
    return tenant == account or tenant.startswith(f"{account}/")


def _sum_new(
    history: History, name: str, account: str, grants: list[Grant], before: Line, after: Line
) -> int:
    total = 0
    for grant in grants:
        new = grant.end > before.at and grant.at < after.done_at and not grant.answer.replayed
        if new and _is_of(account, grant.tenant) and _find_gone(grant) > after.at:
            total += grant.amount
    for op in history.operations:
        asked = op.of if op.op == "begin" else op.op
        mine = asked in ACQUIRING and op.resource == name and _is_of(account, op.tenant or "")
        if mine and op.done_at > before.at and op.at < after.done_at and _may_hold(op, after.at):
            total += op.amount or 0
    return total


def _may_hold(op: Line, until: int) -> bool:
    """Beside what it was told: whether somebody may have granted it who has not heard that it is over."""
    if op.answer is None or op.answer.is_ in ("unknown", "error"):
        return True
    if op.answer.is_ == "cancelled":
        return op.via == "http" or op.done_at + TOLD_AGAIN_NS > until
    return op.done_at - op.at > QUICK_NS and op.done_at + TOLD_AGAIN_NS > until


def _find_gone(grant: Grant) -> int:
    """When it was surely let go of."""
    return min((_find_done(line) for line in grant.ends), default=FOREVER)


def _find_done(line: Line) -> int:
    return line.done_at + (TOLD_AGAIN_NS if line.done_at - line.at > QUICK_NS else 0)


def _sum_gone(account: str, grants: list[Grant], before: Line, after: Line) -> int:
    """What was surely held at the first look, and surely not any more at the second."""
    total, seen = 0, set[str]()
    for grant in grants:
        told = _is_of(account, grant.tenant) and grant.end < before.at and not grant.answer.replayed
        held = grant.ended_at is not None and grant.ended_at > before.done_at and _find_gone(grant) < after.at
        if told and held and grant.answer.id and grant.answer.id not in seen:
            seen.add(grant.answer.id)
            total += grant.amount
    return total
