"""The book's plans, one at a time: what a name will be when the store has carried them out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bursar.claims.book import ClaimBook, Heir, Plan, View, measure
from bursar.claims.courier import new_task
from bursar.claims.layout import Layout
from bursar.claims.model import Holding, State, Task
from bursar.claims.requirements import Mode, parse
from bursar.world import Check, Create, Set

HOLDINGS = {
    "mine": Holding(phase=4, owner="t"),
    "ours": Holding(phase=7, shared=True),
    "lent": Holding(phase=9, owner="parent"),
}


@pytest.fixture
def book() -> ClaimBook:
    book = ClaimBook(Layout("things"), "i1.1")
    book.views = {name: View(1, holding) for name, holding in HOLDINGS.items()}
    return book


def a_task(**fields: Any) -> Task:
    """It runs, and has an exclusive name and a shared one."""
    task = new_task(id="t", tenant="x", needs=parse("mine:E, ours:S"), submitted=0, kept=True)
    return msgspec.structs.replace(task, state=State.RUNNING, attempt=1, phases=(4, 7), **fields)


def phases(plan: Plan) -> dict[str, int]:
    """Of the names that it writes."""
    return {name: holding.phase for name, (_, holding) in plan.draft.changed.items()}


def test_a_removal_by_force_makes_every_fence_of_the_task_an_old_one(book: ClaimBook) -> None:
    for plan in (book.depose(a_task(), 3), book.requeue(a_task(), 3)):
        assert phases(plan) == {"mine": 5, "ours": 8}


def test_a_subtask_that_is_removed_by_force_loses_its_parents_name_too(book: ClaimBook) -> None:
    subtask = a_task(parent="parent", inherited=(("lent", "E"),), inherited_phases=(9,))
    for plan in (book.depose(subtask, 3), book.requeue(subtask, 3)):
        assert phases(plan) == {"mine": 5, "ours": 8, "lent": 10}


def test_whoever_ends_by_itself_writes_no_fence_anew(book: ClaimBook) -> None:
    """Nobody is left that a guard would have to refuse; the next owner has a later phase anyway."""
    assert phases(book.finish(a_task(), 3, "ok")) == {"mine": 4}


def test_an_operation_takes_its_path_and_what_it_writes() -> None:
    assert [measure(each) for each in (Set("/a", b"xyz"), Create("/a", b"xyz"), Check("/a"))] == [5, 5, 2]


def test_the_first_sharer_notes_for_whom_the_name_is_next_and_those_after_it_write_nothing(
    book: ClaimBook,
) -> None:
    book.views["free"] = View(1, Holding(phase=3))
    heirs = {name: Heir("heir", 5, Mode.EXCLUSIVE) for name in ("free", "ours")}
    task = new_task(id="u", tenant="x", needs=parse("free:S, ours:S"), submitted=0, kept=True)
    plan = book.grant(task, 0, book.draft(), heirs)
    assert plan is not None and phases(plan) == {"free": 4}
    assert plan.draft.changed["free"][1].reserved == "heir"
