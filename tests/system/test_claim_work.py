"""`bursar work` as real processes: tasks done, one process killed in the middle, another finishes."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bursar_lab.zookeeper_server import ZookeeperServers

numbers = itertools.count()
APP = """
import asyncio, os, pathlib
import bursar

app = bursar.Bursar("policy.toml")


@app.task(needs="{host(vm)}:S, {vm}:E", lookup=lambda relation, name: "host-1")
async def power_on(vm: str, fence: dict[str, int], key: str, waits: bool = False) -> str:
    with open("began", "a") as file:
        print(vm, os.getpid(), key, fence[vm], file=file)
    while waits and not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return f"{vm} is on"
"""


class Worker:
    def __init__(self, folder: Path, module: str, name: str) -> None:
        command = [sys.executable, "-m", "bursar", "work", f"{module}:app", "--name", name]
        self._child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.hear() == f"{name} works on machines: power_on"

    @property
    def pid(self) -> int:
        return self._child.pid

    def hear(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def tell(self, signal: signal.Signals) -> None:
        self._child.send_signal(signal)

    def end(self, how: signal.Signals | None = None) -> int:
        if how is not None:
            self.tell(how)
        return self._child.wait(20)


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.needs("zookeeper"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/store.db"
    else:
        with ZookeeperServers(1) as servers:
            yield servers.url("/work")


@pytest.fixture
def shop(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A program's own module, in a directory with its policy."""
    name = f"shop_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / "policy.toml").write_text(
        f'store = "{store}"\n[daemon]\nstate = "{tmp_path}/state"\nsession_timeout = "4s"\n'
        '[resource.machines]\nkind = "claim"\ndead_holder = "requeue"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(name)


def read_began(folder: Path, vm: str) -> list[list[str]]:
    file = folder / "began"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split()[1:] for line in lines if line.split()[0] == vm]


async def until_began(folder: Path, vm: str) -> int:
    """The process that began it."""
    async with asyncio.timeout(30):
        while not read_began(folder, vm):
            await asyncio.sleep(0.02)
    return int(read_began(folder, vm)[0][0])


async def test_a_task_whose_worker_is_killed_is_finished_by_another(shop: ModuleType, tmp_path: Path) -> None:
    workers = {worker.pid: worker for worker in (Worker(tmp_path, shop.__name__, "w1"),)}
    try:
        async with shop.app as b:
            ids = [await b.submit(shop.power_on, tenant="ops", key="order-1", vm="vm-1") for _ in range(3)]
            assert len(set(ids)) == 1
            assert await ids[0].result(wait=40) == "vm-1 is on"
            assert await b.submit("power_on", tenant="ops", key="order-1", vm="vm-1") == ids[0]
            assert len(read_began(tmp_path, "vm-1")) == 1

            second = Worker(tmp_path, shop.__name__, "w2")
            workers[second.pid] = second
            task = await b.submit(shop.power_on, tenant="ops", vm="vm-2", waits=True)
            killed = await until_began(tmp_path, "vm-2")
            assert workers.pop(killed).end(signal.SIGKILL) == -signal.SIGKILL
            (tmp_path / "go").touch()
            end = await task.ended(wait=40)
            assert (end["outcome"], end["result"], end["attempt"]) == ("ok", b'"vm-2 is on"', 2)
            (_, first_key, first_fence), (pid, key, fence) = read_began(tmp_path, "vm-2")
            (left,) = workers
            assert int(pid) == left
            assert first_key == key and int(fence) > int(first_fence)
    finally:
        for worker in workers.values():
            worker.end(signal.SIGKILL)


async def test_a_worker_that_is_told_to_end_finishes_what_it_began(shop: ModuleType, tmp_path: Path) -> None:
    worker = Worker(tmp_path, shop.__name__, "w1")
    async with shop.app as b:
        task = await b.submit(shop.power_on, tenant="ops", vm="vm-1", waits=True)
        await until_began(tmp_path, "vm-1")
        worker.tell(signal.SIGTERM)
        assert worker.hear() == "w1 takes no more tasks, and finishes those that run: 1"
        later = await b.submit(shop.power_on, tenant="ops", vm="vm-2")
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(worker.end) == 0
        end = await task.ended(wait=40)
        assert (end["outcome"], end["attempt"]) == ("ok", 1)
        assert read_began(tmp_path, "vm-2") == []
        next_one = Worker(tmp_path, shop.__name__, "w2")
        assert await later.result(wait=40) == "vm-2 is on"
        assert next_one.end(signal.SIGTERM) == 0
