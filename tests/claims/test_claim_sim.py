"""Claims in the simulated world, and books that are wrong in one thing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from bursar.claims.book import ClaimBook, Draft, Floor, Plan, View
from bursar.claims.cancels import Cancels
from bursar.claims.courier import new_task
from bursar.claims.layout import Layout
from bursar.claims.model import Holding, State, Task, encode
from bursar.claims.names import Names
from bursar.claims.requirements import Mode, Requirement
from bursar.claims.takeover import Takeover
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


class KeepsNamesOfWhatFailed(ClaimBook):
    """Lets a task that failed wait with all that it held."""

    def try_again(self, task: Task, *how: Any) -> Plan:
        plan = super().try_again(task, *how)
        plan.operations[:] = plan.operations[-1:]
        plan.draft.changed.clear()
        return plan


class CountsNoFailures(ClaimBook):
    """Tries a task that fails again for ever."""

    def try_again(self, task: Task, version: int, *how: Any) -> Plan:
        plan = super().try_again(task, version, *how)
        assert plan.after is not None
        plan.after = msgspec.structs.replace(plan.after, failures=task.failures)
        plan.operations[-1] = Set(self.layout.task(task.id), encode(plan.after), version)
        return plan


class RetriesUnasked(ClaimBook):
    """Writes that a task waits again, whatever became of it meanwhile."""

    def try_again(self, task: Task, *how: Any) -> Plan:
        plan = super().try_again(task, *how)
        plan.operations[:] = unversioned(plan.operations[-1:])
        return plan


FIRST: dict[type[ClaimBook], int] = {KeepsSharers: 0}
"""Where to begin with a book that is slow to run while it is not caught."""


@pytest.mark.parametrize(
    ("book", "says"),
    [
        (ForgetsVersions, "owned|guard|phase"),
        (KeepsSharers, "shared by|NotEmpty|never finished|NodeExists|not removed"),
        (NeverRaises, "guard"),
        (LeavesOneBehind, "has no record|still owned|which is"),
        (ForgetsFences, "phase fell"),
        (MissesRemovals, "owned|phase fell|not owned|guard|not removed|are used and"),
        (ForgetsKeys, "with the same key|never finished"),
        (KeepsNamesOfWhatFailed, "which is pending"),
        (CountsNoFailures, "not removed|never finished|failures|its work|still shared"),
        (RetriesUnasked, "which is pending"),
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


async def looks_at_nothing_kept(self: Takeover, generation: int) -> None:
    """What a dead holder had stays as it was found."""


async def leaves_the_request(self: Cancels, id: str) -> None:
    """Whoever asked that a task be cancelled has asked for good."""
    self._asked.pop(id, None)


async def sweeps_nothing(self: Cancels) -> None:
    """Whoever ends a task will have removed what was asked of it."""


@pytest.mark.parametrize(
    ("mistake", "seeds"),
    [({"end": leaves_the_request}, range(30)), ({"sweep": sweeps_nothing}, (16, *range(150)))],
)
def test_a_request_to_cancel_that_outlives_its_task_is_caught(
    mistake: dict[str, Any], seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, wrong in mistake.items():
        monkeypatch.setattr(Cancels, name, wrong)
    with pytest.raises(RunFailedError, match="outlived their tasks"):
        for seed in seeds:
            run_seed("claim", seed, keep=50)


def test_an_instance_that_tries_again_what_was_cancelled_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops_only(self: Cancels) -> None:
        for id in list(self._asked):
            mine = self._book.mine.get(id)
            if mine is not None and mine.task.state is State.RUNNING:
                self.stop(id)

    monkeypatch.setattr(Cancels, "look", stops_only)
    monkeypatch.setattr(Cancels, "is_asked", lambda self, id: False)
    with pytest.raises(RunFailedError, match="begun anew, and was cancelled long before"):
        for seed in range(30):
            run_seed("claim", seed, keep=50)


async def trusts_its_floor(self: Names, names: Iterable[str]) -> None:
    """Whatever is read of a name, it was not removed meanwhile unless a transaction says so."""
    book, wanted, generation = self._book, list(names), self._member.generation
    if not book.plans.is_floor_sure:
        book.plans.stand_on(await self._reader.read_floor())
    views = await self._reader.read_names(wanted)
    for name, view in views.items() if generation == self._member.generation else ():
        book.see(name, view)
    self.follow_again(views)
    book.changed.set()


@pytest.mark.parametrize(
    ("part", "method", "mistake", "seeds"),
    [
        (Takeover, "_look_at_kept", looks_at_nothing_kept, (148, *range(120, 150))),
        (Names, "refresh", trusts_its_floor, (194, *range(160, 195))),
    ],
)
def test_an_instance_that_misses_what_others_did_is_caught(
    part: type, method: str, mistake: Any, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed is the one that found it."""
    monkeypatch.setattr(part, method, mistake)
    says = r"still owned|never finished|not removed|still shared|phase fell"
    with pytest.raises(RunFailedError, match=says):
        for seed in seeds:
            run_seed("claim", seed, keep=50)
