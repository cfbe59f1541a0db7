"""Handles of tasks: what `submit` returns, and how its end is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bursar.errors import NotDoneError, TaskFailedError, Unknown, UsageError
from bursar.resource.door import Resource
from bursar.runtime.functions import read_seconds
from bursar.world import SECOND_NS

STEP_S = 1.0
"""A task is waited for in steps, none longer than an answer may take."""

AWAY_S = 0.2
"""Whoever waits asks again so long after an answer that could not be learnt."""

WAITED_FOR_MAX = 1_000


class Task:
    """A task that was submitted, here or by another process (`b.find_task(id)`). Handles of the same task
    are equal."""

    __slots__ = ("_door", "id")

    def __init__(self, door: Resource, id: str) -> None:
        self._door = door
        self.id = id

    @property
    def resource(self) -> str:
        return self._door.name

    async def result(self, wait: float | str | None = None) -> Any:
        """What its function returned, when it is over. Raises TaskFailedError if it has no result, with the
        traceback from where it ran; NotDoneError if it is not over after `wait` seconds (None: waits for as
        long as it takes)."""
        return read_result(await self.ended(wait))

    async def ended(self, wait: float | str | None = None) -> dict[str, Any]:
        """The task as `status` tells it, when it is over, however it ended. Raises NotDoneError."""
        left = _Left(self._door, wait)
        while True:
            step_s = min(STEP_S, left.seconds())
            try:
                told: dict[str, Any] = await self._door.verb("wait_for", id=self.id, timeout=step_s)
            except Unknown:
                if left.seconds() <= 0:
                    raise
                await asyncio.sleep(AWAY_S)
                continue
            if told["state"] == "released":
                return told
            if left.seconds() <= 0:
                raise NotDoneError(
                    f"{self.id} is not over: it is {told['state']}; `bursar tasks why` says more"
                )

    async def status(self) -> dict[str, Any]:
        """As it stands: state, outcome, attempt, holder, note, failure, ... Raises UsageError if it is not
        known (any more)."""
        told: dict[str, Any] | None = await self._door.verb("read", id=self.id)
        if told is None:
            raise UsageError(f"{self.resource} knows no task {self.id}, or it was over long ago")
        return told

    async def why(self) -> list[str]:
        """What it waits for, or who does it, in sentences."""
        lines: list[str] = await self._door.verb("why", id=self.id)
        return lines

    async def cancel(self, wait: float = 2.0) -> str:
        """Take it back while it waits, ask it to stop while it runs. How it ended, "asked" if it has not
        stopped after `wait` seconds; it is not begun again then."""
        outcome: str = await self._door.verb("cancel", id=self.id, wait=wait)
        return outcome

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and (self.resource, self.id) == (other.resource, other.id)

    def __hash__(self) -> int:
        return hash((self.resource, self.id))

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.resource}>"


class _Left:
    """How much of a wait is left."""

    def __init__(self, door: Resource, wait: float | str | None) -> None:
        self._clock = door.clock
        self._until_ns = None
        if wait is not None:
            self._until_ns = self._clock.now() + int(read_seconds("wait", wait) * SECOND_NS)

    def seconds(self) -> float:
        if self._until_ns is None:
            return STEP_S
        return max(0.0, (self._until_ns - self._clock.now()) / SECOND_NS)


async def wait(
    tasks: Iterable[Task], *, count: int | None = None, wait: float | str | None = None
) -> tuple[list[Task], list[Task]]:
    """Wait until `count` of the tasks are over (None: all of them), however they ended, for at most `wait`
    seconds. Those that are, and those that are not, in the order given."""
    pending = list(dict.fromkeys(tasks))
    order = {task: number for number, task in enumerate(pending)}
    needed = len(pending) if count is None else min(count, len(pending))
    over: list[Task] = []
    left = _Left(pending[0]._door, wait) if pending else None
    while left is not None and pending:
        found = await _find_over(pending, max(1, needed - len(over)), min(STEP_S, left.seconds()))
        over += found
        pending = [task for task in pending if task not in dict.fromkeys(found)]
        if len(over) >= needed or left.seconds() <= 0:
            break
    return sorted(over, key=order.__getitem__), pending


async def _find_over(pending: Sequence[Task], count: int, timeout_s: float) -> list[Task]:
    """Of the first so many of each resource."""
    by_resource: dict[str, list[Task]] = {}
    for task in pending:
        by_resource.setdefault(task.resource, []).append(task)
    groups = [group[:WAITED_FOR_MAX] for group in by_resource.values()]
    found = await asyncio.gather(*(_ask(group, min(count, len(group)), timeout_s) for group in groups))
    return [task for group in found for task in group]


async def _ask(group: Sequence[Task], count: int, timeout_s: float) -> list[Task]:
    ids = [task.id for task in group]
    try:
        told = await group[0]._door.verb("wait_for_some", ids=ids, count=count, timeout=timeout_s)
    except Unknown:
        await asyncio.sleep(min(AWAY_S, timeout_s))
        return []
    over = {each["id"] for each in told}
    return [task for task in group if task.id in over]


def read_result(told: dict[str, Any]) -> Any:
    """Of a task that is over. Raises TaskFailedError."""
    data: bytes = told["result"]
    if told["outcome"] == "ok":
        if not told["function"]:
            return data
        return msgspec.json.decode(data) if data else None
    raise TaskFailedError(told["id"], told["outcome"], data.decode("utf-8", "replace") or told["failure"])
