"""The benchmarks in virtual time: the queue that live instances use, and the lock server.

No time is charged for the scheduling itself, so what is compared is the order alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from bursar.claims.queue import Order, Queue
from bursar.claims.requirements import Mode
from bursar_lab.experiments.claims.workloads import Job


class Timeline:
    """Releases and ends of tasks, in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.now = 0.0
        self._jobs = jobs
        self._released = 0
        self._ends: list[tuple[float, int, int]] = []
        self._begun = 0

    def begin(self, number: int) -> None:
        self._begun += 1
        heapq.heappush(self._ends, (self.now + self._jobs[number].duration, self._begun, number))

    def release_due(self) -> list[int]:
        first = self._released
        while self._released < len(self._jobs) and self._jobs[self._released].released <= self.now:
            self._released += 1
        return list(range(first, self._released))

    def advance(self) -> list[int] | None:
        """Go to the next event; the tasks that end then. None when nothing is left to happen."""
        times = [self._ends[0][0]] if self._ends else []
        if self._released < len(self._jobs):
            times.append(self._jobs[self._released].released)
        if not times:
            return None
        self.now = min(times)
        ended = []
        while self._ends and self._ends[0][0] <= self.now:
            ended.append(heapq.heappop(self._ends)[2])
        return ended


def run_queue(jobs: Sequence[Job], order: Order) -> float:
    """The completion time with bursar's queue in this order. Every grant is checked: one of names
    that are in use would make an order look better than it is."""
    queue, time, locks = Queue(order), Timeline(jobs), Locks()
    ended: list[int] | None = []
    while ended is not None:
        for number in ended:
            queue.vacate(_id(number), jobs[number].needs)
            for name, _ in jobs[number].needs:
                locks.free(name)
        for number in time.release_due():
            queue.enter(_id(number), jobs[number].needs, submitted=int(jobs[number].released * 1e9))
        while (id := queue.pick()) is not None:
            number = int(id)
            taken = [locks.take(*need) for need in jobs[number].needs]
            assert all(taken), f"task {id} was granted what is in use"
            queue.leave(id)
            queue.occupy(id, jobs[number].needs)
            time.begin(number)
        ended = time.advance()
    assert not queue.entries, "every task was granted"
    return time.now


def _id(number: int) -> str:
    return f"{number:08d}"


class Locks:
    """Names held one by one."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def take(self, name: str, mode: Mode) -> bool:
        count = self._held.get(name, 0)
        if count < 0 or (mode is Mode.EXCLUSIVE and count):
            return False
        self._held[name] = -1 if mode is Mode.EXCLUSIVE else count + 1
        return True

    def free(self, name: str) -> None:
        count = self._held[name]
        if count in (-1, 1):
            del self._held[name]
        else:
            self._held[name] = count - 1


def run_lock_server(jobs: Sequence[Job]) -> float:
    """Section 5.1.1: each task takes its locks one by one in the order of their names, keeps what it
    has and tries again; whoever was released first tries first."""
    locks, time = Locks(), Timeline(jobs)
    progress: dict[int, int] = {}
    ended: list[int] | None = []
    while ended is not None:
        for number in ended:
            for name, _ in jobs[number].needs:
                locks.free(name)
        progress.update(dict.fromkeys(time.release_due(), 0))
        for number in list(progress):
            needs = jobs[number].needs
            while progress[number] < len(needs) and locks.take(*needs[progress[number]]):
                progress[number] += 1
            if progress[number] == len(needs):
                del progress[number]
                time.begin(number)
        ended = time.advance()
    assert not progress, "every task got its locks"
    return time.now


def run_fifo_locks(jobs: Sequence[Job]) -> float:
    """The same with a first-come queue at each lock, as most lock servers have."""
    locks, time = Locks(), Timeline(jobs)
    lines: dict[str, deque[int]] = {}
    progress: dict[int, int] = {}
    ended: list[int] | None = []

    def go_on(number: int) -> None:
        needs = jobs[number].needs
        while progress[number] < len(needs):
            name, mode = needs[progress[number]]
            line = lines.setdefault(name, deque())
            if (line and line[0] != number) or not locks.take(name, mode):
                if number not in line:
                    line.append(number)
                return
            if line:
                line.popleft()
                if mode is Mode.SHARED and line:
                    woken.append(line[0])
            progress[number] += 1
        del progress[number]
        time.begin(number)

    woken: list[int] = []
    while ended is not None:
        for number in ended:
            for name, _ in jobs[number].needs:
                locks.free(name)
                if lines.get(name):
                    woken.append(lines[name][0])
        for number in time.release_due():
            progress[number] = 0
            woken.append(number)
        while woken:
            number = woken.pop(0)
            if number in progress:
                go_on(number)
        ended = time.advance()
    assert not progress, "every task got its locks"
    return time.now
