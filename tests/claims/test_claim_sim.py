"""Claims in the simulated world, and books that are wrong in one thing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from bursar.claims.book import ClaimBook, Draft, Floor, Plan, View
from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import Layout
from bursar.claims.model import Holding, Task
from bursar.claims.requirements import Mode, Requirement
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.claim import ClaimScenario
from bursar.sim.simulation import Simulation
from bursar.world import Delete, Operation, Set

SEEDS = int(os.environ.get("BURSAR_CLAIM_SEEDS", "120"))
PARTS = 10
CAUGHT_WITHIN = 200
"""Seeds by which a book that is wrong must have been caught: the rarest takes some 70."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    """No conflicting owners, no stale fence accepted, no task lost, nothing left behind."""
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        run_seed("claim", seed, keep=100)


def test_nothing_is_planned_on_a_name_that_has_an_owner() -> None:
    layout = Layout("things")
    book = ClaimBook(layout, "i1.1")
    book.views["a"] = View(3, Holding(phase=1, owner="t1"))
    for mode in Mode:
        task = new_task(
            id="t2", tenant="x", needs=(Requirement("a", mode),), submitted=0, is_claim=False, kept=True
        )
        assert book.grant(task, 0, book.draft()) is None


def test_a_seed_is_one_history() -> None:
    assert run_seed("claim", 7).history == run_seed("claim", 7).history


def unversioned(operations: list[Operation]) -> list[Operation]:
    return [Set(op.path, op.data) if isinstance(op, Set) else op for op in operations]


class ForgetsVersions(ClaimBook):
    """Takes a name as it was seen, whoever has it now."""

    def _write(
        self, operations: list[Operation], name: str, draft: Draft, version: int | None, holding: Holding
    ) -> None:
        super()._write(operations, name, draft, version, holding)
        operations[-1:] = unversioned(operations[-1:])


class KeepsSharers(ClaimBook):
    """Takes a name exclusively beside those who share it."""

    def _own(self, operations: list[Operation], name: str, draft: Draft, id: str, *heir: Any) -> int:
        phase = super()._own(operations, name, draft, id, *heir)
        operations[:] = [op for op in operations if not isinstance(op, Delete)]
        return phase


class NeverRaises(ClaimBook):
    """Gives every owner the same fence."""

    def _own(self, operations: list[Operation], name: str, draft: Draft, id: str, *heir: Any) -> int:
        super()._own(operations, name, draft, id, *heir)
        return 1

    def _share(self, operations: list[Operation], name: str, draft: Draft, id: str, *heir: Any) -> int:
        super()._share(operations, name, draft, id, *heir)
        return 1


class LeavesOneBehind(ClaimBook):
    """Ends a task without giving back its last name, as a crash in figure 4-5 does."""

    def _give_back(self, operations: list[Operation], task: Task, draft: Draft, *, forced: bool) -> None:
        super()._give_back(operations, task, draft, forced=forced)
        if task.needs[-1][1] == Mode.EXCLUSIVE:
            operations.pop()


class ForgetsFences(ClaimBook):
    """Lets a name that was removed begin anew."""

    def draft(self) -> Draft:
        return Draft(self.views, Floor(self.floor.version, 0))


class MissesRemovals(ClaimBook):
    """Takes a version for that of the node it saw, whatever was removed since."""

    def join(self, plans: Sequence[Plan]) -> list[Operation]:
        return [operation for plan in plans for operation in plan.operations]


class ForgetsKeys(ClaimBook):
    """Lets two claims have the same key."""

    def _take_key(self, task: Task) -> list[Operation]:
        return []

    def _close(self, operations: list[Operation], after: Task, version: int, *, busy: bool = True) -> None:
        super()._close(operations, after, version, busy=busy)
        if after.key:
            operations.remove(Delete(self.layout.key(after.key)))


FIRST: dict[type[ClaimBook], int] = {KeepsSharers: 20}
"""Where to begin with a book that is slow to run while it is not caught."""


@pytest.mark.parametrize(
    ("book", "says"),
    [
        (ForgetsVersions, "owned|guard|phase"),
        (KeepsSharers, "shared by|NotEmpty|never finished|NodeExists|not removed"),
        (NeverRaises, "guard"),
        (LeavesOneBehind, "has no record|still owned|which is"),
        (ForgetsFences, "phase fell"),
        (MissesRemovals, "owned|phase fell|not owned|guard|not removed"),
        (ForgetsKeys, "with the same key|never finished"),
    ],
)
def test_a_book_that_is_wrong_in_one_thing_is_caught(book: type[ClaimBook], says: str) -> None:
    class Wrong(ClaimScenario):
        pass

    Wrong.book = book
    for seed in (FIRST.get(book, 0), *range(CAUGHT_WITHIN)):
        try:
            Simulation("claim", Wrong(), seed, keep=50).run()
        except RunFailedError as error:
            assert any(word in str(error).split("\n")[0] for word in says.split("|")), str(error)[:300]
            return
    pytest.fail(f"{book.__name__} was not caught in {CAUGHT_WITHIN} seeds")


async def looks_at_nothing_kept(self: Instance, generation: int) -> None:
    """What a dead holder had stays as it was found."""


async def trusts_its_floor(self: Instance, names: Iterable[str]) -> None:
    """Whatever is read of a name, it was not removed meanwhile unless a transaction says so."""
    wanted, generation = list(names), self.generation
    if not self.book.is_floor_sure:
        self.book.stand_on(await self.desk.read_floor())
    views = await self.desk.read_names(wanted)
    for name, view in views.items() if generation == self.generation else ():
        self._see(name, view)
    self._kick.set()


@pytest.mark.parametrize(
    ("part", "mistake", "seeds"),
    [
        ("_look_at_kept", looks_at_nothing_kept, (132, *range(120, 150))),
        ("_refresh", trusts_its_floor, (76, *range(60, 100))),
    ],
)
def test_an_instance_that_misses_what_others_did_is_caught(
    part: str, mistake: Any, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed is the one that found it."""
    monkeypatch.setattr(Instance, part, mistake)
    with pytest.raises(RunFailedError, match=r"still owned|never finished|not removed|still shared"):
        for seed in seeds:
            run_seed("claim", seed, keep=50)
