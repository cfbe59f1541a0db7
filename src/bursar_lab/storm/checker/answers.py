"""Every answer is one of those that there are, and in time.

**The promise.** An acquisition ends in a grant, `Refused`, `Unknown`, a denial or `UsageError`, within
its `wait` and a quarter of a second, and in nothing else ever. What else a client asks for (settling,
releasing, submitting) may take longer, but ends in nothing else either: "error" is a breach.

Over HTTP the node keeps the time, and the client turns to the next node when one cannot be reached. Then
the promise counts from when the node that answered was turned to (`put`), and the whole may take two
seconds more for each node before it: one for a connection, one for TLS.

**Left out.** Time in which the machine stood still does not count, nor time in which the client itself
(over HTTP also the node) was ready to run and had no processor, by what the kernel told the witness. A
client that the nemesis paused is not judged by operations that the pause touched, and over HTTP nor is one
that asked a paused node. Nor, over HTTP, one between which and the node the network was cut, lost or slow
while it asked: what is late then is the network, and only the client's own timeouts (two seconds for a
connection, two beyond `wait` for the answer) bound it, so these are what it is judged by. Where nothing came
back at all over HTTP (`lost`), the time is that of the client's own timeout, for which bursar cannot answer.
A cancelled operation is judged like any other: it should have ended even sooner. Over HTTP whoever shows no
token, or one that was revoked, is denied up to two seconds later: wrong tokens are answered late.
"""

from __future__ import annotations

from collections import Counter

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.history import History, keepers_of, name_of, slot_of
from bursar_lab.storm.checker.lines import ACQUIRING, Line
from bursar_lab.storm.checker.spans import Spans
from bursar_lab.storm.checker.troubles import NETWORK, PAUSING, Trouble

PROMISE = "answers"
ALLOWED = frozenset({"grant", "refused", "unknown", "denied", "usage", "cancelled", "done"})
GRACE_NS = 250_000_000
MILLISECOND_NS = 1_000_000
TURN_NS = 2_000_000_000
"""Over HTTP, for each node that could not be reached: a second for a connection, a second for TLS."""

HTTP_ANSWER_NS = 2_000_000_000
"""Beyond its `wait` an HTTP client waits no longer than this for an answer."""


KEPT_BACK_NS = 2_000_000_000
"""So much later is a wrong token answered."""


def check(history: History) -> list[Breach]:
    found = []
    names = history.clients | history.nodes
    paused = {name: Spans(history.troubles.spans_of(PAUSING, name)) for name in names}
    for op in history.operations:
        if op.answer is None:
            continue
        history.judged[PROMISE] += 1
        if op.answer.is_ not in ALLOWED:
            found.append(_tell_wrong(op))
        elif op.op in ACQUIRING and _is_late(history, op) and not _was_paused(paused, op):
            found.append(_tell_late(history, op))
    return found


def count(history: History) -> dict[str, Counter[str]]:
    """Operations by what was asked and what was answered."""
    counts: dict[str, Counter[str]] = {}
    for op in history.operations:
        asked = (op.of or op.op) if op.op == "begin" else op.op
        counts.setdefault(asked, Counter())[op.answer.is_ if op.answer else "no answer"] += 1
    return counts


def _is_late(history: History, op: Line) -> bool:
    if op.end is None or (op.answer is not None and op.answer.lost):
        return False
    since = op.at if op.put is None else op.put
    return _took_over(history, op, op.at, _may_ns(history, op)) or (
        not _was_cut_off(history, op) and _took_over(history, op, since, _grace_ns(history, op))
    )


def _took_over(history: History, op: Line, since: int, may_ns: int) -> bool:
    took_ns = op.done_at - since
    return took_ns > may_ns and took_ns - history.still_ns(op, op.done_at, since) > may_ns


def _grace_ns(history: History, op: Line) -> int:
    kept_back_ns = KEPT_BACK_NS if _may_be_kept_back(history, op) else 0
    return int((op.wait_ms or 0) * MILLISECOND_NS) + GRACE_NS + kept_back_ns


def _may_be_kept_back(history: History, op: Line) -> bool:
    if op.via != "http" or op.answer is None or op.answer.is_ != "denied" or op.token is None:
        return False
    revoked = (line.at for line in history.others.get("revoke", []) if line.token == op.token)
    return op.token == "" or any(at <= op.done_at for at in revoked)


def _may_ns(history: History, op: Line) -> int:
    """For the whole of it."""
    if op.via != "http":
        return _grace_ns(history, op)
    if _was_cut_off(history, op):
        return _grace_ns(history, op) + (op.in_vain + 1) * TURN_NS + HTTP_ANSWER_NS
    return _grace_ns(history, op) + op.in_vain * TURN_NS


def _was_cut_off(history: History, op: Line) -> bool:
    client, keepers = slot_of(name_of(op)), keepers_of(op)
    since = op.at if op.put is None else op.put
    return any(
        trouble.at <= op.done_at
        and since <= trouble.until
        and any(_is_between(trouble, client, node) for node in keepers)
        for trouble in history.troubles.all
        if trouble.fault in NETWORK
    )


def _is_between(trouble: Trouble, client: str, node: str) -> bool:
    """One member is slow, or loses what it is sent; or one is cut from the others."""
    member, *others = map(slot_of, trouble.targets)
    if not others:
        return member in (client, node)
    return (member == node and client in others) or (member == client and node in others)


def _was_paused(paused: dict[str, Spans], op: Line) -> bool:
    return any(paused[name].touch(op.at, op.done_at) for name in [name_of(op), *keepers_of(op)])


def _tell_wrong(op: Line) -> Breach:
    assert op.answer is not None
    why = f": {op.answer.why}" if op.answer.why else ""
    return make_breach(PROMISE, op.done_at, f'{op.op} was answered "{op.answer.is_}"{why}', [op])


def _tell_late(history: History, op: Line) -> Breach:
    cut_off = _was_cut_off(history, op)
    late_here = not cut_off and op.put is not None and _took_over(history, op, op.put, _grace_ns(history, op))
    since, may_ns = (op.put or op.at, _grace_ns(history, op)) if late_here else (op.at, _may_ns(history, op))
    took_ms, may_ms = (op.done_at - since) // MILLISECOND_NS, may_ns // MILLISECOND_NS
    sentence = f"{op.op} of {op.resource or 'several'} took {took_ms} ms, and may take {may_ms} ms"
    return make_breach(PROMISE, op.done_at, sentence, [op])
