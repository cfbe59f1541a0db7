"""After the storm everything is decided again, and nobody is forgotten.

**The promise.** (1) When all is healed, every node that is up decides: a probe of each resource is
granted or refused, and not `Unknown` or granted in place of bursar. (2) Nobody who asked is left without
an answer past its `wait` and a quarter of a second. (3) A task that was submitted and not cancelled ends.
(4) `/ready` says ready only where requests are decided. (5) A node does not end by itself, is ready 20 s
after it was started, and one whose journal was spoilt says so when it starts.

**Left out.** (1) Probes within 30 s after the last heal, or while a fault is open. (2) Clients that were
killed or paused, and requests whose time was not over when their client ended. A client's life ends with
its line `stopped` or `close`, with its being killed, or, without either, with the last line of its file.
(3) Tasks that nobody asked about a minute after they were submitted and all was healed. (4) Within 15 s
after a fault began or was healed, and while the network is cut: a node may be ready for what it holds by
itself. (5) Nodes that end within 30 s of a fault or a change, and those not ready 20 s after they were
started while there was another fault or a change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from bursar_lab.storm.checker.answers import GRACE_NS, MILLISECOND_NS
from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.history import History, name_of
from bursar_lab.storm.checker.lines import ACQUIRING, Line
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.spans import Spans
from bursar_lab.storm.checker.troubles import KILLING, NETWORK, PAUSING

PROMISE = "liveness"
HEALED_NS = 30 * SECOND_NS
TASK_NS = 60 * SECOND_NS
STEADY_NS = 15 * SECOND_NS
BESIDE_NS = SECOND_NS
READY_NS = 20 * SECOND_NS
DECIDED = frozenset({"grant", "refused", "denied", "usage"})
OVER = frozenset({"done", "failed", "cancelled", "ended"})


def check(history: History) -> list[Breach]:
    return [
        *_check_probes(history),
        *_check_unanswered(history),
        *_check_tasks(history),
        *_check_ready(history),
        *_check_notes(history),
    ]


def is_decided(probe: Line) -> bool:
    answer = probe.answer
    return answer is not None and answer.is_ in DECIDED and answer.fallback in (None, "shadow")


def _list_probes(history: History) -> list[Line]:
    return [op for op in history.operations if op.op == "probe"]


def _check_probes(history: History) -> Iterator[Breach]:
    due_at = history.troubles.last_heal_at + HEALED_NS
    for probe in _list_probes(history):
        if probe.at < due_at or history.stood.touch(probe.at, probe.done_at):
            continue
        history.judged[PROMISE] += 1
        if not is_decided(probe):
            sentence = (
                f"{probe.resource} at {_node(probe)} was not decided, "
                f"{(probe.at - due_at + HEALED_NS) / SECOND_NS:.0f} s after the last fault was healed: "
                f"{_say(probe)}"
            )
            yield make_breach(PROMISE, probe.done_at, sentence, [probe])


def _node(probe: Line) -> str:
    return probe.node or ", ".join(probe.nodes or ()) or "a node"


def _say(probe: Line) -> str:
    if probe.answer is None:
        return "no answer"
    return f"{probe.answer.is_} {probe.answer.fallback or ''} {probe.answer.why or ''}".strip()


# -- nobody is left without an answer


def _check_unanswered(history: History) -> Iterator[Breach]:
    for op in history.operations:
        asked = op.of if op.op == "begin" else op.op
        if op.answer is not None or asked not in ACQUIRING:
            continue
        history.judged[PROMISE] += 1
        due_at = op.at + int((op.wait_ms or 0) * MILLISECOND_NS) + GRACE_NS
        until = _find_life_end(history, op)
        paused = Spans(history.troubles.spans_of(PAUSING, name_of(op)))
        if until - history.still_ns(op, until) > due_at and not paused.touch(op.at, until):
            sentence = (
                f"{asked} of {op.resource or 'several'} had no answer "
                f"{(until - op.at) / SECOND_NS:.1f} s after it was asked; its wait was {op.wait_ms or 0:g} ms"
            )
            yield make_breach(PROMISE, due_at, sentence, [op])


def _find_life_end(history: History, op: Line) -> int:
    """When the client that asked was last known to be alive."""
    writer = name_of(op)
    ends = [at for at, _ in history.troubles.spans_of(KILLING, writer)]
    for word in ("stopped", "close"):
        ends += [line.at for line in history.others.get(word, []) if line.file == op.file]
    ends += [
        line.at for line in history.others.get("note", []) if line.what == "hung" and line.node == writer
    ]
    return min((at for at in ends if at >= op.at), default=history.last_at.get(writer, op.at))


# -- tasks


def _check_tasks(history: History) -> Iterator[Breach]:
    submitted = {
        (op.file, op.n): op for op in history.operations if op.op == "submit" and op.answer and op.answer.id
    }
    last: dict[tuple[str, int | None], Line] = {}
    for op in sorted(history.operations, key=lambda op: op.done_at):
        if op.op in ("wait_for", "cancel") and op.task is not None:
            known = last.get((op.file, op.task))
            if known is None or not _is_over(known):
                last[op.file, op.task] = op
    for number, op in last.items():
        if number not in submitted or op.op == "cancel":
            continue
        due_at = max(submitted[number].done_at, history.troubles.last_heal_at) + TASK_NS
        if op.done_at < due_at or history.stood.touch(op.at, op.done_at):
            continue
        history.judged[PROMISE] += 1
        if not _is_over(op):
            waited_s = (op.done_at - submitted[number].done_at) / SECOND_NS
            sentence = f"a task of {op.resource} was not over {waited_s:.0f} s after it was submitted"
            yield make_breach(PROMISE, op.done_at, sentence, [submitted[number], op])


def _is_over(op: Line) -> bool:
    task = op.answer.task if op.answer else None
    if isinstance(task, dict):
        return task.get("outcome") not in (None, "", "None") or task.get("state") in OVER
    return task in OVER


# -- /ready


def _check_ready(history: History) -> Iterator[Breach]:
    edges = Spans(
        (edge, edge + STEADY_NS) for trouble in history.troubles.all for edge in (trouble.at, trouble.until)
    )
    cut = Spans(history.troubles.spans_of(NETWORK))
    probes = sorted(_list_probes(history), key=lambda probe: probe.at)
    asked = [probe.at for probe in probes]
    for ready in history.lines_of("ready"):
        if not ready.ready:
            continue
        beside = slice(bisect_left(asked, ready.at), bisect_right(asked, ready.done_at + BESIDE_NS))
        for probe in probes[beside]:
            if _node(probe) != ready.node:
                continue
            since, until = ready.at, probe.done_at
            if any(spans.touch(since, until) for spans in (edges, cut, history.stood, history.changing)):
                continue
            history.judged[PROMISE] += 1
            if not is_decided(probe):
                sentence = (
                    f"{ready.node} said it is ready; a probe of {probe.resource} beside it: {_say(probe)}"
                )
                yield make_breach(PROMISE, probe.done_at, sentence, [ready, probe])


# -- what the storm saw of the nodes


def _check_notes(history: History) -> Iterator[Breach]:
    for note in history.lines_of("note"):
        if note.what == "damage" and note.noticed is False:
            sentence = f"{note.node} started with {note.fault} bytes in its journal, and did not name them"
            yield make_breach(PROMISE, note.at, sentence, [note])
        elif note.what == "not ready" and _ailed_nothing_else(history, note):
            sentence = f"{note.node} was not ready {READY_NS // SECOND_NS} s after it was started: {note.why}"
            yield make_breach(PROMISE, note.at, sentence, [note])
        elif note.what == "not reached" and note.at > history.troubles.last_heal_at + HEALED_NS:
            sentence = f"{note.node} could not be reached, though everything was healed"
            yield make_breach(PROMISE, note.at, sentence, [note])
        elif note.what == "exit" and history.is_calm(note.at - HEALED_NS, note.at):
            sentence = f"{note.node} ended by itself, and nothing was amiss"
            yield make_breach(PROMISE, note.at, sentence, [note])


def _ailed_nothing_else(history: History, note: Line) -> bool:
    """Since it was started. What it was started after is open until it is ready."""
    since = note.at - READY_NS
    near = [trouble for trouble in history.troubles.all if trouble.at <= note.at and since <= trouble.until]
    alone = len(near) == 1 and near[0].targets == [note.node]
    return alone and not history.changing.touch(since, note.at)
