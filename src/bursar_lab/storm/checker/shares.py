"""A share hands out its target's capacity, and no more.

**The promise.** In each interval the tokens handed out are the target's capacity. So over every stretch
of a second or more, what clients were told is at most the capacity times its length, and beside that what
one interval's edge, one lot (5 ms of the target) and one large request can move across its ends.

**Left out.** Capacities that are estimated ("auto"). Grants in place of bursar. Each node that offers the
resource is a target of its own; where a client may ask several and the answer does not say which it was,
the nodes' capacities are added. Where the capacity was changed, the highest counts throughout. Stretches
of lengths between those that are tried (each twice the one before): a lasting excess shows in one of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.grants import Grant
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.policies import MILLISECOND_NS, Resource
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.windows import find_fullest, list_lengths

PROMISE = "shares"
LOT_NS = 5 * MILLISECOND_NS


def check(history: History) -> list[Breach]:
    found: list[Breach] = []
    for name, grants in history.grants_of("share").items():
        forms = history.changes.all_resources("share")[name]
        if grants and all(form.capacity is not None for form in forms):
            for nodes, part in _group_by_target(grants):
                found += _check_target(history, name, forms, part, nodes)
    return found


def _group_by_target(grants: list[Grant]) -> Iterator[tuple[int, list[Grant]]]:
    """By node where every answer's is known; else all of them, with the number of nodes."""
    nodes = {node for grant in grants for node in grant.op.nodes or ()}
    by_node: dict[str, list[Grant]] = {}
    for grant in grants:
        by_node.setdefault(_find_node(grant), []).append(grant)
    if "" in by_node:
        yield max(1, len(nodes)), grants
    else:
        yield from ((1, part) for part in by_node.values())


def _find_node(grant: Grant) -> str:
    nodes = grant.op.nodes or []
    return grant.answer.node or (nodes[0] if len(nodes) == 1 else "")


def _check_target(
    history: History, name: str, forms: list[Resource], grants: list[Grant], nodes: int
) -> Iterator[Breach]:
    capacity = max(form.capacity or Fraction(0) for form in forms) * nodes
    edge_ns = max(form.period_ns for form in forms) + LOT_NS
    largest = max(grant.amount for grant in grants) * nodes
    for length_ns in list_lengths(grants, SECOND_NS):
        fullest = find_fullest(grants, length_ns)
        history.judged[PROMISE] += 1
        most = int(capacity * (length_ns + edge_ns) / SECOND_NS) + largest
        if fullest.tokens > most:
            sentence = (
                f"{fullest.tokens} tokens of {name} were told within {length_ns // SECOND_NS} s; "
                f"with {nodes} target(s) of together {int(capacity)}/s it may be {most}"
            )
            yield make_breach(PROMISE, fullest.until, sentence, fullest.grants)
            return
