"""Learned execution times (section 6.2.5 of the thesis): what an order that knows them gains, and how well
one can say when a task starts.

Tasks of the benchmarks have kinds: how long one takes says its kind, give or take (each is drawn around the
mean of its kind, so that no estimate can be exact). What is learned is learned from the tasks of another set,
as they would be in an earlier run. "Known" is the same order, told each task's own time.
"""

from __future__ import annotations

import asyncio
import random
import statistics as averages
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bursar.claims.courier import Instance, new_task
from bursar.claims.durations import Durations, Running, Waiting, forecast
from bursar.claims.queue import Order, Queue, conflict_order, learned_order, release_order
from bursar.claims.requirements import Mode
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.runtime.world import open_world
from bursar_lab.experiments.claims.simulation import Timeline, run_fifo_locks
from bursar_lab.experiments.claims.workloads import Job, draw_hierarchy, draw_rectangles

Findings = dict[str, Any]
Row = dict[str, Any]
Expect = Callable[[int], float]

SPREAD = 0.25
"""Of the logarithm of a task's time, around that of its kind."""

SETS, QUICK_SETS = 20, 4
LIVE_SCALE = 0.05
LIVE_TASKS = 120
ASKED_EVERY = 10


def learned(out: Path, quick: bool) -> Findings:
    """Completion over the optimum (of a hierarchy: over a bound from below), and the error of forecasts."""
    sets = QUICK_SETS if quick else SETS
    rows = [_compare(name, seed) for name in ("rectangular", "hierarchical") for seed in range(sets)]
    table = [_average(name, rows) for name in ("rectangular", "hierarchical")]
    live = asyncio.run(_run_live(draw_hierarchy(0, LIVE_TASKS // (2 if quick else 1))))
    findings: Findings = {"table": table, "live": live, "rows": rows}
    findings["ok"] = all(
        line["learned"] <= line["fifo"] and line["learned"] <= 1.05 * line["bursar"] for line in table
    )
    return findings


def _draw(name: str, seed: int) -> tuple[list[Job], float]:
    if name == "rectangular":
        return draw_rectangles(seed, 10)
    jobs = draw_hierarchy(seed, 300)
    return jobs, find_bound(jobs)


def find_bound(jobs: Sequence[Job]) -> float:
    """No schedule is shorter: what needs a name exclusively goes one after the other."""
    alone: dict[str, float] = {}
    beside: dict[str, float] = {}
    for job in jobs:
        for name, mode in job.needs:
            if mode is Mode.EXCLUSIVE:
                alone[name] = alone.get(name, 0) + job.duration
            else:
                beside[name] = max(beside.get(name, 0), job.duration)
    return max(alone.get(name, 0) + beside.get(name, 0) for name in alone | beside)


def _learn(name: str, seed: int) -> Durations:
    """From another set: its tasks' kinds are their times, and what they took is drawn around those."""
    draw, durations = random.Random(f"learned/{name}/{seed}"), Durations()
    jobs, _ = _draw(name, seed + 1_000)
    for job in jobs:
        durations.note(_kind(job), "t", job.duration * draw.lognormvariate(0, SPREAD))
    return durations


def _kind(job: Job) -> str:
    return f"takes-{job.duration}"


def _compare(name: str, seed: int) -> Row:
    jobs, optimal = _draw(name, seed)
    durations = _learn(name, seed)

    def expect(number: int) -> float:
        return durations.expect(_kind(jobs[number]), "t") or 1.0

    runs = {
        "thesis": run(jobs, release_order, expect),
        "bursar": run(jobs, conflict_order, expect),
        "learned": run(jobs, learned_order, expect),
        "known": run(jobs, learned_order, lambda number: jobs[number].duration),
    }
    ratios = {design: seconds / optimal for design, (seconds, _) in runs.items()}
    errors = runs["bursar"][1]
    return {
        "benchmark": name,
        "set": seed,
        "fifo": run_fifo_locks(jobs) / optimal,
        **ratios,
        **_describe(errors),
    }


def _describe(errors: Sequence[tuple[float, float]]) -> Row:
    """Of forecasts and what came: the median of how far they were off, and that over the wait."""
    off = [abs(said - came) for said, came in errors]
    waits = [came for _, came in errors]
    return {
        "forecasts": len(errors),
        "median_wait_s": averages.median(waits) if waits else 0.0,
        "median_error_s": averages.median(off) if off else 0.0,
        "error_over_wait": sum(off) / sum(waits) if sum(waits) else 0.0,
    }


def _average(name: str, rows: Sequence[Row]) -> Row:
    mine = [row for row in rows if row["benchmark"] == name]
    columns = ("fifo", "thesis", "bursar", "learned", "known", "median_error_s", "error_over_wait")
    return {"benchmark": name} | {
        column: averages.mean(float(row[column]) for row in mine) for column in columns
    }


def run(jobs: Sequence[Job], order: Order, expect: Expect) -> tuple[float, list[tuple[float, float]]]:
    """The completion time; and of every tenth task, when it was to start by a forecast made when it came, and
    when it did, both counted from then."""
    queue, line = Queue(order), Timeline(jobs)
    begun: dict[int, float] = {}
    asked: dict[int, tuple[float, float]] = {}
    ended: list[int] | None = []
    while ended is not None:
        for number in ended:
            queue.vacate(_id(number), jobs[number].needs)
            del begun[number]
        came = line.release_due()
        for number in came:
            submitted = int(jobs[number].released * 1e9)
            queue.enter(_id(number), jobs[number].needs, submitted=submitted, seconds=expect(number))
        for number in came:
            if number % ASKED_EVERY == 0 and order is conflict_order:
                asked[number] = line.now, _forecast(jobs, queue, begun, line.now, order, expect, number)
        while (id := queue.pick()) is not None:
            queue.leave(id)
            queue.occupy(id, jobs[int(id)].needs)
            begun[int(id)] = line.now
            line.begin(int(id))
            if int(id) in asked:
                at, said = asked[int(id)]
                asked[int(id)] = said, line.now - at
        ended = line.advance()
    assert not queue.entries, "every task was granted"
    return line.now, list(asked.values())


def _forecast(
    jobs: Sequence[Job],
    queue: Queue,
    begun: dict[int, float],
    now: float,
    order: Order,
    expect: Expect,
    wanted: int,
) -> float:
    waiting = []
    for number in map(int, queue.entries):
        created = int(jobs[number].released * 1e9)
        waiting.append(Waiting(_id(number), jobs[number].needs, (), "", 0, created, expect(number)))
    running = [
        Running(_id(number), jobs[number].needs, (), max(0.1, expect(number) - (now - at)))
        for number, at in begun.items()
    ]
    said = forecast(waiting, running, order, {}, lambda tenant: 1, _id(wanted))
    assert said is not None, "everything ends"
    return said


def _id(number: int) -> str:
    return f"{number:08d}"


async def _run_live(jobs: list[Job]) -> Row:
    """The same through an instance, twice: the first time it learns, the second time it is asked of every
    tenth task when that starts, when all were submitted. Times are those of the benchmark."""
    world = await open_world("learned", store="memory://")
    began: dict[str, float] = {}

    async def work(dispatch: Dispatch) -> bytes:
        began[dispatch.id] = time.monotonic()
        await asyncio.sleep(float(dispatch.payload))
        return b""

    instance = Instance(world, "experiment", tracker=InProcessTracker(work))
    await instance.start()
    try:
        seconds, errors = 0.0, list[tuple[float, float]]()
        for turn in range(2):
            seconds, errors = await _run_turn(instance, turn, jobs, began)
    finally:
        await instance.stop()
        await world.close()
    return {"over_bound": seconds / LIVE_SCALE / find_bound(jobs), "tasks": len(jobs), **_describe(errors)}


async def _run_turn(
    instance: Instance, turn: int, jobs: list[Job], began: dict[str, float]
) -> tuple[float, list[tuple[float, float]]]:
    draw = random.Random(f"live/{turn}")
    start, done = time.monotonic(), instance.book.counts.get("completed", 0)
    for number, job in enumerate(jobs):
        seconds = job.duration * LIVE_SCALE * draw.lognormvariate(0, SPREAD)
        task = new_task(
            id=f"j{turn}-{number:06d}",
            tenant="t",
            needs=job.needs,
            payload=b"%f" % seconds,
            function=_kind(job),
        )
        await instance.submit(task)
    asked = await _ask(instance, turn, len(jobs)) if turn else {}
    while instance.book.counts.get("completed", 0) < done + len(jobs):
        await asyncio.sleep(0.01)
    elapsed = time.monotonic() - start
    pairs = [(said / LIVE_SCALE, (began[id] - at) / LIVE_SCALE) for id, (at, said) in asked.items()]
    return elapsed, pairs


async def _ask(instance: Instance, turn: int, tasks: int) -> dict[str, tuple[float, float]]:
    """Of those that wait: when they were asked about, and what was said."""
    records, asked = [], {}
    for number in range(tasks):
        found = await instance.reader.read_record(f"j{turn}-{number:06d}")
        if found is not None:
            records.append(found)
    for number in range(0, tasks, ASKED_EVERY):
        id = f"j{turn}-{number:06d}"
        at = time.monotonic()
        if id in instance.queue.entries and (said := await instance.forecast(id, records)) is not None:
            asked[id] = at, said
    return asked
