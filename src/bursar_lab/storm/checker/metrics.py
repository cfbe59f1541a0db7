"""What a node counts only grows, and adds up with what clients were told.

**The promise.** Counters only rise while the node lives, also when tenants are forgotten. They count
tokens; what clients were told that they have is in them, and nothing that nobody asked for.

So: (1) of two scrapes of a node in one life the later one has no lower sum over tenants of any counter of
the front door. (2) In calm, between a scrape of every node and a later one of every node, the tokens
granted to a tenant are at least those of grants that were asked for and told well between them, and at
most those of all its requests that could have been granted meanwhile.

**Left out.** Nodes that were killed, stopped, lost their disk, joined or left between the scrapes, and
whatever ended by itself. (2) Claims, whose amounts are names. Tenants that are not always
listed: they may be forgotten. Two seconds before the end and five before the beginning: what is spent
from a lot is counted where the lot came from when it is over. What was lent in place of bursar, and
repeats of a key, are not counted as granted again, or may be. `try_acquire` that finds nothing fetches
a lot: its amount may have been granted and come back. Runs with `acquire_all` have no upper bound: what
was granted of one resource comes back if another refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import ACQUIRING, Line
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.spans import Spans
from bursar_lab.storm.checker.troubles import KILLING, STATE

PROMISE = "metrics"
GRANTED = "bursar_tenant_granted_total"
KINDS = ("rate", "share", "pool", "quota")
EDGE_NS = 5 * SECOND_NS
LOT_NS = 2 * SECOND_NS
NOTHING = frozenset({"refused", "usage", "denied"})


def check(history: History) -> list[Breach]:
    by_node: dict[str, list[Line]] = {}
    for scrape in history.lines_of("scrape"):
        if scrape.ok and _read(scrape) and scrape.node:
            by_node.setdefault(scrape.node, []).append(scrape)
    found: list[Breach] = []
    for node, scrapes in by_node.items():
        found += _check_growing(history, node, scrapes)
    found += _check_sums(history, by_node)
    return found


def _read(scrape: Line) -> dict[str, float]:
    return dict((scrape.figures or {}).get("counters", {}))


def _list_ends(history: History, node: str) -> Spans:
    """When a life of the node may have ended, or another may have begun."""
    spans = history.troubles.spans_of(KILLING | STATE, node)
    notes = [line for line in history.others.get("note", []) if line.what == "exit"]
    moved = [*history.others.get("join", []), *history.others.get("leave", [])]
    spans += [(line.at, line.done_at) for line in [*notes, *moved] if line.node == node]
    return Spans(spans)


def _check_growing(history: History, node: str, scrapes: list[Line]) -> Iterator[Breach]:
    ends = _list_ends(history, node)
    for before, after in pairwise(scrapes):
        if ends.touch(before.at, after.done_at):
            continue
        was, is_ = _read(before), _read(after)
        for key, value in was.items():
            if key.count(" ") > 1:
                continue  # of one tenant, which may have been forgotten
            history.judged[PROMISE] += 1
            if is_.get(key, value) < value:
                name, _, resource = key.partition(" ")
                sentence = f"{name} of {resource} at {node} fell from {value:g} to {is_[key]:g}"
                yield make_breach(PROMISE, after.done_at, sentence, [before, after])


# -- adding up


def _check_sums(history: History, by_node: dict[str, list[Line]]) -> Iterator[Breach]:
    calm_at = history.troubles.last_heal_at + EDGE_NS
    nodes = {node: [scrape for scrape in found if scrape.at > calm_at] for node, found in by_node.items()}
    if not nodes or set(nodes) != history.nodes or any(len(found) < 2 for found in nodes.values()):
        return
    firsts, lasts = [found[0] for found in nodes.values()], [found[-1] for found in nodes.values()]
    if any(_list_ends(history, node).touch(calm_at, found[-1].done_at) for node, found in nodes.items()):
        return
    for kind in KINDS:
        for name in history.changes.all_resources(kind):
            forms = history.changes.all_resources(kind)[name]
            for tenant in set.intersection(*(set(form.tenants) for form in forms)):
                if "*" not in tenant:
                    yield from _check_sum(history, name, tenant, firsts, lasts)


def _check_sum(
    history: History, name: str, tenant: str, firsts: list[Line], lasts: list[Line]
) -> Iterator[Breach]:
    key = f"{GRANTED} {name} {tenant}"
    if not all(key in _read(scrape) for scrape in [*firsts, *lasts]):
        return
    history.judged[PROMISE] += 1
    counted = sum(_read(scrape)[key] for scrape in lasts) - sum(_read(scrape)[key] for scrape in firsts)
    told = _sum_told(
        history, name, tenant, max(each.done_at for each in firsts), min(each.at for each in lasts)
    )
    if counted < told:
        sentence = f"{tenant} was told {told} tokens of {name}, and the nodes counted {counted:g} meanwhile"
        yield make_breach(PROMISE, lasts[-1].done_at, sentence, [*firsts, *lasts])
    most = _sum_possible(
        history, name, tenant, min(each.at for each in firsts), max(each.done_at for each in lasts)
    )
    if most is not None and counted > most:
        sentence = (
            f"the nodes counted {counted:g} of {name} as granted to {tenant}, which asked for {most} at most"
        )
        yield make_breach(PROMISE, lasts[-1].done_at, sentence, [*firsts, *lasts])


def _sum_told(history: History, name: str, tenant: str, since: int, until: int) -> int:
    return sum(
        grant.amount
        for grant in history.grants
        if grant.resource == name
        and grant.tenant == tenant
        and grant.answer.fallback is None
        and not grant.answer.replayed
        and grant.at > since
        and grant.end < until - LOT_NS
    )


def _sum_possible(history: History, name: str, tenant: str, since: int, until: int) -> int | None:
    total = 0
    for op in history.operations:
        asked = op.of if op.op == "begin" else op.op
        if asked == "acquire_all":
            return None
        if asked not in ACQUIRING or (op.resource, op.tenant) != (name, tenant):
            continue
        if op.at > until or op.done_at < since - EDGE_NS:
            continue
        if asked == "try_acquire" or op.answer is None or op.answer.is_ not in NOTHING:
            total += op.amount or 0
    return total
