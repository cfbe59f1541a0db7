"""The benchmarks on a real ZooKeeper: instances as tasks of this process or as processes of their
own, which are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bursar.claims.book import ClaimBook
from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import Layout
from bursar.claims.queue import Order
from bursar.claims.tracker import Dispatch, InProcessTracker, Progress, Report
from bursar.errors import BursarError
from bursar.runtime.clock import BootClock
from bursar.runtime.world import open_world
from bursar.stores import open_store
from bursar.world import SECOND_NS, Operation, Store
from bursar_lab.experiments.claims.ends import Ends
from bursar_lab.experiments.claims.workloads import Job
from bursar_lab.zookeeper_server import ZookeeperServers

RESOURCE = "experiment"
SUBMIT_AT_ONCE = 100
SESSION_NS = 2 * SECOND_NS
PATIENCE_S = 1800.0


class OutsideTracker:
    """Work that is done outside of the instances, and is not disturbed by their deaths: a task is
    over `duration_ns` after it was first begun, which a file of its own records once."""

    def __init__(self, directory: Path, duration_ns: int) -> None:
        self._directory = directory
        self._duration_ns = duration_ns

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        try:
            (self._directory / dispatch.key).touch(exist_ok=False)
        except FileExistsError:
            pass  # dispatched before: the idempotency key says that it is the same work
        await asyncio.sleep(self._duration_ns / SECOND_NS)
        status = await self.status(dispatch)
        return status if isinstance(status, Report) else None

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        try:
            begun_ns = (self._directory / dispatch.key).stat().st_mtime_ns
        except FileNotFoundError:
            return Progress.LOST
        left_ns = begun_ns + self._duration_ns - time.time_ns()
        return Report("ok") if left_ns <= 0 else Progress.RUNNING

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        """It goes on: nobody cancels in these experiments."""

    async def note(self, id: str) -> str:
        return ""


async def run_live(
    jobs: Sequence[Job], servers: ZookeeperServers, order: Order, scale: float, name: str
) -> float:
    """Completion time in the benchmark's seconds, with one instance; every second lasts `scale`."""
    world = await open_world(name, store=servers.url(f"/{name}"))
    durations = {f"j{number:06d}": job.duration * scale for number, job in enumerate(jobs)}

    async def work(dispatch: Dispatch) -> bytes:
        await asyncio.sleep(durations[dispatch.id])
        return b""

    instance = Instance(world, RESOURCE, order=order, tracker=InProcessTracker(work))
    await instance.start()
    began = time.monotonic()

    async def release(number: int) -> None:
        await asyncio.sleep(max(0.0, jobs[number].released * scale - (time.monotonic() - began)))
        task = new_task(id=f"j{number:06d}", tenant="t", needs=jobs[number].needs, submitted=time.time_ns())
        await instance.submit(task)

    await asyncio.gather(*(release(number) for number in range(len(jobs))))
    while instance.book.counts.get("completed", 0) < len(jobs):
        await asyncio.sleep(0.01)
    elapsed = time.monotonic() - began
    await instance.stop()
    await world.close()
    return elapsed / scale


async def submit_all(store: Store, jobs: Sequence[Job]) -> list[str]:
    """Put every task into the queue, for any instance to take."""
    layout = Layout(RESOURCE)
    book = ClaimBook(layout, "submitter")
    ids = []
    now = time.time_ns()
    for first in range(0, len(jobs), SUBMIT_AT_ONCE):
        operations: list[Operation] = []
        for number in range(first, min(first + SUBMIT_AT_ONCE, len(jobs))):
            id = f"j{number:06d}"
            ids.append(id)
            task = new_task(id=id, tenant="t", needs=jobs[number].needs, submitted=now + number, kept=True)
            operations += book.submit(task, take=False)
        await store.transact(operations)
    return ids


async def count_left(store: Store) -> int:
    """Tasks that are not over."""
    folders = [f"{Layout(RESOURCE).root}/tasks/{shard}" for shard in Layout.task_shards]
    return sum([len(await store.children(folder)) for folder in folders])


class Workers:
    """Instances as processes. `kill` is kill -9 and a new process at once."""

    def __init__(self, url: str, directory: Path, count: int, duration: float, running_max: int) -> None:
        self._arguments = [url, str(directory), str(duration), str(running_max)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lives = [0] * count
        for number in range(count):
            self._processes.append(self._start(number))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._lives[number] += 1
        name = f"w{number}-{self._lives[number]}"
        command = [sys.executable, "-m", "bursar_lab.experiments.claims.worker", name, *self._arguments]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        os.kill(self._processes[number].pid, signal.SIGKILL)
        self._processes[number].wait()
        self._processes[number] = self._start(number)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def run_workers(
    servers: ZookeeperServers,
    jobs: Sequence[Job],
    *,
    instances: int,
    duration: float,
    crash_rate: float = 0.0,
    running_max: int = 28,
    chroot: str = "/run",
) -> dict[str, float]:
    """Completion time of all tasks by instances in processes of their own, killed in turn."""
    with tempfile.TemporaryDirectory(prefix="bursar-tasks-") as directory:
        url = servers.url(chroot)
        store = await open_store(url, clock=BootClock(), timeout_ns=10 * SECOND_NS)
        world = await open_world("setup", store=url)
        instance = Instance(world, RESOURCE)
        await instance.start()
        await instance.stop()
        await world.close()
        await submit_all(store, jobs)
        began = time.monotonic()
        ends = Ends(store, RESOURCE)
        workers = Workers(url, Path(directory), instances, duration, running_max)
        try:
            crashes = await _wait_until_done(ends, len(jobs), workers, instances, crash_rate, began)
            elapsed = time.monotonic() - began
            left = await count_left(store)
            await ends.read_all()
        finally:
            workers.stop()
            await store.close()
    found = ends.tasks
    wrong = [id for id, task in found.items() if task.outcome != "ok"]
    if wrong or left or len(found) != len(jobs):
        raise BursarError(
            f"{len(found)} of {len(jobs)} tasks have an end, {len(wrong)} of them not ok; {left} are left"
        )
    return {
        "seconds": elapsed,
        "crashes": crashes,
        "completed": len(found),
        "attempts": sum(task.attempt for task in found.values()),
        "recorded_twice": len(ends.changed),
    }


async def _wait_until_done(
    ends: Ends, tasks: int, workers: Workers, instances: int, crash_rate: float, began: float
) -> int:
    crashes = 0
    while True:
        if crash_rate and time.monotonic() - began >= (crashes + 1) / crash_rate:
            workers.kill(crashes % instances)
            crashes += 1
        if await ends.count() >= tasks:
            return crashes
        if time.monotonic() - began > PATIENCE_S:
            raise BursarError(f"the tasks were not done within {PATIENCE_S} s")
        await asyncio.sleep(0.05)
