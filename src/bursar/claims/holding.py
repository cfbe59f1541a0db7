"""Claims that this process holds, and how each ends: let go, lost with whoever had it, or taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bursar.claims.model import Task
from bursar.errors import FormatError, SessionExpiredError, StoreUnknownError, Unknown
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.claims.courier import Instance

AGAIN_NS = SECOND_NS // 2
"""An end that could not be recorded is tried again after so long, until it is."""

Ending = Callable[[Task], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Held:
    """A claim as it was granted, for so many grants."""

    task: Task
    holders: int = 0


class Holdings:
    """Invariant: a claim without holders is being ended, or is kept because the policy says so."""

    def __init__(self, instance: Instance, ended: Callable[[], None]) -> None:
        """`ended` is called when an end is recorded."""
        self._instance = instance
        self._ended = ended
        self._held: dict[str, Held] = {}
        self.ending = 0

    @property
    def ids(self) -> list[str]:
        return list(self._held)

    def find_tenants(self) -> set[str]:
        return {held.task.tenant for held in self._held.values()}

    def find(self, id: str) -> Held | None:
        return self._held.get(id)

    def hold(self, task: Task) -> Held:
        held = self._held[task.id] = Held(task)
        return held

    def refresh(self, task: Task) -> None:
        """The record as it is now: it may have grown, or what it asked for is known to nobody any more."""
        held = self._held.get(task.id)
        if held is not None and held.task.is_same_grant(task):
            held.task = task

    def depose(self, id: str, attempt: int) -> None:
        """It was taken away by force."""
        held = self._held.get(id)
        if held is not None and held.task.attempt == attempt:
            del self._held[id]

    def finish(self, held: Held) -> Awaitable[None] | None:
        """One grant of it is left; the last one releases it."""
        held.holders -= 1
        return self.end(held)

    def end(self, held: Held) -> Awaitable[None] | None:
        """Release it, if nobody has it."""
        return self._end(held, self._release) if self._is_nobodys(held) else None

    def lose(self, held: Held, *, keep: bool) -> None:
        """Whoever had one grant of it is gone. The last one's names go by force, or are kept for
        whoever has the key."""
        held.holders -= 1
        if not self._is_nobodys(held):
            return
        if keep:
            del self._held[held.task.id]
            self._instance.admission.leave_held(held.task)
        else:
            self._end(held, self._remove)

    async def release_left(self, id: str, attempt: int) -> None:
        """Release a grant that was made by an earlier life of this process, or by another one. Not if
        somebody was given it since, with its key. Raises Unknown."""
        reader, store = self._instance.reader, self._instance.world.store
        try:
            await reader.repeat(store.sync)
            found = await reader.read_task(id)
            if found is None or id in self._held:
                return
            if found[0].is_claim and found[0].attempt == attempt:
                await self._instance.release(id, only=found[0])
        except (StoreUnknownError, SessionExpiredError, FormatError) as error:
            raise Unknown(f"{id} still has its names: {error}") from error

    def _is_nobodys(self, held: Held) -> bool:
        """False also for one that was taken away, or moved to another process and back."""
        return held.holders == 0 and self._held.get(held.task.id) is held

    def _end(self, held: Held, how: Ending) -> Awaitable[None]:
        """It ends whether anybody awaits that or not, and however long the store is away."""
        del self._held[held.task.id]
        self.ending += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._instance.spawn(self._end_until_done(held.task, how, done), "end")
        return done

    async def _end_until_done(self, task: Task, how: Ending, done: asyncio.Future[None]) -> None:
        instance = self._instance
        while (error := await self._try(task, how)) is not None:
            instance.member.problem = str(error)
            if not done.done():
                done.set_exception(error)
                done.exception()  # whoever let go may not wait for it
            if instance.is_stopping and not instance.member.has_session:
                break  # what stays goes as the policy says of dead holders
            await instance.world.clock.sleep(AGAIN_NS)
        if not done.done():
            done.set_result(None)
        self.ending -= 1
        self._ended()

    async def _try(self, task: Task, how: Ending) -> Unknown | None:
        try:
            await how(task)
        except (Unknown, StoreUnknownError, SessionExpiredError, FormatError) as error:
            return Unknown(f"{task.id} still has its names, and is released later: {error}")
        return None

    async def _release(self, task: Task) -> object:
        return await self._instance.release(task.id, only=task)

    async def _remove(self, task: Task) -> object:
        return await self._instance.remove_holder(task.id, only=task)
