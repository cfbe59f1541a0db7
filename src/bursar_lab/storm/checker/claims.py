"""Conflicting owners never own at once, and a guard keeps out who owns no more.

**The promise.** Conflicting owners are never recorded. A claim is granted whole or not at all. A fence is
the phase of its name: an exclusive grant and the first sharer raise it, later sharers carry the same one.
A deposed owner is refused wherever a guard stands, and nobody's fence in shadow mode is ever accepted.

So: (1) no guard accepts a fence below one that it accepted before, nor one of 0 or less; (2) two
different claims never have the same fence of a name if one of them is exclusive; (3) who asks after
another was told has a fence that is no lower, and higher if one of the two is exclusive; (4) every name
that was asked for is in the grant, at first and when more was asked for; (5) in calm times, nobody is granted
what another holds; (6) in calm times, of a counted name no more are held together than there are.

**Left out.** That two hold the same name by what they were told is only a breach in calm (5): an owner
that was paused, cut off or released by force learns of it late, which is what fences are for. A claim
that was asked for again with its key is the same claim (`replayed`), and once one of those who were told
lets go it may be over for all. A holder whose release is not in the history holds for an unknown time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.fallbacks import SHADOW
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import Line
from bursar_lab.storm.checker.policies import Resource
from bursar_lab.storm.checker.quantities import SECOND_NS

PROMISE = "claims"
CALM_NS = 30 * SECOND_NS
"""Sessions and clients that a fault cut off are counted as gone within this time."""


@dataclass(slots=True)
class Holding:
    """One name of one claim."""

    grant: Grant
    name: str
    fence: int
    exclusive: bool
    until: int | None = None
    """When somebody who was told of it began to let go; None: not in the history."""

    @property
    def identity(self) -> object:
        return self.grant.op.key or self.grant.answer.id or (self.grant.file, self.grant.line)


def check(history: History) -> list[Breach]:
    found = list(_check_guards(history))
    for name, forms in history.changes.all_resources("claim").items():
        grants = [grant for grant in history.grants if grant.resource == name]
        grants += list(_list_more(history, grants))
        for counted, most in _find_counted(forms).items():
            found += _check_units(history, grants, counted, most)
        found += _check_whole(history, [grant for grant in grants if grant.answer.fallback != SHADOW])
        by_name: dict[str, list[Holding]] = {}
        for holding in _list_holdings(grants):
            by_name.setdefault(holding.name, []).append(holding)
        for holdings in by_name.values():
            history.judged[PROMISE] += len(holdings)
            found += _check_same_fence(holdings)
            found += _check_order(holdings)
            found += _check_overlap(history, holdings)
    return found


def read_names(names: Iterable[str]) -> dict[str, bool]:
    """The names asked for, and whether exclusively; without a mode it is."""
    found: dict[str, bool] = {}
    for text in names:
        name, _, mode = text.strip().rpartition(":")
        if mode.isdigit():
            continue  # so many of a counted name
        if mode not in ("S", "E"):
            name, mode = text.strip(), "E"
        found[name] = found.get(name, False) or mode == "E"
    return found


def read_units(names: Iterable[str], counted: str) -> int:
    """How many of a counted name were asked for."""
    pairs = (text.strip().rpartition(":") for text in names)
    return sum(int(number) for name, _, number in pairs if name == counted and number.isdigit())


def _list_more(history: History, grants: Iterable[Grant]) -> Iterator[Grant]:
    """What was given to those who asked for more, each as a grant that ends with theirs."""
    by_number = {(grant.file, grant.op.n): grant for grant in grants}
    for line in history.lines_of("more"):
        held = by_number.get((line.file, line.grant))
        if held is None or line.answer is None or line.answer.is_ != "grant":
            continue
        amount = len(line.names or ())
        more = Grant(line, line.answer, held.resource, held.tenant, amount, amount, held.ended_at, held.ends)
        if not held.op.key:  # or it is known by that, and its names with it
            yield more


def _find_counted(forms: Iterable[Resource]) -> dict[str, int]:
    """The most that there ever were of each counted name."""
    most: dict[str, int] = {}
    for form in forms:
        for name, units in form.counted.items():
            most[name] = max(most.get(name, 0), units)
    return most


def _check_units(history: History, grants: Iterable[Grant], name: str, most: int) -> Iterator[Breach]:
    """Only of those whose end is in the history, in calm: what was taken by force is told to nobody."""
    held: list[tuple[Grant, int]] = []
    told = [grant for grant in grants if grant.answer.fallback != SHADOW and not grant.answer.replayed]
    for grant in sorted(told, key=lambda grant: grant.end):
        units = read_units(grant.op.names or (), name)
        held = [(each, of) for each, of in held if each.ended_at is not None and each.ended_at > grant.end]
        if not units or grant.ended_at is None:
            continue
        history.judged[PROMISE] += 1
        held.append((grant, units))
        together = sum(of for _, of in held)
        since = min(each.at for each, _ in held)
        if together > most and history.is_calm(since - CALM_NS, grant.end):
            sentence = f"{together} of {name} are held together, there are {most}, and nothing was amiss"
            yield make_breach(PROMISE, grant.end, sentence, [each for each, _ in held])


def _list_holdings(grants: Iterable[Grant]) -> Iterator[Holding]:
    """Names that came with a path or a part, and were not asked for, are shared."""
    holdings = []
    for grant in grants:
        if grant.answer.fallback == SHADOW:
            continue
        asked = read_names(grant.op.names or ())
        for name, fence in (grant.answer.fence or {}).items():
            exclusive = asked.get(name, not asked)
            holdings.append(Holding(grant, name, fence, exclusive, grant.ended_at))
    ends: dict[tuple[object, str, int], int] = {}
    for holding in holdings:
        if holding.until is not None:
            identity = (holding.identity, holding.name, holding.fence)
            ends[identity] = min(holding.until, ends.get(identity, holding.until))
    for holding in holdings:
        holding.until = ends.get((holding.identity, holding.name, holding.fence))
        yield holding


def _check_guards(history: History) -> Iterator[Breach]:
    highest: dict[str, Line] = {}
    for write in history.lines_of("write"):
        if not write.accepted or write.name is None or write.fence is None:
            continue
        history.judged[PROMISE] += 1
        if write.fence <= 0:
            sentence = f"a guard of {write.name} accepted fence {write.fence}, which is nobody's"
            yield make_breach(PROMISE, write.at, sentence, [write])
        before = highest.setdefault(write.name, write)
        assert before.fence is not None
        if write.fence < before.fence:
            sentence = f"a guard of {write.name} accepted fence {write.fence} after {before.fence}"
            yield make_breach(PROMISE, write.at, sentence, [before, write])
        elif write.fence > before.fence:
            highest[write.name] = write


def _check_whole(history: History, grants: Iterable[Grant]) -> Iterator[Breach]:
    for grant in grants:
        told = grant.answer.fence or {}
        missing = sorted(set(read_names(grant.op.names or ())) - set(told))
        if missing:
            sentence = f"a claim was granted without {', '.join(missing)}, which it asked for"
            yield make_breach(PROMISE, grant.end, sentence, [grant])
        nobodys = sorted(name for name, fence in told.items() if fence <= 0)
        if nobodys:
            sentence = f"a claim was granted with a fence of 0 for {', '.join(nobodys)}: nobody's"
            yield make_breach(PROMISE, grant.end, sentence, [grant])


def _check_same_fence(holdings: list[Holding]) -> Iterator[Breach]:
    by_fence: dict[int, list[Holding]] = {}
    for holding in holdings:
        by_fence.setdefault(holding.fence, []).append(holding)
    for fence, same in by_fence.items():
        identities = {holding.identity for holding in same}
        if len(identities) > 1 and any(holding.exclusive for holding in same):
            one = next(holding for holding in same if holding.exclusive)
            other = next(holding for holding in same if holding.identity != one.identity)
            sentence = (
                f"fence {fence} of {one.name} was given to {one.grant.tenant} exclusively, and to "
                f"{other.grant.tenant} too"
            )
            lines = sorted((one.grant, other.grant), key=lambda grant: grant.end)
            yield make_breach(PROMISE, lines[-1].end, sentence, lines)


def _check_order(holdings: list[Holding]) -> Iterator[Breach]:
    """Told before asked: the later one's fence is at least as high."""
    told = sorted(holdings, key=lambda holding: holding.grant.end)
    at = 0
    highest: Holding | None = None
    for holding in sorted(holdings, key=lambda holding: holding.grant.at):
        while at < len(told) and told[at].grant.end <= holding.grant.at:
            highest = _higher(highest, told[at])
            at += 1
        if highest is None or holding.grant.answer.replayed or highest.identity == holding.identity:
            continue
        # Equal fences of which one is exclusive are found by `_check_same_fence`.
        if holding.fence < highest.fence:
            sentence = (
                f"{holding.grant.tenant} was given fence {holding.fence} of {holding.name}, and asked "
                f"after {highest.grant.tenant} was told {highest.fence}"
            )
            yield make_breach(PROMISE, holding.grant.end, sentence, [highest.grant, holding.grant])


def _higher(one: Holding | None, other: Holding) -> Holding:
    return other if one is None or other.fence > one.fence else one


def _check_overlap(history: History, holdings: list[Holding]) -> Iterator[Breach]:
    held: list[Holding] = []
    for holding in sorted(holdings, key=lambda holding: holding.grant.end):
        told_at = holding.grant.end
        held = [each for each in held if each.until is not None and each.until > told_at]
        for each in held:
            apart = each.identity != holding.identity and (each.exclusive or holding.exclusive)
            if apart and history.is_calm(each.grant.at - CALM_NS, told_at):
                assert each.until is not None
                sentence = (
                    f"{holding.name} was given to {holding.grant.tenant} while {each.grant.tenant} held it, "
                    f"for another {(each.until - told_at) / SECOND_NS:.3f} s, and nothing was amiss"
                )
                yield make_breach(PROMISE, told_at, sentence, [each.grant, holding.grant])
        held.append(holding)
