"""Tasks as people use them: functions in threads and processes, results, retries, time limits, cancels."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.claims.calls import track

import bursar
from bursar.claims.resource import open_resource
from bursar.errors import NotDoneError, Refused, StoppedError, TaskFailedError, UsageError
from bursar.policy import ClaimPolicy
from bursar.resource.clients import Clients
from bursar.resource.door import Resource
from bursar.runtime.client import Bursar
from bursar.runtime.world import open_world

numbers = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Shop:
    """A worker, and a client of a daemon on the same store."""

    def __init__(self, worker: Resource, b: Bursar) -> None:
        self.worker = worker
        self.b = b

    async def until(self, task: bursar.Task, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not wanted(told := await task.status()):
                await asyncio.sleep(0.02)
        return told


class Opener:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, b: Bursar, app: str = "none:b", **terms: Any) -> Shop:
        """`b` has the functions; it is connected to a daemon that has none of them."""
        policy, store = ClaimPolicy(name="things", **terms), f"memory://tasks-{next(numbers)}"
        daemon = await open_world("daemon", store=store, listen="127.0.0.1:0")
        self._stack.push_async_callback(daemon.close)
        door = open_resource(daemon, "things", policy)
        await door.start()
        self._stack.push_async_callback(door.stop)
        Clients(daemon, {"things": door}, grace_ns=500_000_000).start()
        world = await open_world("worker", store=store)
        self._stack.push_async_callback(world.close)
        tracker = track(b.functions, app)
        self._stack.push_async_callback(tracker._children.stop)
        worker = open_resource(world, "things", policy, tracker=tracker)
        await worker.start()
        self._stack.push_async_callback(worker.stop)
        b.target = f"bursar://{daemon.listening}"
        await b.connect()
        self._stack.push_async_callback(b.close)
        return Shop(worker, b)


@pytest.fixture
async def open_shop() -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:
        yield Opener(stack)


def an_app() -> Bursar:
    return Bursar("nothing.toml")


async def test_a_result_comes_back_and_a_failure_with_its_traceback(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="{name}:E")
    def measure(name: str) -> dict[str, int]:
        if name == "bad":
            raise KeyError("no such thing")
        return {"length": len(name)}

    shop = await open_shop(b)
    good = await b.submit(measure, tenant="ops", name="vm-7", key="k")
    bad = await b.submit(measure, tenant="ops", name="bad")
    assert await good.result(wait=20) == {"length": 4}
    assert await shop.b.find_task(good.id).result() == {"length": 4}
    with pytest.raises(TaskFailedError, match="is failed: KeyError: 'no such thing'") as raised:
        await bad.result(wait=20)
    assert "in measure" in raised.value.traceback and "bursar/runtime" not in raised.value.traceback
    assert "in measure" in raised.value.__notes__[0] and raised.value.outcome == "failed"
    assert good == await b.submit(measure, tenant="ops", name="vm-7", key="k")
    assert good != await b.submit(measure, tenant="other", name="vm-7", key="k")
    with pytest.raises(UsageError, match="in use for other work"):
        await b.submit(measure, tenant="ops", name="vm-8", key="k")


async def test_many_are_waited_for_and_one_that_is_not_over_in_time_is_told(open_shop: Opener) -> None:
    b, go = an_app(), asyncio.Event()

    @b.task(needs="n-{number}:E")
    async def count(number: int) -> int:
        if number == 2:
            await go.wait()
        return number

    shop = await open_shop(b)
    tasks = [await b.submit(count, tenant="ops", number=number) for number in range(4)]
    over, pending = await bursar.wait(tasks, count=3, wait=20)
    assert over == [tasks[0], tasks[1], tasks[3]] and pending == [tasks[2]]
    with pytest.raises(NotDoneError, match="it is running"):
        await tasks[2].result(wait=0.05)
    assert (await bursar.wait(tasks, wait=0.05))[1] == [tasks[2]]
    assert any("does it, attempt 1" in line for line in await tasks[2].why())
    shop.worker.decider.instance._doing._tracker._thread.call_soon(go.set)  # type: ignore[attr-defined]
    assert await bursar.wait(tasks, wait=20) == (tasks, [])
    assert await bursar.wait([]) == ([], [])


async def test_a_task_that_fails_is_tried_again_after_a_pause_and_tells_why(open_shop: Opener) -> None:
    b, tries = an_app(), []

    @b.task(needs="a:E", retries=2, backoff=0.05)
    def stumble(fence: dict[str, int], key: str) -> str:
        tries.append((fence["a"], key))
        if len(tries) < 3:
            raise OSError(f"try {len(tries)}")
        return "done"

    await open_shop(b)
    task = await b.submit(stumble, tenant="ops")
    assert await task.result(wait=20) == "done"
    told = await task.status()
    assert (told["attempt"], told["failures"], told["outcome"]) == (3, 2, "ok")
    assert told["failure"].endswith("OSError: try 2")
    fences, keys = zip(*tries, strict=True)
    assert sorted(fences) == list(fences) and len(set(fences)) == 3 and set(keys) == {task.id}


async def test_what_failed_too_often_is_given_up_and_can_be_retried_or_discarded(open_shop: Opener) -> None:
    b, broken = an_app(), threading.Event()
    broken.set()

    @b.task(needs="{name}:E", retries=1, backoff=0)
    def work(name: str) -> str:
        if broken.is_set():
            raise ValueError("not yet")
        return "fixed"

    await open_shop(b)
    verb = b.resource("things").verb
    one, two = [await b.submit(work, tenant="ops", name=name) for name in ("a", "b")]
    for task in (one, two):
        with pytest.raises(TaskFailedError, match="is dead: ValueError: not yet"):
            await task.result(wait=20)
    listed = await verb("dead")
    assert sorted(task["id"] for task in listed) == sorted([one.id, two.id])
    assert {(task["attempt"], task["failures"]) for task in listed} == {(2, 1)}
    broken.clear()
    await verb("retry", id=one.id)
    assert await one.result(wait=20) == "fixed"
    await verb("discard", id=two.id)
    assert await verb("dead") == []
    with pytest.raises(Refused, match="not among"):
        await verb("discard", id=two.id)


async def test_an_async_function_is_cancelled_while_it_runs_and_not_tried_again(open_shop: Opener) -> None:
    b, began = an_app(), []

    @b.task(needs="a:E", retries=5, backoff=0)
    async def sleep() -> None:
        bursar.current_task().progress(0.5, "half of it")
        began.append(1)
        await asyncio.sleep(60)

    shop = await open_shop(b)
    task = await b.submit(sleep, tenant="ops")
    told = await shop.until(task, lambda told: told["note"] != "")
    assert told["note"] == "50% half of it" and told["alive"] is True
    assert await task.cancel(wait=20) == "cancelled"
    with pytest.raises(TaskFailedError, match="is cancelled"):
        await task.result(wait=20)
    assert began == [1] and await b.resource("things").verb("holders", of="a") == []
    assert await task.cancel() == "cancelled"


async def test_a_thread_that_will_not_stop_keeps_its_names_and_says_so(open_shop: Opener) -> None:
    b, go = an_app(), threading.Event()

    @b.task(needs="a:E", grace=0.05)
    def deaf() -> str:
        go.wait(20)
        return "after all"

    shop = await open_shop(b)
    task = await b.submit(deaf, tenant="ops")
    await shop.until(task, lambda told: told["state"] == "running")
    assert await task.cancel(wait=0.2) == "asked"
    told = await shop.until(task, lambda told: told["note"] != "")
    assert "its thread cannot be stopped by force, and keeps its names" in told["note"]
    assert "it was asked to be cancelled" in (await task.why())[-1]
    (holder,) = await b.resource("things").verb("holders", of="a")
    assert holder["id"] == task.id
    go.set()
    assert await task.result(wait=20) == "after all"


async def test_a_thread_that_asks_stops_when_its_time_is_over(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="a:E", time_limit=0.1)
    def patient() -> None:
        bursar.current_task().sleep(60)

    await open_shop(b)
    with pytest.raises(TaskFailedError, match=r"TimeoutError: it took longer than its time limit of 0\.1 s"):
        await (await b.submit(patient, tenant="ops")).result(wait=20)


APP = """
import os, time
import bursar

b = bursar.Bursar("nothing.toml")


@b.task(needs="a:E", run="process")
def whoami(fence: dict[str, int]) -> tuple[int, list[str], int]:
    return os.getpid(), sorted(fence), bursar.current_task().attempt


@b.task(needs="a:E", run="process", time_limit="100ms", grace=0.1)
def deaf() -> None:
    while True:
        time.sleep(60)


@b.task(needs="a:E", run="process")
def die() -> None:
    os._exit(3)


@b.task(needs="a:E", run="process")
def fail() -> None:
    bursar.current_task().progress(text="about to fail")
    raise LookupError("nowhere")
"""


async def test_a_process_is_killed_when_it_does_not_stop_and_the_next_call_has_another(
    open_shop: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"processes_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    b = module.b
    await open_shop(b, f"{name}:b")
    first, names, attempt = await (await b.submit(module.whoami, tenant="ops")).result(wait=20)
    assert (names, attempt) == (["a"], 1)
    with pytest.raises(TaskFailedError, match="LookupError: nowhere") as raised:
        await (await b.submit(module.fail, tenant="ops")).result(wait=20)
    assert "in fail" in raised.value.traceback
    with pytest.raises(TaskFailedError, match=r"time limit of 0\.1 s"):
        await (await b.submit(module.deaf, tenant="ops")).result(wait=20)
    with pytest.raises(TaskFailedError, match="exit code 3, without a result"):
        await (await b.submit(module.die, tenant="ops")).result(wait=20)
    second, _, _ = await (await b.submit(module.whoami, tenant="ops")).result(wait=20)
    assert second != first


async def test_without_await_it_is_the_same(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="n-{number}:E")
    def half(number: int) -> float:
        if number % 2:
            raise ValueError("odd")
        return number / 2

    await open_shop(b)
    await b.close()

    def use() -> None:
        with bursar.sync.connect(b) as shop:
            tasks = [shop.submit(half, tenant="ops", number=number, key=f"k{number}") for number in (4, 5)]
            assert bursar.sync.wait(tasks, wait=20) == (tasks, [])
            assert tasks[0].result() == 2.0 == shop.find_task(tasks[0].id).result(wait=0)
            with pytest.raises(TaskFailedError, match="ValueError: odd"):
                tasks[1].result()
            assert tasks[1].cancel() == "failed" and tasks[1].status()["attempt"] == 1
            assert bursar.sync.wait([]) == ([], [])

    await asyncio.to_thread(use)


async def test_a_call_that_returns_what_json_cannot_carry_fails(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="a:E")
    def odd() -> object:
        return object()

    await open_shop(b)
    with pytest.raises(TaskFailedError, match="return plain values"):
        await (await b.submit(odd, tenant="ops")).result(wait=20)


async def test_a_task_whose_names_were_taken_is_asked_to_stop(open_shop: Opener) -> None:
    b, stopped = an_app(), asyncio.Event()

    @b.task(needs="a:E")
    async def sleep() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            loop.call_soon_threadsafe(stopped.set)

    loop = asyncio.get_running_loop()
    shop = await open_shop(b)
    task = await b.submit(sleep, tenant="ops")
    await shop.until(task, lambda told: told["state"] == "running")
    assert await b.resource("things").verb("force_release", of="a") == [task.id]
    async with asyncio.timeout(20):
        await stopped.wait()
    with pytest.raises(TaskFailedError, match="is deposed"):
        await task.result(wait=20)


async def test_statistics_list_the_tasks_of_all_workers(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="{name}:E", retries=1, backoff=0)
    def work(name: str) -> None:
        if name == "bad":
            raise ValueError("bad")

    await open_shop(b)
    await bursar.wait([await b.submit(work, tenant="ops", name=name) for name in ("good", "bad")], wait=20)
    async with asyncio.timeout(20):
        while True:
            counted = msgspec.to_builtins((await b.statistics("things")).part)
            stands = {row["names"]: (row["stands"], row["says"]) for row in counted["tasks"].values()}
            if len(stands) == 2:
                break
            await asyncio.sleep(0.05)
    assert stands == {"good:E": ("ok", ""), "bad:E": ("dead", "ValueError: bad")}


async def test_what_is_over_is_in_the_history_with_filters(open_shop: Opener) -> None:
    b = an_app()

    @b.task(needs="{name}:E")
    def work(name: str) -> None:
        if name == "bad":
            raise ValueError(name)

    await open_shop(b)
    tasks = [
        await b.submit(work, tenant=tenant, name=name)
        for tenant, name in (("x", "good"), ("x", "bad"), ("y", "good"))
    ]
    await bursar.wait(tasks, wait=20)
    verb = b.resource("things").verb

    async def find(**filters: Any) -> set[str]:
        return {task["id"] for task in await verb("history", **filters)}

    assert await find() == {task.id for task in tasks}
    assert await find(tenant="x") == {tasks[0].id, tasks[1].id}
    assert await find(outcome="failed") == await find(of="bad") == {tasks[1].id}
    assert await find(function="other") == set()
    assert len(await verb("history", most=1)) == 1
    with pytest.raises(UsageError, match="most is a number"):
        await verb("history", most=0)
    assert await verb("tasks", tenant="x") == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"run": "loop"}, '"thread" or "process" for a plain function'),
        ({"retries": -1}, "retries is a number"),
        ({"time_limit": object()}, "time_limit is a time"),
        ({"backoff": "soon"}, "soon"),
    ],
)
def test_a_wrong_declaration_is_told(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        an_app().task(needs="a:E", **options)(lambda: None)


def test_there_is_no_current_task_where_none_is_done() -> None:
    with pytest.raises(UsageError, match="no task is being done here"):
        bursar.current_task()


def test_a_task_that_is_to_stop_is_told_by_an_error() -> None:
    from bursar.runtime.current import CurrentTask

    task = CurrentTask("t1", "ops", 1, {})
    task.check()
    task.ask("it was cancelled")
    with pytest.raises(StoppedError, match="it was cancelled"):
        task.sleep(60)
