"""Who judges a storm of tasks can say no."""

from __future__ import annotations

import time

import pytest

from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import Layout
from bursar.claims.model import State, encode
from bursar.claims.requirements import parse
from bursar.runtime.world import open_world
from bursar.world import SECOND_NS
from bursar_lab.experiments.claims.ends import Ends
from bursar_lab.experiments.claims.storm import BOUND_S, FULL, Log, Size, _judge, judge_writes

ALONE = [
    ("a", "E", 1, "t1"),
    ("a", "E", 1, "t1"),
    ("a", "S", 2, "t2"),
    ("a", "S", 2, "t3"),
    ("b", "E", 9, "t3"),
]


def test_writes_one_after_the_other_and_of_sharers_are_no_conflict() -> None:
    assert list(judge_writes(ALONE)) == []


@pytest.mark.parametrize(
    "row",
    [("a", "E", 1, "t1"), ("a", "E", 2, "t4"), ("b", "S", 9, "t5")],
    ids=["an older fence", "alone beside sharers", "a sharer beside who is alone"],
)
def test_a_conflicting_write_is_found(row: tuple[str, str, int, str]) -> None:
    assert len(list(judge_writes([*ALONE, row]))) == 1


@pytest.mark.parametrize("what", ["written again", "taken away", "recorded anew"])
async def test_an_end_that_changes_is_seen(what: str) -> None:
    world = await open_world("w1", store=f"memory://ends-{what}")
    instance = Instance(world, "things")
    await instance.start()
    task = new_task(id="t1", tenant="t", needs=parse("a:E"), state=State.RELEASED, outcome="ok", kept=True)
    path = Layout("things").released("t1")
    await world.store.create(path, encode(task))
    ends = Ends(world.store, "things")
    assert await ends.count() == 1 and ends.tasks == {"t1": task}
    await ends.read_all()
    assert not ends.changed
    if what == "written again":
        await world.store.set(path, encode(task))
    else:
        await world.store.delete(path)
    if what == "recorded anew":
        await world.store.create(path, encode(task))
    await ends.read_all()
    assert list(ends.changed) == [path]
    await instance.stop()
    await world.close()


@pytest.mark.parametrize("wrong", ["", "lost", "late", "unexpected", "conflict"])
async def test_a_storm_is_judged_by_what_became_of_each_task(wrong: str) -> None:
    world = await open_world("w1", store=f"memory://judged-{wrong}")
    log, ends, now = Log(last_fault=time.time()), Ends(world.store, "things"), time.time()
    for id in ("t1", "t2"):
        log.submitted[id], log.expected[id] = now, "die" if (id, wrong) == ("t2", "unexpected") else "use"
        ended = int((now + 5 + (id == "t2" and wrong == "late") * BOUND_S) * SECOND_NS)
        needs = parse("a:E")
        ends.tasks[id] = new_task(id=id, tenant="t", needs=needs, outcome="ok", attempt=1, ended=ended)
    if wrong == "lost":
        del ends.tasks["t2"]
    conflicts = ["a: t1 wrote after t2"] if wrong == "conflict" else []
    assert _judge(ends, conflicts, log, Size(2, 1.0, 1.0))["ok"] is not bool(wrong)
    assert _judge(ends, [], log, FULL)["ok"] is False  # not all were submitted
    await world.close()
