"""Work that is to be done once each has what it needs: Celery, SKIP LOCKED in PostgreSQL, bursar's tasks.

Two workers do tasks of half a second; one is killed while it does eight of them. Counted: tasks that did not
come to an end in time, and ends above one for each.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any

from bursar_lab.benchmarks.task_worker import make_celery, names_of
from bursar_lab.benchmarks.tasks import (
    Submit,
    Workers,
    submitting_to_bursar,
    submitting_to_postgresql,
    working,
)
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.processes import run_redis

TASKS = 24
ENDED_FIRST = 2
PATIENCE_S = 25.0
ENVIRONMENT = {"TASK_WORK_S": "0.5", "LOCK_S": "5"}
LATE_S = 5
FAULT = "worker killed (-9) in the midst of its tasks"


def try_all() -> list[dict[str, Any]]:
    rows = [
        asyncio.run(_try_celery("Celery, as it comes", 0)),
        asyncio.run(_try_celery(f"Celery, acks_late, visibility_timeout {LATE_S} s", LATE_S)),
    ]
    with PostgresqlServers(1) as servers:
        rows.append(asyncio.run(_try_postgresql(servers.url().partition("?")[0])))
        rows.append(asyncio.run(_try_bursar(servers.url("tasks"))))
    return rows


async def _try_celery(pick: str, late_s: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, run_redis(folder) as url:
        app = make_celery(url)

        async def submit(task: str, names: list[str]) -> None:
            app.send_task("take", args=[task])

        with working("celery", url, **ENVIRONMENT, CELERY_LATE=str(late_s)) as workers:
            return await _try(pick, workers, submit)


async def _try_postgresql(dsn: str) -> dict[str, Any]:
    async with submitting_to_postgresql(dsn, 1) as submit:
        with working("postgresql", dsn, **ENVIRONMENT) as workers:
            return await _try("PostgreSQL, SKIP LOCKED", workers, submit)


async def _try_bursar(url: str) -> dict[str, Any]:
    async with submitting_to_bursar(url) as submit:
        with working("bursar", url, **ENVIRONMENT) as workers:
            return await _try("bursar tasks", workers, submit)


async def _try(pick: str, workers: Workers, submit: Submit) -> dict[str, Any]:
    await asyncio.gather(*(submit(f"{number} {number} 1", names_of(number, 1)) for number in range(TASKS)))
    while len(workers.list_ended()) < ENDED_FIRST:
        await asyncio.sleep(0.02)
    workers.kill(0)
    killed = time.monotonic()
    while len(set(workers.list_ended())) < TASKS and time.monotonic() < killed + PATIENCE_S:
        await asyncio.sleep(0.05)
    took_s = time.monotonic() - killed
    ended = workers.list_ended()
    lost, twice = TASKS - len(set(ended)), len(ended) - len(set(ended))
    when = f"not done after {PATIENCE_S:g} s" if lost else f"done within {took_s:.1f} s"
    return {
        "for": "tasks",
        "pick": pick,
        "fault": FAULT,
        "limit": TASKS,
        "told": len(ended),
        "what came": f"{lost or 'all'} {when}, {twice} done twice",
    }
