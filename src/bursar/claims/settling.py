"""Finding out what the store has of a claim, and going on from there: after a session was lost, when a
key is asked for, when something of it may be left in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.claims.model import State, Task, decode_mark
from bursar.errors import (
    FormatError,
    NodeMissingError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)
from bursar.world import MILLISECOND_NS

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions, Asked
    from bursar.claims.courier import Instance

RETRY_NS = 50 * MILLISECOND_NS


class Settling:
    """One coroutine for each claim that settles. It ends with the claim begun anew, granted, or
    dismissed."""

    def __init__(self, instance: Instance, claims: Acquisitions) -> None:
        self._instance = instance
        self._claims = claims

    def begin(self, asked: Asked) -> None:
        asked.is_settling = True
        self._instance.spawn(self._settle(asked), "settle")

    async def _settle(self, asked: Asked) -> None:
        instance = self._instance
        while asked.is_settling:
            await instance.member.wait_for_session()
            if not asked.is_of_concern or not instance.member.has_session:
                self._claims.dismiss(asked)
                return
            generation = instance.member.generation
            try:
                await self._look(asked, generation)
            except SessionExpiredError:
                instance.member.expire(generation)
            except (StoreUnknownError, Unknown):
                await instance.world.clock.sleep(RETRY_NS)
            except FormatError as error:
                asked.may_be_recorded = asked.may_be_granted = False
                self._claims.fail(asked.task.id, Refused(str(error)))

    async def _look(self, asked: Asked, generation: int) -> None:
        reader = self._instance.reader
        await reader.repeat(self._instance.world.store.sync)
        id = await reader.read_key(asked.task.key) if asked.task.key else asked.task.id
        found = await reader.read_task(id) if id is not None else None
        if generation != self._instance.member.generation:
            return
        if found is None:
            self._claims.begin_anew(asked)
        elif not asked.is_for(found[0]):
            self._claims.refuse(asked, found[0])
        elif found[0].state is State.RUNNING:
            await self._inherit(asked, *found, generation)
        else:
            await self._wait_out(asked, found[0])

    async def _wait_out(self, asked: Asked, task: Task) -> None:
        """There is a record that waits."""
        if await self._is_left(task.id):
            if not await self._instance.withdraw_stored(task.id, "cancelled"):
                await self._instance.world.clock.sleep(RETRY_NS)
        elif asked.tickets:
            await self._await_change(asked, task.id)
        else:
            self._claims.dismiss(asked)

    async def _is_left(self, id: str) -> bool:
        """Whether it is this process's, which has forgotten it. (What is nobody's, the instances that
        look for such things take back.)"""
        instance = self._instance
        try:
            mark, _ = await instance.world.store.get(path := instance.layout.busy(id))
        except NodeMissingError:
            return False
        return decode_mark(path, mark).instance == instance.me

    async def _await_change(self, asked: Asked, id: str) -> None:
        """Another process waits for it: go on when that is over."""
        instance = self._instance
        watch = asked.watch = await instance.world.store.watch(instance.layout.task(id))
        try:
            found = await instance.reader.read_task(id)
            if found is not None and found[0].state is not State.RUNNING:
                self._claims.refuse_impatient(asked, f"its key is in use: {id} waits in another process")
                if asked.tickets:
                    await watch.changed()
        finally:
            asked.watch = None
            watch.close()

    async def _inherit(self, asked: Asked, task: Task, version: int, generation: int) -> None:
        """It is granted: to this process, or to another from which it moves here."""
        instance, holdings = self._instance, self._claims.holdings
        held = holdings.find(task.id)
        if held is not None and held.task.is_same_grant(task):
            held.task = task
            self._claims.give(asked, held, is_replayed=True)
            return
        is_own = asked.may_be_granted and task.holder == instance.me
        asked.is_repeat = asked.is_repeat or not is_own
        if not asked.tickets and not is_own:
            self._claims.dismiss(asked)
            return
        marked = await instance.world.store.exists(instance.layout.busy(task.id)) is not None
        asked.may_be_granted = True
        inherited = await instance.inherit(task, version, marked=marked)
        if inherited is not None and generation == instance.member.generation:
            self._claims.give(asked, holdings.hold(inherited), is_replayed=asked.is_repeat)
