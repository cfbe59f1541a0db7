"""What clients were told that they have, and what came back of it.

An `acquire_all` has a line for each of its resources (`part_of`), as if each had been acquired alone.
What was *surely used* of a grant is the least that fits all that was said of it: if a settlement for 30
of 100 was sent and its answer lost, 30; if a settlement was refused as wrong use, it changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bursar_lab.storm.checker.lines import ACQUIRING, ENDING, Answer, Line

WITHOUT_EFFECT = frozenset({"usage", "denied", "refused"})
"""Answers to a settlement or a release that say that nothing was changed."""


@dataclass(slots=True)
class Grant:
    op: Line
    answer: Answer
    resource: str
    tenant: str
    amount: int
    used: int
    """What was surely used of it: all, unless something was given back."""
    ended_at: int | None = None
    """When its holder began to let go of it."""
    ends: list[Line] = field(default_factory=list)
    """The lines that say that it was settled or released, and is."""

    @property
    def file(self) -> str:
        return self.op.file

    @property
    def line(self) -> int:
        return self.op.line

    @property
    def at(self) -> int:
        return self.op.at

    @property
    def end(self) -> int:
        return self.op.done_at

    @property
    def period(self) -> int:
        return self.answer.period or 0


class Told:
    """All grants, to be found by the line that acquired them and by their id."""

    def __init__(self, operations: Iterable[Line]) -> None:
        self.grants: list[Grant] = []
        self._by_number: dict[tuple[str, int | None], list[Grant]] = {}
        self._by_id: dict[tuple[str, str], list[Grant]] = {}
        endings = []
        for op in operations:
            if op.op in ENDING:
                endings.append(op)
            elif op.op in ACQUIRING and op.resource and op.answer and op.answer.is_ == "grant":
                self._add(op, op.answer)
        for op in endings:
            self._end(op)

    def _add(self, op: Line, answer: Answer) -> None:
        amount = op.amount or 0 if answer.amount is None else answer.amount
        used = amount if answer.used is None else min(amount, answer.used)
        grant = Grant(op, answer, op.resource or "", op.tenant or "", amount, used)
        self.grants.append(grant)
        for number in {op.n, op.part_of} - {None}:
            self._by_number.setdefault((op.file, number), []).append(grant)
        if answer.id:
            self._by_id.setdefault((grant.resource, answer.id), []).append(grant)

    def _end(self, op: Line) -> None:
        if op.task is not None or (op.answer is not None and op.answer.is_ in WITHOUT_EFFECT):
            return
        own = [] if op.grant is None else self._by_number.get((op.file, op.grant), [])
        for grant in own:
            grant.ended_at = op.at if grant.ended_at is None else min(grant.ended_at, op.at)
        ids = {(grant.resource, grant.answer.id) for grant in own if grant.answer.id}
        if op.id:
            ids.add((op.resource or "", op.id))
        # One acquisition may have been told several times: what is said of one is said of all.
        told = [*own, *(grant for named in ids for grant in self._by_id.get(named, ()))]
        for grant in told:
            _give_back(grant, op)
        if op.answer is not None and op.answer.is_ == "done":
            for grant in {id(grant): grant for grant in told}.values():
                grant.ends.append(op)


def _give_back(grant: Grant, op: Line) -> None:
    used = op.used.get(grant.resource) if isinstance(op.used, dict) else op.used
    if used is not None:
        grant.used = min(grant.used, used)
