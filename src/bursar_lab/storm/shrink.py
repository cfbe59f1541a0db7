"""A storm that went wrong, made smaller: faults, then changes, then clients and operations are dropped
while the same promise is still broken.

Every try is a run of its own, so there are few: halves are dropped first, then quarters, and so on, until
nothing more can go or the tries are used up. A run that stays right may only have been lucky: each part is
tried twice before it counts as needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bursar.errors import UsageError
from bursar_lab.storm.checker.verdict import judge_folder
from bursar_lab.storm.operations import draw_operations
from bursar_lab.storm.plan import Plan, read_plan
from bursar_lab.storm.report import list_promises
from bursar_lab.storm.run import Storm

Item = dict[str, Any]
Tell = Callable[[str], None]
TRIES = 2


class Try(Protocol):
    def __call__(self, plan: Plan) -> bool:
        """Carry a plan out: whether the promise was broken again."""


def shrink(folder: Path, out: Path, runs: int, tell: Tell) -> None:
    """Leaves the smallest plan that still went wrong, and its run, in `out`."""
    promises = list_promises(judge_folder(folder))
    if not promises:
        raise UsageError(f"{folder} holds no broken promise: nothing to make smaller")
    plan = read_plan(folder / "plan.json")
    trying = _Runs(out, promises[0], runs, tell)
    tell(f"{promises[0]} was broken; {describe(plan)}; at most {runs} runs")
    smallest = reduce_plan(plan, trying, lambda: trying.left > 0)
    if trying.kept is None:
        tell("it did not go wrong again with anything less")
        return
    tell(f"smallest: {describe(smallest)}, in {out}; again: bursar storm again {out}")


class _Runs:
    """Tries that are really run. The last that went wrong is kept."""

    def __init__(self, out: Path, promise: str, runs: int, tell: Tell) -> None:
        self._out = out
        self._promise = promise
        self._tell = tell
        self.left = runs
        self.kept: Path | None = None

    def __call__(self, plan: Plan) -> bool:
        self.left -= 1
        folder = self._out.with_name(f"{self._out.name}-try")
        shutil.rmtree(folder, ignore_errors=True)
        Storm(plan, folder.resolve(), f"bursar storm again {self._out}", lambda line: None).run()
        broken = self._promise in list_promises(judge_folder(folder))
        self._tell(f"  {describe(plan)}: {'still wrong' if broken else 'right'}, {self.left} runs left")
        if broken:
            shutil.rmtree(self._out, ignore_errors=True)
            folder.rename(self._out)
            self.kept = self._out
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return broken


def reduce_plan(plan: Plan, trying: Try, may_go_on: Callable[[], bool]) -> Plan:
    """The smallest plan found. `trying` says whether a plan still goes wrong."""
    for name in ("faults", "changes"):
        plan = _reduce(plan, name, trying, may_go_on)
    plan = _reduce_operations(plan, trying, may_go_on)
    return _reduce(plan, "clients", trying, may_go_on)


def _reduce(plan: Plan, name: str, trying: Try, may_go_on: Callable[[], bool]) -> Plan:
    """Without parts of a list: everything, halves, quarters, ... single ones."""
    parts = 1
    while may_go_on():
        items: list[Item] = getattr(plan, name)
        smaller = None
        for left in _list_without(items, parts):
            wanted = _without(plan, name, left)
            if (left or name != "clients") and _goes_wrong(wanted, trying, may_go_on):
                smaller = wanted
                break
        if smaller is not None:
            plan, parts = smaller, max(1, parts - 1)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), parts * 2)
    return plan


def _without(plan: Plan, name: str, left: list[Item]) -> Plan:
    """A client that is gone cannot be killed."""
    wanted = copy(plan)
    setattr(wanted, name, left)
    if name == "clients":
        gone = {item["name"] for item in plan.clients} - {item["name"] for item in left}
        wanted.faults = [item for item in plan.faults if not gone & set(item["targets"])]
    return wanted


def _list_without(items: list[Item], parts: int) -> Iterator[list[Item]]:
    size = max(1, -(-len(items) // parts))
    for low in range(0, len(items), size):
        yield items[:low] + items[low + size :]


def _goes_wrong(plan: Plan, trying: Try, may_go_on: Callable[[], bool]) -> bool:
    return any(may_go_on() and trying(plan) for _ in range(TRIES))


def _reduce_operations(plan: Plan, trying: Try, may_go_on: Callable[[], bool]) -> Plan:
    """Each client keeps one half of its operations, as long as a half is enough."""
    for number in range(len(plan.clients)):
        while may_go_on() and plan.clients[number]["program"] == "mixed":
            smaller = next(
                (wanted for wanted in _halve(plan, number) if _goes_wrong(wanted, trying, may_go_on)), None
            )
            if smaller is None:
                break
            plan = smaller
    return plan


def _halve(plan: Plan, number: int) -> Iterator[Plan]:
    client = plan.clients[number]
    total = len(draw_operations(client["seed"], client["kind"], client["rate"], plan.seconds))
    low, high = client["keep"][0] if client["keep"] else (0, total)
    middle = (low + high) // 2
    if low < middle < high:
        for kept in ([low, middle], [middle, high]):
            clients = [*plan.clients]
            clients[number] = {**client, "keep": [kept]}
            yield replace(plan, clients=clients)


def describe(plan: Plan) -> str:
    return f"{len(plan.faults)} faults, {len(plan.changes)} changes, {len(plan.clients)} clients"
