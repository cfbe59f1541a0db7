"""All that a run wrote down, sorted by what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from bursar_lab.storm.checker.applied import list_changes
from bursar_lab.storm.checker.grants import Grant, Told
from bursar_lab.storm.checker.lines import CHANGES, OTHERS, Line
from bursar_lab.storm.checker.policies import Policy
from bursar_lab.storm.checker.quantities import SECOND_NS
from bursar_lab.storm.checker.spans import Spans, Waits
from bursar_lab.storm.checker.troubles import FOREVER, Troubles

MARGIN_NS = SECOND_NS // 20
"""After the machine stood still everybody has some catching up to do."""

HARDLY_NS = SECOND_NS
"""Nobody is given up for standing still for less."""


class History:
    """Operations are whole: a `begin` and the line that ends it are one, with the second one's fields."""

    def __init__(
        self, lines: Iterable[Line], policies: Mapping[str, Policy], about: Mapping[str, Any] | None = None
    ) -> None:
        self.about = about or {}
        self.operations: list[Line] = []
        self.others: dict[str, list[Line]] = {}
        self.judged: Counter[str] = Counter()
        """How many things each promise was judged by: a check that had nothing to look at shows here."""
        self.began_at, self.over_at = FOREVER, 0
        self.last_at: dict[str, int] = {}
        """The last moment that a file speaks of, by the name of its writer."""
        self._begun: dict[tuple[str, int | None], Line] = {}
        for line in lines:
            self._add(line)
        self.operations += self._begun.values()
        self.changes = list_changes(self.others, policies)

    def _add(self, line: Line) -> None:
        if line.at:
            self.began_at = min(self.began_at, line.at)
            self.over_at = max(self.over_at, line.done_at)
            writer = name_of(line)
            self.last_at[writer] = max(self.last_at.get(writer, 0), line.done_at)
        if line.op == "begin":
            self._begun[line.file, line.n] = line
        elif line.op in OTHERS:
            self.others.setdefault(line.op, []).append(line)
        else:
            if line.n is not None:
                self._begun.pop((line.file, line.n), None)
            self.operations.append(line)

    def lines_of(self, op: str) -> list[Line]:
        """Lines that are no operation, by what they are, in the order of time."""
        return sorted(self.others.get(op, []), key=lambda line: line.at)

    @cached_property
    def grants(self) -> list[Grant]:
        return Told(self.operations).grants

    @cached_property
    def clients(self) -> set[str]:
        return {name_of(op) for op in self.operations}

    @cached_property
    def nodes(self) -> set[str]:
        return {node for op in self.operations for node in op.nodes or ()}

    @cached_property
    def stood(self) -> Spans:
        """When the machine itself stood still."""
        return Spans((line.at, line.done_at + MARGIN_NS) for line in self.others.get("stood", []))

    @cached_property
    def starved(self) -> dict[str, Waits]:
        """When a process was ready to run and had no processor, by its name."""
        waits: dict[str, list[tuple[int, int, int]]] = {}
        for line in self.others.get("starved", []):
            who = self._find_slot(line.who or "")
            waits.setdefault(who, []).append((line.at, line.done_at, line.ns or 0))
        return {name: Waits(found) for name, found in waits.items()}

    def _find_slot(self, who: str) -> str:
        """Clients ask the node "b", whatever the name ("b-2") of the one that has its place now."""
        slot = slot_of(who)
        return slot if slot in self.nodes else who

    def still_ns(self, op: Line, until: int, since: int | None = None) -> int:
        """How much of an operation the machine kept from going on: it stood, the client had no processor,
        or, over HTTP, where the node keeps the time, the node had none."""
        # Who stood with the machine had no processor either: that is one reason, not two.
        at = op.at if since is None else since
        own = max(self.stood.overlap(at, until), self._starved_ns(name_of(op), at, until))
        return own + max((self._starved_ns(node, at, until) for node in keepers_of(op)), default=0)

    def _starved_ns(self, name: str, since: int, until: int) -> int:
        return self.starved[name].sum_within(since, until) if name in self.starved else 0

    @cached_property
    def troubles(self) -> Troubles:
        return Troubles(self.lines_of("fault"), self.lines_of("heal"), self.clients)

    @cached_property
    def changing(self) -> Spans:
        """When an operator changed something; what never ended may go on."""
        lines = [line for op in CHANGES for line in self.others.get(op, [])]
        return Spans((line.at, FOREVER if line.end is None else line.end) for line in lines)

    @property
    def stood_ns(self) -> int:
        """For how long it did, without the catching up."""
        return Spans((line.at, line.done_at) for line in self.others.get("stood", [])).total

    def is_calm(self, since: int, until: int) -> bool:
        """No fault, no change, and the machine hardly stood still."""
        if self.troubles.spans.touch(since, until) or self.changing.touch(since, until):
            return False
        return self.stood.overlap(since, until) <= HARDLY_NS

    def grants_of(self, kind: str) -> dict[str, list[Grant]]:
        """What was told of each resource of a kind, without what was lent in place of bursar."""
        found: dict[str, list[Grant]] = {name: [] for name in self.changes.all_resources(kind)}
        for grant in self.grants:
            if grant.answer.fallback is None and grant.resource in found:
                found[grant.resource].append(grant)
        return found


def slot_of(name: str) -> str:
    """Of one that came back as another: "b" of "b-2"."""
    slot, _, life = name.partition("-")
    return slot if life.isdigit() else name


def keepers_of(op: Line) -> list[str]:
    """The nodes that keep an operation's time: over HTTP the one that answered, or any that was asked."""
    if op.via != "http":
        return []
    return [op.answer.node] if op.answer is not None and op.answer.node else op.nodes or []


def name_of(line: Line) -> str:
    """Who wrote it: its file without the ending."""
    return line.file.removesuffix(".jsonl")
