"""A quota is never exceeded, a key is charged once, and nothing is lost.

**The promise.** What is used of an account never passes the highest limit that it had, and what was added
by top-ups; what a tenant uses counts for those above it too. The same key is one acquisition, wherever
and however often it is asked. Unspent, held, spent and in flight are together the quota: the audit misses
nothing, and what a client was told that it used is charged.

So: over distinct acquisitions (one `id` is one, however often it was told), what was surely used is at
most the highest limit that any text or setting of the run gave, plus all that was ever topped up. Two
grants of one key with different ids are two charges. When all is healed, `bursar quota show` says
`missing` 0, and has at least as much charged as clients were told. What is held is judged by `holds`.

**Left out.** What was settled counts as settled even where the answer was lost, and an acquisition that was
told twice counts once: both make the sum less. A key whose grant was, or may have been, given back unused is
free again, and so is one of a ledger that was written off. Accounts with windows: which window a grant was
charged to is not told, so the sum over the run is held against the limit times the windows that the run (and
the clock jumps in it) touched, if `storm.json` says `wall_ns` and `boot_ns`, and is not judged otherwise. A
parent that is not in every text. The books after a ledger was lost, spoilt or written off: what it had
charged is then not told any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction

from bursar_lab.storm.checker import holds
from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.changes import UNBOUNDED
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import Line
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.troubles import FOREVER, STATE

PROMISE = "quotas"
MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class Acquisition:
    """One charge, however often it was told."""

    tenant: str
    used: int
    grants: list[Grant] = field(default_factory=list)

    @property
    def told_at(self) -> int:
        return min(grant.end for grant in self.grants)


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    for name, grants in history.grants_of("quota").items():
        acquisitions = list_acquisitions(grants)
        windows = _count_windows(history, name)
        accounts = sum_up(acquisitions)
        for account, parts in accounts.items():
            found += _check_limit(history, name, account, parts, windows)
        found += _check_keys(history, name, acquisitions, windows)
        found += _check_books(history, name, accounts, windows)
    return found + holds.check(history)


def list_acquisitions(grants: Iterable[Grant]) -> list[Acquisition]:
    found: dict[object, Acquisition] = {}
    for grant in grants:
        identity = grant.answer.id or (grant.file, grant.line)
        acquisition = found.setdefault(identity, Acquisition(grant.tenant, grant.used))
        acquisition.used = min(acquisition.used, grant.used)
        acquisition.grants.append(grant)
    return list(found.values())


def sum_up(acquisitions: Iterable[Acquisition]) -> dict[str, list[Acquisition]]:
    """By account: what was used by the tenant and by all below it."""
    accounts: dict[str, list[Acquisition]] = {}
    for acquisition in acquisitions:
        account = acquisition.tenant
        while account:
            accounts.setdefault(account, []).append(acquisition)
            account = account.rpartition("/")[0]
    return accounts


# -- the limit


def _check_limit(
    history: History, name: str, account: str, parts: list[Acquisition], windows: int | None
) -> Iterator[Breach]:
    limit = _find_highest(history, name, account, own=any(part.tenant == account for part in parts))
    if windows is None or limit >= UNBOUNDED:
        return
    history.judged[PROMISE] += 1
    most = int(limit) * windows
    used = sum(part.used for part in parts)
    if used > most:
        lines = _list_lines(_find_excess(parts, most))
        sentence = (
            f"{used} of {name} were used by {account}, in {len(parts)} acquisitions, "
            f"by what clients were told; its limit was at most {most}"
        )
        yield make_breach(PROMISE, max(line.end for line in lines), sentence, lines)


def _find_highest(history: History, name: str, account: str, own: bool) -> Fraction:
    """The highest limit of the run, with all top-ups. A parent that some text does not list is not
    known to be one there."""
    if not own and not _is_always_listed(history, name, account):
        return UNBOUNDED
    limit = history.changes.find_limit(name, account, 0, FOREVER)
    added = sum(
        line.amount or 0
        for line in history.lines_of("topup")
        if line.tenant == account and line.resource in (name, None) and (line.amount or 0) > 0
    )
    return limit if limit >= UNBOUNDED else limit + added


def _is_always_listed(history: History, name: str, account: str) -> bool:
    forms = history.changes.find_resources(name, 0, FOREVER)
    return all(account in form.tenants for form in forms)


def _find_excess(parts: list[Acquisition], most: int) -> list[Acquisition]:
    """Those up to the one that passed the limit, in the order in which they were told."""
    told, passed = 0, []
    for part in sorted(parts, key=lambda part: part.told_at):
        told += part.used
        passed.append(part)
        if told > most:
            break
    return passed


def _list_lines(parts: Iterable[Acquisition]) -> list[Grant]:
    return [part.grants[0] for part in parts]


# -- keys


def _check_keys(
    history: History, name: str, acquisitions: list[Acquisition], windows: int | None
) -> Iterator[Breach]:
    if windows != 1:
        return  # a key is forgotten with its window
    first: dict[str, Acquisition] = {}
    for acquisition in sorted(acquisitions, key=lambda each: each.told_at):
        grant = acquisition.grants[0]
        if grant.op.key is None or not grant.answer.id:
            continue
        history.judged[PROMISE] += 1
        known = first.setdefault(grant.op.key, acquisition)
        if known is not acquisition and known.used > 0 and not _is_forgotten(history, known, grant.end):
            sentence = (
                f"the key {grant.op.key!r} of {name} was charged twice: as {known.grants[0].answer.id} "
                f"and as {grant.answer.id}"
            )
            yield make_breach(PROMISE, grant.end, sentence, [known.grants[0], grant])
        first[grant.op.key] = acquisition


def _is_forgotten(history: History, known: Acquisition, by: int) -> bool:
    """The ledger that had the key, or may have had it, was written off, and its keys with it."""
    node = (known.grants[0].answer.id or "").rpartition("/")[0].partition("~")[0]
    return any(line.node == node and line.at <= by for line in history.others.get("fence", []))


# -- the books


def _check_books(
    history: History, name: str, accounts: dict[str, list[Acquisition]], windows: int | None
) -> Iterator[Breach]:
    if history.troubles.had(STATE) or history.others.get("fence"):
        return
    for show in history.lines_of("show"):
        if show.resource != name or not show.figures or show.at < history.troubles.last_heal_at:
            continue
        for account, total in show.figures.get("whole", {}).items():
            history.judged[PROMISE] += 1
            if total.get("missing"):
                sentence = f"the audit of {name} misses {total['missing']} units of {account}"
                yield make_breach(PROMISE, show.at, sentence, [show])
            elif windows == 1 and total.get("missing") == 0:
                yield from _check_charged(name, account, total, accounts.get(account, []), show)


def _check_charged(
    name: str, account: str, total: dict[str, int], parts: list[Acquisition], show: Line
) -> Iterator[Breach]:
    told = [part for part in parts if part.told_at < show.at]
    used = sum(part.used for part in told)
    charged = max(total["spent"] + total["held"], total["limit"] - total["unspent"])
    if used > charged:
        sentence = f"{account} used {used} of {name} by what clients were told, and {charged} are charged"
        yield make_breach(PROMISE, show.at, sentence, [show, *_list_lines(told)])


# -- windows


def _count_windows(history: History, name: str) -> int | None:
    """How many accounts each tenant could have had in this run; None: it cannot be known."""
    kinds = {form.window for form in history.changes.find_resources(name, 0, FOREVER)}
    if kinds <= {"none"}:
        return 1
    if len(kinds) > 1 or not {"wall_ns", "boot_ns"} <= set(history.about):
        return None
    offset_ns = history.about["wall_ns"] - history.about["boot_ns"]
    jumps = {0} | {int((line.jump_ms or 0) * MILLISECOND_NS) for line in history.lines_of("fault")}
    return len(
        {
            window
            for jump_ns in jumps
            for window in _list_windows(
                kinds.copy().pop(),
                history.began_at + offset_ns + jump_ns,
                history.over_at + offset_ns + jump_ns,
            )
        }
    )


def _list_windows(kind: str, since_ns: int, until_ns: int) -> Iterator[str]:
    form = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}[kind]
    for at_s in [*range(since_ns // SECOND_NS, until_ns // SECOND_NS, 3600), until_ns // SECOND_NS]:
        yield datetime.fromtimestamp(at_s, UTC).strftime(form)
