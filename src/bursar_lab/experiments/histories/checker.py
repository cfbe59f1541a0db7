"""Whether a history could have come from one store that does one operation at a time.

An operation has the times of its call and of its answer, on one clock for all; without an answer it may have
been done at any time after its call, or never. Judged are, each by itself:

    registers   writes of values that are written once, and reads that began with a sync: there must be an
                order, with every operation between its call and its answer, in which each read tells the
                last value written before it (Wing and Gong's search, one register at a time)
    glances     plain reads may lag, but what one session saw of a register never goes back
    numbers     sequential names: no number twice, and whoever asks after another was answered gets a higher
    holds       an exclusive node, while its holder's session is trusted: never two at once, and each later
                holder has a later revision

Nothing here is bursar's.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FOREVER = 2**63


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: write, read, glance, number or hold. `value`: what was written or seen, the number, the
    revision of the hold. `version`: of a glance. `end` of a hold: until when it was trusted or let go."""

    kind: str
    key: str
    start: int
    end: int | None
    value: int
    version: int = 0
    session: str = ""


def judge(events: Iterable[Event]) -> list[str]:
    """What is wrong; nothing if all is well."""
    by_kind: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        register = event.kind in ("write", "read")
        by_kind["register" if register else event.kind][event.key].append(event)
    found: list[str] = []
    for key, of_key in by_kind["register"].items():
        found += _judge_register(key, of_key)
    for key, of_key in by_kind["glance"].items():
        found += _judge_glances(key, of_key)
    for key, of_key in by_kind["number"].items():
        found += _judge_numbers(key, of_key)
    for key, of_key in by_kind["hold"].items():
        found += _judge_holds(key, of_key)
    return found


def _judge_register(key: str, events: Sequence[Event]) -> list[str]:
    read = {event.value for event in events if event.kind == "read"}
    # A write without an answer that nobody read needs no place in the order.
    kept = [e for e in events if e.end is not None or (e.kind == "write" and e.value in read)]
    kept.sort(key=lambda event: event.start)
    stuck = _search(kept)
    return [] if stuck is None else [f"register {key}: no order explains {stuck}"]


def _search(events: Sequence[Event]) -> Event | None:
    """None if there is an order; else the event that the longest try ended before. A state is (the first that
    is not placed, those after it that are, the value); each is tried once."""
    stack: list[tuple[int, frozenset[int], int]] = [(0, frozenset(), 0)]
    tried: set[tuple[int, frozenset[int], int]] = set()
    furthest = 0
    while stack:
        state = stack.pop()
        if state in tried:
            continue
        tried.add(state)
        first, placed, value = state
        furthest = max(furthest, first)
        if all(event.end is None for at, event in enumerate(events[first:], first) if at not in placed):
            return None
        stack += _place_next(events, first, placed, value)
    return events[furthest]


def _place_next(
    events: Sequence[Event], first: int, placed: frozenset[int], value: int
) -> Iterable[tuple[int, frozenset[int], int]]:
    """Every event that may come next: it was called before any that is left was answered."""
    answered = FOREVER
    at = first
    while at < len(events) and events[at].start <= answered:
        event = events[at]
        if at not in placed:
            answered = min(answered, FOREVER if event.end is None else event.end)
            if event.kind == "write" or event.value == value:
                after = placed | {at}
                begin = first
                while begin in after:
                    begin += 1
                rest = frozenset(other for other in after if other > begin)
                yield begin, rest, event.value if event.kind == "write" else value
        at += 1


def _judge_glances(key: str, events: Sequence[Event]) -> list[str]:
    last: dict[str, Event] = {}
    found = []
    for event in sorted(events, key=lambda event: event.start):
        before = last.get(event.session)
        if before is not None and (before.end or FOREVER) <= event.start and event.version < before.version:
            found.append(f"register {key}: a session saw {before} and then {event}")
        last[event.session] = event
    return found


def _judge_numbers(key: str, events: Sequence[Event]) -> list[str]:
    known = [event for event in events if event.end is not None]
    found = []
    numbers = [event.value for event in known]
    if len(set(numbers)) != len(numbers):
        found.append(f"numbers of {key}: one was given twice")
    highest, asked = -1, sorted(known, key=lambda event: event.start)
    answered = sorted(known, key=lambda event: event.end or 0)
    done = 0
    for event in asked:
        while done < len(answered) and (answered[done].end or 0) < event.start:
            highest = max(highest, answered[done].value)
            done += 1
        if event.value < highest:
            found.append(f"numbers of {key}: {event} came after {highest} was answered")
    return found


def _judge_holds(key: str, events: Sequence[Event]) -> list[str]:
    found = []
    ordered = sorted(events, key=lambda event: event.start)
    for before, after in itertools.pairwise(ordered):
        until = FOREVER if before.end is None else before.end
        if after.start < until and after.session != before.session:
            found.append(f"{key}: held twice, {before} and {after}")
        if after.value <= before.value:
            found.append(f"{key}: {after} has no later revision than {before}")
    return found
