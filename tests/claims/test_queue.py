from __future__ import annotations

import random

import pytest

from bursar.claims import queue as queues
from bursar.claims.queue import Order, Queue, conflict_order, release_order
from bursar.claims.requirements import Mode, Requirements, conflicts, parse
from bursar_lab.experiments.claims.simulation import run_fifo_locks, run_lock_server, run_queue
from bursar_lab.experiments.claims.workloads import Job, draw_hierarchy, draw_rectangles


def grant_all(queue: Queue, needs: dict[str, Requirements]) -> list[str]:
    granted = []
    while (id := queue.pick()) is not None:
        queue.leave(id)
        queue.occupy(id, needs[id])
        granted.append(id)
    return granted


def test_figure_3_3_in_the_thesis_order() -> None:
    """Tasks T1 to T4 of table 3.1, all queued at t0."""
    needs = {
        "T1": parse("dc-1:S, cluster-1:S, host-1:S, vm-1:E"),
        "T2": parse("dc-1:S, cluster-1:S, host-2:S, vm-2:E"),
        "T3": parse("dc-1:S, cluster-1:E"),
        "T4": parse("dc-1:S, cluster-1:S, host-1:E"),
    }
    queue = Queue(release_order)
    for number, id in enumerate(needs):
        queue.enter(id, needs[id], submitted=number)
    trace = []
    for moment, ended in (("t1", None), ("t2", "T1"), ("t3", "T2"), ("t4", "T4"), ("t5", "T3")):
        if ended:
            queue.vacate(ended, needs[ended])
        begun = grant_all(queue, needs)
        trace.append(f"{moment}: {ended or '-'} ends, {' '.join(begun) or '-'} begin")
    assert trace == [
        "t1: - ends, T1 T2 begin",
        "t2: T1 ends, T4 begin",
        "t3: T2 ends, - begin",
        "t4: T4 ends, T3 begin",
        "t5: T3 ends, - begin",
    ]


def run_plainly(jobs: list[Job]) -> float:
    """Figure 3-1: try every task in the order of release, again and again."""
    time, pending, running = 0.0, list(range(len(jobs))), {}
    while pending or running:
        for number in list(pending):
            job = jobs[number]
            if job.released <= time and not any(conflicts(job.needs, jobs[other].needs) for other in running):
                running[number] = time + job.duration
                pending.remove(number)
        later = [*running.values(), *(jobs[number].released for number in pending)]
        time = min(moment for moment in later if moment > time or moment in running.values())
        running = {number: end for number, end in running.items() if end > time}
    return time


@pytest.mark.parametrize("seed", range(6))
def test_waiting_at_one_name_grants_as_trying_everybody_does(seed: int) -> None:
    jobs = draw_hierarchy(seed, 60, levels=3, branching=4)
    assert run_queue(jobs, release_order) == run_plainly(jobs)
    jobs, optimal = draw_rectangles(seed, 3, resources=20)
    assert run_queue(jobs, release_order) == run_plainly(jobs) >= optimal


@pytest.mark.parametrize("run", [run_lock_server, run_fifo_locks])
def test_the_lock_servers_finish_and_are_no_faster_than_the_optimum(run) -> None:  # type: ignore[no-untyped-def]
    for seed in range(4):
        jobs, optimal = draw_rectangles(seed, 4, resources=20)
        assert run(jobs) >= optimal


def test_one_rectangle_in_virtual_time_is_near_the_optimum() -> None:
    ratios = [
        run_queue(jobs, conflict_order) / optimal
        for jobs, optimal in (draw_rectangles(seed, 1) for seed in range(10))
    ]
    assert sum(ratios) / len(ratios) < 1.1


@pytest.mark.parametrize("order", [release_order, conflict_order])
def test_a_task_that_waited_past_the_bound_reserves_and_is_granted(order) -> None:  # type: ignore[no-untyped-def]
    """One task wants 100 names among an endless stream of small ones that keep them busy."""
    chance = random.Random(1)
    queue, needs = Queue(order), {}
    large = parse([f"n{number}:E" for number in range(100)])
    ends: list[tuple[int, str]] = []
    granted_at = None
    needs["large"] = large
    for now in range(2, 400):
        if now == 10:
            queue.enter("large", large, submitted=10)
        for end, id in [pair for pair in ends if pair[0] <= now]:
            ends.remove((end, id))
            queue.vacate(id, needs[id])
        for number in range(20):
            id = f"small-{now}-{number}"
            needs[id] = parse(f"n{chance.randrange(100)}:{chance.choice('SE')}")
            queue.enter(id, needs[id], submitted=now)
        queue.age(now - 50)
        for id in grant_all(queue, needs):
            if id == "large":
                granted_at = now
            ends.append((now + chance.randrange(1, 6), id))
        if granted_at:
            break
    # Its bound: 50 until it ages, and 5 until whoever holds something then has let go.
    assert granted_at is not None and 60 <= granted_at <= 10 + 50 + 6


def test_without_aging_the_stream_would_starve_it() -> None:
    chance = random.Random(1)
    queue, needs, ends = Queue(conflict_order), {"large": parse([f"n{n}:E" for n in range(100)])}, []
    queue.enter("large", needs["large"], submitted=1)
    queue.enter("first", parse("n0:E"), submitted=0, priority=1)
    needs["first"] = parse("n0:E")
    for now in range(2, 200):
        for end, id in [pair for pair in ends if pair[0] <= now]:
            ends.remove((end, id))
            queue.vacate(id, needs[id])
        for number in range(20):
            id = f"small-{now}-{number}"
            needs[id] = parse(f"n{chance.randrange(100)}:E")
            queue.enter(id, needs[id], submitted=now)
        granted = grant_all(queue, needs)
        assert "large" not in granted
        ends += [(now + chance.randrange(1, 6), id) for id in granted]


def test_higher_priority_goes_first() -> None:
    queue, needs = Queue(), {id: parse("a:E") for id in ("low", "high")}
    queue.enter("low", needs["low"], submitted=1)
    queue.enter("high", needs["high"], submitted=2, priority=5)
    assert grant_all(queue, needs) == ["high"]


def test_tenants_get_turns_by_weight() -> None:
    queue = Queue(weight_of=lambda tenant: {"a": 3, "b": 1}[tenant])
    needs = {f"{tenant}{number:02d}": parse("x:E") for tenant in "ab" for number in range(20)}
    for number, id in enumerate(needs):
        queue.enter(id, needs[id], tenant=id[0], submitted=number)
    served = []
    for _ in range(16):
        (id,) = grant_all(queue, needs)
        queue.charge(id[0])
        served.append(id[0])
        queue.vacate(id, needs[id])
    assert served.count("a") == 12 and served.count("b") == 4


@pytest.mark.parametrize("seed", range(20))
def test_nobody_conflicting_is_ever_granted_and_everybody_is_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    queue, needs, running = Queue(chance.choice((release_order, conflict_order))), {}, {}
    waiting = 0
    for step in range(300):
        move = chance.random()
        if move < 0.5:
            id = f"t{step}"
            names = chance.sample("abcdef", chance.randrange(1, 4))
            needs[id] = parse([f"{name}:{chance.choice('SE')}" for name in names])
            queue.enter(id, needs[id], submitted=step, priority=chance.randrange(2))
            waiting += 1
        elif move < 0.9 and running:
            id = chance.choice(sorted(running))
            del running[id]
            queue.vacate(id, needs[id])
        elif queue.entries and chance.random() < 0.5:
            queue.leave(chance.choice(sorted(queue.entries)))
        if chance.random() < 0.2:
            queue.age(step - 30)
        for id in grant_all(queue, needs):
            assert not any(conflicts(needs[id], needs[other]) for other in running)
            running[id] = None
    while running or queue.entries:
        assert running, f"nobody runs and these wait: {list(queue.entries)}"
        id = min(running)
        del running[id]
        queue.vacate(id, needs[id])
        running.update(dict.fromkeys(grant_all(queue, needs)))
    assert not queue.places


class PlainQueue:
    """What the queue is to do, by looking at everybody each time."""

    def __init__(self, order: Order) -> None:
        self.by_conflicts = order is conflict_order
        self.waiting: dict[str, tuple[Requirements, int, int]] = {}
        self.running: dict[str, Requirements] = {}
        self.aged: set[str] = set()

    def pick(self) -> str | None:
        return min((id for id in self.waiting if self.is_free(id)), key=self.key, default=None)

    def is_free(self, id: str) -> bool:
        needs = self.waiting[id][0]
        return not any(conflicts(needs, held) for held in self.running.values()) and not any(
            self.is_reserved(name, mode, id) for name, mode in needs
        )

    def is_reserved(self, name: str, mode: Mode, id: str) -> bool:
        """The oldest of those who aged and want the name keeps away whoever could not share it."""
        wanting = [
            other for other in self.waiting if other in self.aged and name in dict(self.waiting[other][0])
        ]
        oldest = min(wanting, key=lambda other: (self.waiting[other][2], other), default=id)
        return oldest != id and Mode.EXCLUSIVE in (mode, dict(self.waiting[oldest][0])[name])

    def key(self, id: str) -> tuple[int | str, ...]:
        needs, priority, submitted = self.waiting[id]
        if not self.by_conflicts:
            return (id not in self.aged, submitted, id)
        degree = sum(conflicts(needs, other) for other, *_ in self.waiting.values()) - conflicts(needs, needs)
        return (id not in self.aged, -priority, -degree, submitted, id)


def draw_needs(chance: random.Random, kind: str) -> Requirements:
    """Up to five names: alone; shared or not; parts of them; on paths."""
    texts = []
    for _ in range(chance.randint(1, 5)):
        name, mode = f"n{chance.randrange(8)}", chance.choice("SE")
        if kind == "parts":
            name += chance.choice(("", "#a", "#b"))
        elif kind == "paths":
            name = "/".join(chance.choice("xyz") for _ in range(chance.randint(1, 3)))
        texts.append(f"{name}:{'E' if kind == 'exclusive' else mode}")
    return parse(texts, paths=kind == "paths")


@pytest.mark.parametrize("order", [release_order, conflict_order])
@pytest.mark.parametrize("kind", ["exclusive", "shared", "parts", "paths"])
@pytest.mark.parametrize("page", [3, 2048])
def test_grants_are_those_of_looking_at_everybody(
    monkeypatch: pytest.MonkeyPatch, order: Order, kind: str, page: int
) -> None:
    monkeypatch.setattr(queues, "PAGE", page)
    chance = random.Random(f"{kind}/{page}")
    queue, plain = Queue(order), PlainQueue(order)
    for step in range(250):
        move = chance.random()
        if move < 0.5 and len(plain.waiting) < 60:
            id, needs = f"t{step:03d}", draw_needs(chance, kind)
            priority, submitted = chance.randrange(2), step - chance.choice((0, 0, 0, 30))
            queue.enter(id, needs, priority=priority, submitted=submitted)
            plain.waiting[id] = (needs, priority, submitted)
        elif move < 0.9 and plain.running:
            id = chance.choice(list(plain.running))
            queue.vacate(id, plain.running.pop(id))
        elif plain.waiting:
            id = chance.choice(list(plain.waiting))
            queue.leave(id)
            del plain.waiting[id]
        if chance.random() < 0.1:
            plain.aged.update(queue.age(step - 40))
        while (picked := queue.pick()) is not None:
            assert picked == plain.pick(), f"step {step}"
            queue.leave(picked)
            queue.occupy(picked, plain.waiting[picked][0])
            plain.running[picked] = plain.waiting.pop(picked)[0]
        assert plain.pick() is None, f"step {step}"


def test_what_was_reserved_for_a_task_before_it_came_is_its_own() -> None:
    """Another instance's task that aged there, and is looked after here now."""
    queue, needs = Queue(release_order), {id: parse("a:E") for id in ("early", "late")}
    queue.reserve("a", "late", 1, True)
    queue.enter("early", needs["early"], submitted=0)
    assert grant_all(queue, needs) == []
    queue.enter("late", needs["late"], submitted=1)
    assert grant_all(queue, needs) == ["late"]
