"""Engines bound the operations of a transaction; claims keep within the closest bound that there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bursar.claims import era
from bursar.claims.book import ClaimBook, View, check_size, count_most
from bursar.claims.courier import new_task
from bursar.claims.end_batches import EndBatches
from bursar.claims.layout import Layout
from bursar.claims.model import Task
from bursar.claims.requirements import Mode, Requirement
from bursar.errors import UsageError
from bursar.sim import store
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.stores.bounds import OPERATIONS_MIN
from bursar.world import OPERATIONS_MAX

LAYOUT = Layout("things")
FEW = 23
"""Closer than any engine's bound, as the simulated world is small."""


def make_task(count: int, mode: Mode = Mode.EXCLUSIVE) -> Task:
    needs = tuple(Requirement(f"name-{number}", mode) for number in range(count))
    return new_task(id="t1", tenant="x", needs=needs, submitted=0, is_claim=True, kept=False)


def test_a_claim_of_more_names_than_fit_is_refused_with_the_number() -> None:
    check_size(make_task(26), LAYOUT, OPERATIONS_MIN)
    check_size(make_task(17, Mode.SHARED), LAYOUT, OPERATIONS_MIN)
    with pytest.raises(UsageError, match=r"27 names take up to 61 operations .* takes 60"):
        check_size(make_task(27), LAYOUT, OPERATIONS_MIN)
    with pytest.raises(UsageError, match=r"42 names take up to 133 operations .* takes 60"):
        check_size(make_task(42, Mode.SHARED), LAYOUT, OPERATIONS_MIN)
    check_size(make_task(42, Mode.SHARED), LAYOUT, OPERATIONS_MAX)


@pytest.mark.parametrize("mode", list(Mode))
def test_no_grant_takes_more_than_is_counted(mode: Mode) -> None:
    book, task = ClaimBook(LAYOUT, "i1.1"), make_task(10, mode)
    book.views = {name: View() for name, _ in task.needs}
    plan = book.grant(task, None, book.draft())
    assert plan is not None and len(book.join([plan])) <= count_most(task)


def test_instances_keep_within_the_closest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set-up, batches of grants and of ends, takeovers: under every fault, nobody is refused for it."""
    monkeypatch.setattr(store, "OPERATIONS_MAX", FEW)
    for seed in range(6):
        run_seed("claim", seed, keep=100)


def test_instances_that_do_not_count_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: as if everything fitted everywhere."""
    monkeypatch.setattr(store, "OPERATIONS_MAX", FEW)
    monkeypatch.setattr(era, "fit", lambda store, most, operations_each: most)
    with pytest.raises(RunFailedError, match=f"this store takes {FEW}"):
        run_seed("claim", 0, keep=100)


def test_ends_go_together_as_far_as_the_store_takes_them() -> None:
    world = SimpleNamespace(store=SimpleNamespace(operations_max=OPERATIONS_MIN))
    batches: Any = EndBatches(SimpleNamespace(world=world), None)  # type: ignore[arg-type]
    batches._ends = [SimpleNamespace(plan=SimpleNamespace(operations=[None] * 11)) for _ in range(8)]
    full, batch = batches._cut()
    assert full and len(batch) == 5
    world.store.operations_max = OPERATIONS_MAX
    full, batch = batches._cut()
    assert not full and len(batch) == 8
