"""What a protocol may not use, read off its source: whatever would make two runs of a seed differ,
or reach around its World."""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "src"
SOURCE = ROOT / "bursar"
KINDS = ("rates", "shares", "pools", "quotas", "claims")
BANNED_MODULES = {
    "datetime.now": "the time is `world.clock`",
    "datetime.today": "the time is `world.clock`",
    "datetime.utcnow": "the time is `world.clock`",
    "grpc": "messages go through `world.network`",
    "kazoo": "the store is `world.store`",
    "multiprocessing": "work is started with `world.spawn`",
    "os": "a protocol has no operating system, only its World",
    "random": "chance is `world.random`",
    "redis": "shared words are `world.words`",
    "secrets": "chance is `world.random`",
    "socket": "messages go through `world.network`",
    "sqlite3": "the store is `world.store`",
    "subprocess": "a protocol has no operating system, only its World",
    "threading": "work is started with `world.spawn`",
    "time": "the time is `world.clock`",
    "uuid": "chance is `world.random`",
}
BANNED_NAMES = {
    "asyncio.TaskGroup": "it cancels its tasks in the order of their addresses; use `asyncio.gather`",
    "asyncio.wait": "it returns sets, ordered by address; use `asyncio.gather`",
    "asyncio.as_completed": "it keeps its tasks in a set; use `asyncio.gather`",
    "asyncio.all_tasks": "it returns a set, ordered by address",
    "asyncio.sleep": "it counts in floats of nobody's clock; use `world.clock.sleep`",
    "asyncio.create_task": "use `world.spawn`, so that an error takes the node down",
    "asyncio.run": "the loop belongs to the simulator or the runtime",
    "asyncio.to_thread": "threads have an order of their own",
}


def protocol_files() -> list[pathlib.Path]:
    files = [SOURCE / "book.py", SOURCE / "courier.py"]
    for package in (*(SOURCE / kind for kind in KINDS), ROOT / "bursar_lab" / "leases"):
        files += sorted(package.rglob("*.py"))
    return files


def offences(path: pathlib.Path, source: str) -> list[str]:
    found = []
    tree = ast.parse(source)
    yields = {id(node.func) for node in ast.walk(tree) if _is_yield(node)}
    for node in ast.walk(tree):
        for name, why in _used(node) if id(node) not in yields else ():
            found.append(f"{path}:{getattr(node, 'lineno', 0)}: {name}: {why}")
    return found


def _is_yield(node: ast.AST) -> bool:
    """`asyncio.sleep(0)` lets others go first and waits for no clock."""
    return isinstance(node, ast.Call) and [ast.dump(each) for each in node.args] == ["Constant(value=0)"]


def _used(node: ast.AST) -> list[tuple[str, str]]:
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module), level=0):
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        case ast.Attribute(value=ast.Name(id=module)):
            names = [f"{module}.{node.attr}"]
        case _:
            return []
    banned = BANNED_MODULES | BANNED_NAMES
    found = []
    for name in names:
        wanted = name if isinstance(node, ast.Attribute) or name in BANNED_NAMES else name.split(".")[0]
        if wanted in banned:
            found.append((wanted, banned[wanted]))
    return found


@pytest.mark.parametrize("path", protocol_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_protocol_sees_nothing_but_its_world(path: pathlib.Path) -> None:
    assert offences(path, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import os.path",
        "import asyncio\nasync def f(): await asyncio.wait([])",
        "from asyncio import TaskGroup",
        "async def f():\n    import random",
        "import asyncio\nasync def f():\n    async with asyncio.TaskGroup() as group: ...",
    ],
)
def test_the_rule_finds_what_it_forbids(source: str) -> None:
    assert offences(pathlib.Path("x.py"), source)


def test_the_rule_allows_what_is_harmless() -> None:
    source = "import asyncio\nfrom bursar.world import World\nasync def f(): await asyncio.gather()"
    assert offences(pathlib.Path("x.py"), source) == []
    assert offences(pathlib.Path("x.py"), "from . import time") == []
