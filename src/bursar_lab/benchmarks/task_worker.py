"""A worker of `bursar bench tasks`: python -m bursar_lab.benchmarks.task_worker SYSTEM URL FILE

Each does the same work: a task is a number and a set of names; when it has all of these to itself it writes
the number and the time to FILE, and lets go. So many at a time. `ready` on the output says that it began.
With TASK_WORK_S in the environment a task works for so many seconds, and writes its number to FILE.ended
then; LOCK_S is how long a lock of redis-py lives, and CELERY_LATE has Celery keep a message until its task is
over and hand it to another worker when it was out for so many seconds.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from typing import Any, TextIO

AT_ONCE = 8
RESOURCE = "bench"
POLL_S = 0.01
WORK_S = float(os.environ.get("TASK_WORK_S", "0"))
LOCK_S = float(os.environ.get("LOCK_S", "60"))
LATE_S = int(os.environ.get("CELERY_LATE", "0"))


def names_of(group: int, size: int) -> list[str]:
    return [f"g{group}-{number:03d}" for number in range(size)]


def read_task(text: str) -> tuple[int, list[str]]:
    number, group, size = map(int, text.split())
    return number, names_of(group, size)


class Log:
    """Lines of all that works at a time."""

    def __init__(self, path: str) -> None:
        self._file: TextIO = open(path, "a", buffering=1)  # noqa: SIM115  for as long as the process
        self._ended: TextIO = open(f"{path}.ended", "a", buffering=1)  # noqa: SIM115
        self._writing = threading.Lock()

    def began(self, number: int) -> None:
        with self._writing:
            print(number, time.time(), file=self._file)

    def ended(self, number: int) -> None:
        with self._writing:
            print(number, file=self._ended)

    async def work(self, number: int) -> None:
        self.began(number)
        if WORK_S:
            await asyncio.sleep(WORK_S)
            self.ended(number)

    def work_in_thread(self, number: int) -> None:
        self.began(number)
        if WORK_S:
            time.sleep(WORK_S)
            self.ended(number)


async def work_bursar(url: str, log: Log) -> None:
    from bursar.claims.resource import ClaimDecider
    from bursar.claims.tracker import Dispatch, InProcessTracker
    from bursar.policy.values import ClaimPolicy
    from bursar.runtime.world import open_world

    async def work(dispatch: Dispatch) -> None:
        await log.work(read_task(dispatch.payload.decode())[0])

    world = await open_world(f"w{log_number(sys.argv[3])}", store=url)
    policy = ClaimPolicy(name=RESOURCE)
    decider = ClaimDecider(world, RESOURCE, policy, tracker=InProcessTracker(work), running_max=AT_ONCE)
    await decider.start()
    print("ready", flush=True)
    await world.failure


def log_number(path: str) -> str:
    return path.rpartition("-")[2]


def work_kazoo(hosts: str, log: Log) -> None:
    """Tasks come by this process's input, which is kinder than any queue in ZooKeeper."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=hosts, timeout=30)
    client.start()
    tasks: queue.Queue[str] = queue.Queue()

    def act() -> None:
        while True:
            number, names = read_task(tasks.get())
            locks = [client.Lock(f"/kazoo/{name}") for name in names]
            for lock in locks:
                lock.acquire()
            log.work_in_thread(number)
            for lock in reversed(locks):
                lock.release()

    for _ in range(AT_ONCE):
        threading.Thread(target=act, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        tasks.put(line)


async def work_postgresql(dsn: str, log: Log) -> None:
    """The queue and the names are rows; a transaction has them for as long as the work takes."""
    import asyncpg

    async def act(connection: Any) -> None:
        while True:
            async with connection.transaction():
                row = await connection.fetchrow(
                    "SELECT id, task FROM bench_tasks ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
                )
                if row is not None:
                    number, names = read_task(row["task"])
                    await connection.fetch(
                        "SELECT name FROM bench_names WHERE name = ANY($1) ORDER BY name FOR UPDATE", names
                    )
                    await log.work(number)
                    await connection.execute("DELETE FROM bench_tasks WHERE id = $1", row["id"])
            if row is None:
                await asyncio.sleep(POLL_S)

    connections = [await asyncpg.connect(dsn) for _ in range(AT_ONCE)]
    print("ready", flush=True)
    await asyncio.gather(*map(act, connections))


def make_celery(url: str, log: Log | None = None) -> Any:
    """The app, and for a worker what it does: each name is a lock of redis-py."""
    import redis
    from celery import Celery

    app = Celery("bench", broker=f"{url}/0")
    app.conf.update(
        task_ignore_result=True,
        worker_redirect_stdouts=False,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    if LATE_S:
        late = {"visibility_timeout": LATE_S}
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_transport_options=late)
    client = redis.Redis.from_url(f"{url}/1")

    @app.task(name="take")  # type: ignore[untyped-decorator]
    def take(text: str) -> None:
        assert log is not None, "a worker does it"
        number, names = read_task(text)
        locks = [client.lock(name, timeout=LOCK_S, sleep=POLL_S) for name in names]
        for lock in locks:
            lock.acquire()
        log.work_in_thread(number)
        for lock in reversed(locks):
            lock.release()

    return app


def work_celery(url: str, log: Log) -> None:
    from celery.signals import worker_ready

    @worker_ready.connect  # type: ignore[untyped-decorator]
    def tell(**_: Any) -> None:
        print("ready", flush=True)

    options = ["--pool", "threads", "--concurrency", str(AT_ONCE), "--loglevel", "error"]
    options += [
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--hostname",
        log_number(sys.argv[3]),
    ]
    make_celery(url, log).worker_main(["worker", *options])


def main() -> None:
    system, url, path = sys.argv[1:]
    log = Log(path)
    match system:
        case "bursar":
            asyncio.run(work_bursar(url, log))
        case "postgresql":
            asyncio.run(work_postgresql(url, log))
        case "kazoo":
            work_kazoo(url, log)
        case "celery":
            work_celery(url, log)
        case _:
            raise SystemExit(f"no system {system}")


if __name__ == "__main__":
    main()
