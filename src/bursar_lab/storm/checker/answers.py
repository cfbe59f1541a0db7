"""Every answer is one of those that there are, and in time.

**The promise.** An acquisition ends in a grant, `Refused`, `Unknown`, a denial or `UsageError`, within
its `wait` and a quarter of a second, and in nothing else ever. What else a client asks for (settling,
releasing, submitting) may take longer, but ends in nothing else either: "error" is a breach.

**Left out.** Time in which the machine stood still does not count, nor time in which the client itself
(over HTTP also the node) was ready to run and had no processor, by what the kernel told the witness. A
client that the nemesis paused is not judged by operations that the pause touched, and over HTTP, where the
node keeps the time, nor is one that may have asked a paused node. Where nothing came back at all over HTTP
(`lost`), the time is that of the client's own timeout, for which bursar cannot answer. A cancelled
operation is judged like any other: it should have ended even sooner.
"""

from __future__ import annotations

from collections import Counter

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.history import History, name_of
from bursar_lab.storm.checker.lines import ACQUIRING, Line
from bursar_lab.storm.checker.spans import Spans
from bursar_lab.storm.checker.troubles import PAUSING

PROMISE = "answers"
ALLOWED = frozenset({"grant", "refused", "unknown", "denied", "usage", "cancelled", "done"})
GRACE_NS = 250_000_000
MILLISECOND_NS = 1_000_000


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
            found.append(_tell_late(op))
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
    allowed_ns = int((op.wait_ms or 0) * MILLISECOND_NS) + GRACE_NS
    if op.end - op.at <= allowed_ns:
        return False
    return op.end - op.at - history.still_ns(op, op.end) > allowed_ns


def _was_paused(paused: dict[str, Spans], op: Line) -> bool:
    keepers = [name_of(op), *(op.nodes or () if op.via == "http" else ())]
    return any(paused[name].touch(op.at, op.done_at) for name in keepers)


def _tell_wrong(op: Line) -> Breach:
    assert op.answer is not None
    why = f": {op.answer.why}" if op.answer.why else ""
    return make_breach(PROMISE, op.done_at, f'{op.op} was answered "{op.answer.is_}"{why}', [op])


def _tell_late(op: Line) -> Breach:
    took_ms = (op.done_at - op.at) // MILLISECOND_NS
    may_ms = int(op.wait_ms or 0) + GRACE_NS // MILLISECOND_NS
    sentence = f"{op.op} of {op.resource or 'several'} took {took_ms} ms, and may take {may_ms} ms"
    return make_breach(PROMISE, op.done_at, sentence, [op])
