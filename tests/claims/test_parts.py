"""Subtasks: names of their parent's, one after the other; and the parent that waits for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.book import ClaimBook, Draft
from bursar.claims.courier import Instance
from bursar.claims.fences import Guard, StaleFence
from bursar.claims.model import Task
from bursar.errors import Refused, UsageError
from bursar.policy.values import Table
from bursar.sim.errors import RunFailedError
from bursar.world import Operation


class Family:
    """A parent that runs, and its subtasks."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.things = stage.resources["n1"]
        self.id = ""

    async def begin(self, names: str, seconds: float = 30) -> None:
        self.id = await self.submit(names, seconds)
        await self.stage.until(lambda: self.find(self.id) is not None and self.state(self.id) == "running")

    async def submit(self, names: str, seconds: float, **options: Any) -> str:
        payload = str(seconds).encode()
        id: str = await self.things.verb("submit", tenant="t", names=names, payload=payload, **options)
        return id

    async def part(self, names: str, seconds: float = 1) -> str:
        return await self.submit(names, seconds, parent=self.id)

    def find(self, id: str) -> Task | None:
        return next((task for task in self.stage.records() if task.id == id), None)

    def state(self, id: str) -> str:
        task = self.find(id)
        return "over" if task is None else str(task.state)

    @property
    def instance(self) -> Instance:
        task = self.find(self.id)
        assert task is not None
        return self.stage.decider(task.holder.partition(".")[0]).instance

    def fences(self, id: str) -> dict[str, int]:
        task = self.find(id)
        assert task is not None
        return self.instance.fences_of(task)


def test_a_subtask_uses_what_its_parent_holds_and_its_siblings_wait() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E, b:S, c:E")
        first, second = await family.part("a:E, b:S"), await family.part("a:E")
        beside = await family.part("b:S, c:E")
        await stage.until(lambda: family.state(beside) == family.state(first) == "running")
        assert family.state(second) == "pending", "it would have a too"
        with pytest.raises(Refused):
            await family.things.claim(("a:S",), "other")
        await stage.until(lambda: family.state(second) == "running", 3)
        assert family.state(first) == "over"
        found = await family.things.verb("read", id=second)
        assert found["needs"] == ["a:E"]

    play(act, ("n1", "n2"), works=True)


def test_guards_take_whoever_was_given_the_name_last() -> None:
    async def act(stage: Stage) -> None:
        family, guard = Family(stage), Guard()
        await family.begin("a:E, b:S")
        before = family.fences(family.id)
        guard.check("a", before["a"])
        part = await family.part("a:E, b:S", 2)
        await stage.until(lambda: family.state(part) == "running")
        within = family.fences(part)
        assert set(within) == {"a", "b"} and within["b"] == before["b"]
        guard.check("a", within["a"])
        with pytest.raises(StaleFence):
            guard.check("a", before["a"])
        after = await family.instance.wait_for_subtasks(family.id, 1, [part])
        guard.check("a", after["a"])
        with pytest.raises(StaleFence):
            guard.check("a", within["a"])
        assert family.fences(family.id) == after

    play(act, works=True)


def test_a_parent_that_waits_takes_no_place_of_what_is_done() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E")
        instance = family.instance
        instance.book.running_max = 1
        part = await family.part("a:E")
        await stage.sleep(1)
        assert family.state(part) == "pending"
        took, _ = await stage.timed(instance.wait_for_subtasks(family.id, 1, [part]))
        assert 1 <= took < 1.5 and family.state(part) == "over"
        assert list(instance.book.running) == [family.id]

    play(act, works=True)


def test_the_parent_is_over_after_its_subtasks() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E", 1)
        part = await family.part("a:E", 3)
        await stage.sleep(2)
        assert family.state(family.id) in ("running", "done") and family.state(part) == "running"
        await stage.until(lambda: not stage.records(), 4)

    play(act, works=True)


def test_subtasks_go_with_a_parent_whose_names_are_taken() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E")
        running, waiting = await family.part("a:E", 20), await family.part("a:E", 20)
        await stage.until(lambda: family.state(running) == "running")
        await family.things.verb("force_release", of="a")
        await stage.until(lambda: not stage.records(), 5)
        for id in (running, waiting):
            found = await family.things.verb("read", id=id)
            assert found["outcome"] in ("deposed", "failed")
        async with family.things.claim(("a:E",), "other"):
            pass

    play(act, works=True)


def test_a_subtask_has_nothing_that_its_parent_has_not() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:S, gpu:1")
        for names in ("a:E", "b:S"):
            with pytest.raises(Refused, match="does not hold"):
                await family.part(names)
        with pytest.raises(UsageError, match="no counted"):
            await family.part("a:S, gpu:1")
        part = await family.part("a:S", 5)
        await stage.until(lambda: family.state(part) == "running")
        with pytest.raises(UsageError, match="no subtask itself"):
            await family.submit("a:S", 1, parent=part)
        with pytest.raises(Refused, match="does not run"):
            await family.submit("a:S", 1, parent="t-nobody")

    play(act, works=True, counted=Table({"gpu": 1}))


def test_a_worker_that_dies_with_both_leaves_neither_names_nor_subtasks() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E", 4)
        part = await family.part("a:E", 2)
        await stage.until(lambda: family.state(part) == "running")
        family.things = stage.resources["n2"]
        for name in ("n1", "n2"):
            if family.instance is stage.decider(name).instance:
                stage.go_down(name, 60)
                break
        await stage.until(lambda: not stage.records(), 60)
        assert not stage.marks()

    play(act, ("n1", "n2"), works=True)


# Books that are wrong

borrow, give_back = ClaimBook._borrow, ClaimBook._give_back


def keeps_its_phase(
    self: ClaimBook, operations: list[Operation], task: Task, draft: Draft
) -> tuple[int, ...]:
    """A subtask writes with its parent's fence."""
    phases = borrow(self, operations, task, draft)
    return tuple(phase - (mode == "E") for phase, (_, mode) in zip(phases, task.inherited, strict=True))


def lets_its_parent_end(
    self: ClaimBook, operations: list[Operation], task: Task, draft: Draft
) -> tuple[int, ...]:
    """Nothing says at its parent that a subtask runs."""
    phases = borrow(self, operations, task, draft)
    operations[:] = [op for op in operations if not is_below_its_parent(self, op, task)]
    return phases


def says_nothing_at_its_parent(
    self: ClaimBook, operations: list[Operation], task: Task, draft: Draft, *, forced: bool
) -> None:
    give_back(self, operations, task, draft, forced=forced)
    operations[:] = [op for op in operations if not is_below_its_parent(self, op, task)]


def is_below_its_parent(book: ClaimBook, operation: Operation, task: Task) -> bool:
    return bool(task.parent) and operation.path == book.layout.subtask(task.parent, task.id)


def test_a_fence_that_does_not_grow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimBook, "_borrow", keeps_its_phase)
    with pytest.raises(RunFailedError, match=r"StaleFence|DID NOT RAISE|Failed"):
        test_guards_take_whoever_was_given_the_name_last()


def test_a_parent_that_ends_before_its_subtasks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimBook, "_borrow", lets_its_parent_end)
    monkeypatch.setattr(ClaimBook, "_give_back", says_nothing_at_its_parent)
    with pytest.raises(RunFailedError, match="AssertionError"):
        test_the_parent_is_over_after_its_subtasks()
