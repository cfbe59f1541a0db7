"""A disk that serves first come, first served, behind limits: what a kernel's throttle and a device do.

Each tenant keeps up to `depth` requests in flight, of those that it wants to make and that its limit lets
go. What has reached the disk waits there in one queue, where weights mean nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bursar.shares.target import Seen

STEP_S = 0.001
SIZE = 128
BURST_S = 0.01


@dataclass
class Job:
    """`rate` tokens a second are wanted, what was late is made up for; None: all that can be had."""

    rate: float | None = None
    depth: int = 16
    due: float = 0.0
    tokens: float = 0.0
    flying: int = 0
    done: int = 0


class FifoDisk:
    """Serves `can` tokens a second."""

    def __init__(self, can: int, jobs: dict[str, Job]) -> None:
        self.can = can
        self.jobs = jobs
        self.limits: dict[str, int] = {}
        self._queue: deque[str] = deque()
        self._budget = 0.0
        self._counted: dict[str, int] = {}

    def run(self, seconds: float) -> Seen:
        """What a kernel shows of so many seconds."""
        steps = round(seconds / STEP_S)
        waited = busy = 0
        for _ in range(steps):
            for name, job in self.jobs.items():
                self._submit(name, job)
            busy += bool(self._queue)
            waited += len(self._queue)
            self._serve()
        served = {name: job.done - self._counted.get(name, 0) for name, job in self.jobs.items()}
        self._counted = {name: job.done for name, job in self.jobs.items()}
        saturated = busy >= 0.9 * steps and waited >= 2 * steps
        return Seen(served={name: n for name, n in served.items() if n}, saturated=saturated)

    def _submit(self, name: str, job: Job) -> None:
        limit = self.limits.get(name)
        if limit is not None:
            job.tokens = min(job.tokens + limit * STEP_S, max(SIZE, limit * BURST_S))
        if job.rate is not None:
            job.due += job.rate * STEP_S
        while job.flying < job.depth:
            if (job.rate is not None and job.due < SIZE) or (limit is not None and job.tokens < SIZE):
                break
            job.due -= SIZE if job.rate is not None else 0
            job.tokens -= SIZE if limit is not None else 0
            job.flying += 1
            self._queue.append(name)

    def _serve(self) -> None:
        self._budget += self.can * STEP_S
        while self._queue and self._budget >= SIZE:
            job = self.jobs[self._queue.popleft()]
            job.flying -= 1
            job.done += SIZE
            self._budget -= SIZE
        if not self._queue:
            self._budget = 0.0
