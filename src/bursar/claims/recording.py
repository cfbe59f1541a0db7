"""Writing claims down that wait, so that they keep their place in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.claims.admission import Admission
from bursar.claims.book import read_revision
from bursar.claims.instance_book import InstanceBook, Mine
from bursar.claims.membership import Membership
from bursar.claims.reader import Reader
from bursar.errors import FormatError, NodeExistsError, SessionExpiredError, StoreUnknownError

if TYPE_CHECKING:
    from bursar.claims.acquisitions import Acquisitions


class Recording:
    """A claim is not in the queue while it is written down: a grant would create the record too."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        reader: Reader,
        admission: Admission,
        claims: Acquisitions,
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._admission = admission
        self._claims = claims

    def record_waiting(self) -> None:
        """A claim that was not granted at once is written down, so that it keeps its place; one that
        does not want to wait is refused."""
        for id in list(self._book.unrecorded):
            if id not in self._book.queue.entries:
                self._book.unrecorded.pop(id, None)
                continue
            mine = self._book.mine[id]
            if mine.version is not None:
                del self._book.unrecorded[id]
                continue
            if not (why := self._book.why_blocked(id)):
                continue
            if self._claims.block(id, why):
                self._book.queue.leave(id)
                mine.recording = True
                self._member.spawn(self._record(mine, self._member.generation), "record")

    async def _record(self, mine: Mine, generation: int) -> None:
        created = None
        try:
            created = await self._write_down(mine, generation)
        except SessionExpiredError:
            self._member.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
        if not self._is_kept(mine, generation):
            return  # whoever dropped it removes the record
        mine.recording = False
        if created is not None:
            mine.version, mine.created = 0, created
            self._admission.enter(mine)
        else:
            self._claims.look_again(mine.task.id)

    async def _write_down(self, mine: Mine, generation: int) -> int | None:
        """The revision that it was written with; None if the key is another's."""
        task = mine.task
        while self._is_kept(mine, generation):
            try:
                return read_revision(await self._store.transact(self._plans.submit(task, take=True)))
            except (StoreUnknownError, NodeExistsError) as error:
                await self._reader.repeat(self._store.sync)
                found = await self._reader.read_record(task.id)
                if found is not None or isinstance(error, NodeExistsError):
                    return found.created if found is not None and found[:2] == (task, 0) else None
        return None

    def _is_kept(self, mine: Mine, generation: int) -> bool:
        return generation == self._member.generation and self._book.mine.get(mine.task.id) is mine
