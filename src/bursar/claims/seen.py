"""The tasks of a resource as its statistics list them, at whichever instance they are done: read from the
store when somebody looks, a bounded number of them, and shown until they are read again."""

from __future__ import annotations

import msgspec

from bursar.claims.courier import Instance
from bursar.claims.model import State, Task
from bursar.claims.records import Records, last_line, say_failure
from bursar.errors import FormatError, NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import SECOND_NS

AGAIN_NS = SECOND_NS
SHOWN_MAX = 100
"""Of those that are not over, and of those that were given up."""

OVER_MAX = 50
OVER_SHARDS = 128
"""Shards of what is over that are listed in one look, and so all of them in some."""


class TaskSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One task, for people. stands: its state, or how it ended; at: who does it; says: how far it is, or why
    it is where it is."""

    tenant: str
    names: str
    function: str
    stands: str
    attempt: int
    at: str = ""
    says: str = ""


class Seen:
    """`rows` are as old as the last time that somebody looked, and a second."""

    def __init__(self, instance: Instance, records: Records) -> None:
        self.rows: dict[str, TaskSeen] = {}
        self._instance = instance
        self._records = records
        self._over: dict[str, Task] = {}
        self._looked_ns = -AGAIN_NS
        self._is_looking = False
        self._turn = 0

    def look(self) -> None:
        now_ns = self._instance.world.clock.now()
        if not self._is_looking and self._instance.is_trusted and now_ns - self._looked_ns >= AGAIN_NS:
            self._is_looking, self._looked_ns = True, now_ns
            self._instance.spawn(self._read(), "seen")

    async def _read(self) -> None:
        try:
            current = await self._records.tell(await self._records.some("tasks", SHOWN_MAX))
            dead = await self._records.some("dead", SHOWN_MAX)
            await self._read_over()
            rows = {told["id"]: _show_current(told) for told in current}
            rows |= {task.id: _show_over(task) for task in (*dead, *self._over.values())}
            self.rows = rows
        except (StoreUnknownError, SessionExpiredError, NodeMissingError, FormatError) as error:
            self._instance.member.problem = str(error)
        self._is_looking = False

    async def _read_over(self) -> None:
        """The latest of them."""
        shards = self._instance.layout.released_shards
        first = self._turn % len(shards)
        self._turn += OVER_SHARDS
        part = (shards[first:] + shards[:first])[:OVER_SHARDS]
        found = await self._records.some("released", SHOWN_MAX, part, self._over)
        tasks = sorted((*self._over.values(), *found), key=lambda task: (-task.ended, task.id))
        self._over = {task.id: task for task in tasks[:OVER_MAX]}


def _show_current(told: dict[str, object]) -> TaskSeen:
    needs = told["needs"]
    assert isinstance(needs, list), "described"
    holder = str(told["holder"])
    is_gone = told["alive"] is False
    return TaskSeen(
        tenant=str(told["tenant"]),
        names=", ".join(needs),
        function=str(told["function"]) or ("a claim" if told["claim"] else ""),
        stands=str(told["state"]),
        attempt=int(str(told["attempt"])),
        at=(holder.rpartition(".")[0] or holder) + (" (gone)" if is_gone else ""),
        says=str(told["note"]) or last_line(str(told["failure"])),
    )


def _show_over(task: Task) -> TaskSeen:
    return TaskSeen(
        tenant=task.tenant,
        names=", ".join(f"{name}:{mode}" for name, mode in task.needs),
        function=task.function,
        stands=task.outcome or str(State.RELEASED),
        attempt=task.attempt,
        says=last_line(task.result.decode("utf-8", "replace"))
        if task.outcome != "ok"
        else say_failure(task)
        if task.failures
        else "",
    )
