"""All promises together: what is written to `verdict.json`, and what people read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bursar_lab.storm.checker import (
    answers,
    claims,
    fallbacks,
    liveness,
    metrics,
    pools,
    quotas,
    rates,
    reservations,
    rights,
    shares,
)
from bursar_lab.storm.checker.breaches import Breach
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import HistoryError
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.reading import read_folder

PROMISES: dict[str, Callable[[History], list[Breach]]] = {
    module.PROMISE: module.check
    for module in (
        answers,
        rates,
        reservations,
        pools,
        shares,
        fallbacks,
        quotas,
        claims,
        liveness,
        rights,
        metrics,
    )
}
TIMED = frozenset({answers.PROMISE, reservations.PROMISE, liveness.PROMISE})
"""Promises about time. Where the machine stood still for too long nothing can be said of them."""

STOOD_MAX = 0.05
LISTED_MAX = 50
RIGHT, WRONG, NOT_JUDGED = "right", "wrong", "not judged"
FILE = "verdict.json"


@dataclass(frozen=True)
class Verdict:
    is_: str
    why: str
    breaches: list[Breach]
    """In the order in which they could be seen."""
    operations: dict[str, Counter[str]] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stood_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return self.is_ == RIGHT


def judge_folder(folder: Path) -> Verdict:
    """Judge a run's folder and leave the verdict in it."""
    try:
        verdict = judge(read_folder(folder))
    except HistoryError as error:
        verdict = Verdict(NOT_JUDGED, str(error), [])
    (folder / FILE).write_text(json.dumps(describe(verdict), indent=2) + "\n")
    return verdict


def judge(history: History) -> Verdict:
    breaches = [breach for check in PROMISES.values() for breach in check(history)]
    seconds = max(0, history.over_at - history.began_at) / SECOND_NS
    stood = history.stood_ns / SECOND_NS
    stood_too_long = seconds > 0 and stood > STOOD_MAX * seconds
    if stood_too_long:
        breaches = [breach for breach in breaches if breach.promise not in TIMED]
    breaches.sort(key=lambda breach: breach.at)
    is_, why = _decide(history, breaches, stood_too_long, stood, seconds)
    judged = {name: history.judged[name] for name in PROMISES}
    return Verdict(is_, why, breaches, answers.count(history), judged, seconds, stood, _list_notes(history))


def _decide(
    history: History, breaches: list[Breach], stood_too_long: bool, stood: float, seconds: float
) -> tuple[str, str]:
    if breaches:
        return WRONG, breaches[0].sentence
    if not history.operations:
        return NOT_JUDGED, "no client asked for anything"
    if stood_too_long:
        part = 100 * stood / seconds
        return (
            NOT_JUDGED,
            f"the machine stood still for {part:.1f} % of the time; at most 5 % may be left out",
        )
    return RIGHT, ""


def _list_notes(history: History) -> list[str]:
    idle = [name for name in PROMISES if not history.judged[name]]
    notes = [f"nothing to judge: {', '.join(idle)}"] if idle else []
    waits = {name: found.total / SECOND_NS for name, found in history.starved.items()}
    if waits:
        name = max(waits, key=waits.__getitem__)
        notes.append(f"{name} waited longest for a processor: {waits[name]:.1f} s")
    harness = history.others.get("harness", [])
    if harness:
        first = harness[0]
        notes.append(
            f"the storm itself failed {len(harness)} times, first in history/{first.file}:{first.line}"
        )
    return notes


def describe(verdict: Verdict) -> dict[str, Any]:
    """As `verdict.json` has it."""
    return {
        "verdict": verdict.is_,
        "why": verdict.why,
        "seconds": round(verdict.seconds, 3),
        "seconds_left_out": round(verdict.stood_seconds, 3),
        "breaches_by_promise": dict(Counter(breach.promise for breach in verdict.breaches)),
        "breaches": [_describe_breach(breach) for breach in verdict.breaches[:LISTED_MAX]],
        "operations": {asked: dict(counts) for asked, counts in sorted(verdict.operations.items())},
        "judged": verdict.judged,
        "notes": verdict.notes,
    }


def _describe_breach(breach: Breach) -> dict[str, Any]:
    lines = [{"file": place.file, "line": place.line} for place in breach.places]
    return {"promise": breach.promise, "at": breach.at, "sentence": breach.sentence, "lines": lines}


def write_report(verdict: Verdict) -> Iterator[str]:
    """For people: the first wrong line first."""
    yield f"{verdict.is_}{verdict.why and f': {verdict.why}'}"
    if verdict.breaches:
        first = verdict.breaches[0]
        yield from (f"  {place}" for place in first.places)
        by_promise = Counter(breach.promise for breach in verdict.breaches)
        yield "breaches: " + ", ".join(f"{name} {count}" for name, count in by_promise.most_common())
        for breach in _first_of_each(verdict.breaches[1:], {first.promise}):
            yield f"  {breach.promise}: {breach.sentence} ({breach.places[0]})"
    for asked, counts in sorted(verdict.operations.items()):
        yield f"{asked}: " + ", ".join(f"{count} {answer}" for answer, count in counts.most_common())
    judged = ", ".join(f"{name} {count}" for name, count in verdict.judged.items() if count)
    yield f"judged: {judged or 'nothing'}"
    yield from verdict.notes
    yield f"{verdict.seconds:.1f} s, of which {verdict.stood_seconds:.1f} s left out: the machine stood still"


def _first_of_each(breaches: list[Breach], seen: set[str]) -> Iterator[Breach]:
    """The first breach of each promise that was not seen yet."""
    for breach in breaches:
        if breach.promise not in seen:
            seen.add(breach.promise)
            yield breach
