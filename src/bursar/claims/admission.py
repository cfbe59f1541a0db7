"""Letting tasks wait: their names are read where that is needed, and then they are in the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bursar.claims.counting import Counting
from bursar.claims.instance_book import UNRECORDED, InstanceBook, Mine
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.model import Outcome, State, Task
from bursar.claims.names import Names
from bursar.claims.reader import Reader
from bursar.errors import FormatError, Refused, SessionExpiredError, StoreUnknownError, Unknown

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions


Withdraw = Callable[[str, "Outcome", bytes], Awaitable[bool]]
"""Take back a record that waits."""


class Admission:
    """Invariant: what is admitted is in the queue, or its names are being read, or its time has not come,
    or it was given back to whoever looks for tasks."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        names: Names,
        looking: Looking,
        claims: Acquisitions,
        counting: Counting,
        withdraw: Withdraw,
    ) -> None:
        self._member = member
        self._book = book
        self._reader = reader
        self._names = names
        self._looking = looking
        self._claims = claims
        self._counting = counting
        self._withdraw = withdraw

    def admit(self, mine: Mine) -> None:
        """Let a task wait for its names."""
        book, member = self._book, self._member
        book.take_in(mine)
        if mine.task.not_before > member.world.clock.wall():
            book.put_later(mine)
            return
        needed = mine.task.names
        names = book.find_unknown(needed, member.world.clock.now(), alone=not member.others)
        if not mine.patient:
            # A refusal is an answer: it is not given for what another may have let go of since.
            names += [name for name in needed if name not in names and book.is_others(name)]
        if names or mine.task.parent or not (mine.patient or self._book.has_units(mine.task)):
            member.spawn(self._admit_later(mine, names), "admit")
        else:
            self.enter(mine)

    def admit_claim(self, task: Task, *, patient: bool) -> None:
        now_ns = self._member.world.clock.now()
        self.admit(Mine(task, None, UNRECORDED + now_ns, now_ns, patient=patient))

    def drop_claim(self, id: str) -> bool:
        """Let a claim wait no longer. True if there may be a record of it in the store."""
        mine = self._book.mine.get(id)
        self._book.drop(id)
        return mine is not None and (mine.version is not None or mine.recording)

    def enter(self, mine: Mine) -> None:
        if why := self._book.find_beyond(mine.task):
            self._refuse(mine, why)
            return
        self._book.enter(mine)
        if mine.task.is_claim:
            self._claims.enter(mine.task.id)
        elif self._book.draining:
            self._looking.wanted.set()  # it is left to others

    async def _admit_later(self, mine: Mine, names: list[str]) -> None:
        member, generation = self._member, self._member.generation
        try:
            if not mine.patient:
                await self._reader.repeat(member.world.store.sync)
            await self._names.refresh(names)
            if not mine.patient:
                await self._counting.fetch(mine.task)
            is_orphan = bool(mine.task.parent) and not await self._has_parent(mine.task)
        except SessionExpiredError:
            member.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            member.problem = str(error)
            if self._book.mine.get(mine.task.id) is mine:
                self._admit_not(mine, error)
            return
        if generation == member.generation and self._book.mine.get(mine.task.id) is mine:
            if is_orphan:
                self._refuse(mine, f"its parent, {mine.task.parent}, does not run any more")
            else:
                self.enter(mine)

    async def _has_parent(self, task: Task) -> bool:
        found = await self._reader.read_task(task.parent)
        return found is not None and found[0].state is State.RUNNING

    def _refuse(self, mine: Mine, why: str) -> None:
        """It can never be granted."""
        if mine.task.is_claim:
            self._claims.fail(mine.task.id, Refused(why))
            self._book.drop(mine.task.id)
        else:
            self._member.spawn(self._fail(mine.task.id, why), "refuse")

    async def _fail(self, id: str, why: str) -> None:
        try:
            await self._withdraw(id, "failed", why.encode())
        except (StoreUnknownError, Unknown, FormatError) as error:
            self._member.problem = str(error)
            self._book.drop(id)
            self._looking.doubt([id])

    def _admit_not(self, mine: Mine, error: StoreUnknownError | FormatError) -> None:
        """Its names could not be read."""
        id = mine.task.id
        if not mine.task.is_claim:
            self._book.drop(id)
            self._looking.doubt([id])  # the next look finds it waiting
        elif isinstance(error, FormatError):
            self._claims.fail(id, Refused(str(error)))
        else:
            self._claims.look_again(id)

    def leave_held(self, task: Task) -> None:
        """A claim whose holder is gone stays as it is. Whoever lets it go, or takes it over, may be any
        process: those who wait here for its names follow them as they do other instances'."""
        self._book.count("kept")
        self._book.part(task.id)
        self._book.queue.touch(name for name, _ in task.needs)
        self._book.changed.set()
