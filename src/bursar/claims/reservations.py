"""Reservations, as the store is told of them. What is known is not read for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bursar.claims.book import Draft, Heir
from bursar.claims.instance_book import InstanceBook
from bursar.claims.limits import Lost, fit
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.reader import Reader
from bursar.errors import FormatError, SessionExpiredError, StoreUnknownError

if TYPE_CHECKING:
    from bursar.claims.names import Names

RESERVED_AT_ONCE = 64
"""Names whose reservations are written in one transaction."""


class Reservations:
    """Invariant: `noted` says which reservations in the store are this instance's to take back."""

    def __init__(self, member: Membership, book: InstanceBook, reader: Reader, names: Names) -> None:
        self._member = member
        self._book = book
        self._reader = reader
        self._names = names
        self._noted: dict[str, str] = {}
        self._is_noting = False

    def forget(self) -> None:
        self._noted.clear()

    def note(self) -> None:
        """Tell the store of what changed since it was last told."""
        if self._is_noting:
            return
        book = self._book
        names = book.queue.drain_reserved()
        if not self._member.others:
            return
        ready = [name for name in names if name not in book.written]
        now = dict.fromkeys(ready[: fit(self._member.world.store, RESERVED_AT_ONCE, 1)])
        later = [name for name in names if name not in now and book.find_heir(name) is not None]
        book.queue.touch_reserved(later)
        heirs = {name: book.find_heir(name) for name in now}
        wanted = {name: heir for name, heir in heirs.items() if heir is not None or name in self._noted}
        if wanted:
            self._is_noting = True
            self._member.spawn(self._note(wanted, self._member.generation), "reserve")

    async def _note(self, heirs: dict[str, Heir | None], generation: int) -> None:
        try:
            await self._write(heirs, self._noted, generation)
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
        self._is_noting = False

    async def _write(
        self, heirs: Mapping[str, Heir | None], mine: Mapping[str, str], generation: int
    ) -> None:
        """Names that changed meanwhile are read, and tried again; so are those of which nothing is known
        (any more: others were removed)."""
        member, plans, store = self._member, self._book.plans, self._member.world.store
        unknown = [name for name in heirs if name not in plans.views]
        if unknown:
            await self._names.refresh(unknown)
            if generation != member.generation:
                return
        known = {name: heir for name, heir in heirs.items() if name in plans.views}
        operations, draft = plans.reserve(known, mine)
        try:
            if operations:
                await store.transact([plans.check_floor(draft), *operations])
        except (*Lost, StoreUnknownError):
            self._book.count("races_lost")
            if generation == member.generation:
                plans.forget(known)
                self._book.queue.touch_reserved(known)
                await self._names.refresh(known)
            return
        if generation == member.generation:
            plans.confirm(draft, member.world.clock.now())
            self.remember(draft)
            self._book.see_draft(draft)
            self._names.follow_again(draft.changed)
            self._book.changed.set()

    def remember(self, draft: Draft) -> None:
        """What a transaction of this instance noted."""
        for name, (_, holding) in draft.changed.items():
            if holding.reserved in self._book.queue.entries:
                self._noted[name] = holding.reserved
            else:
                self._noted.pop(name, None)

    async def clear_stale(self, name: str, generation: int) -> None:
        """A reservation of a task that is no more keeps nobody away."""
        member, view = self._member, self._book.plans.views.get(name)
        id = view.holding.reserved if view is not None else ""
        if not id or self._book.reserves_here(id) or generation != member.generation:
            return
        await self._reader.repeat(member.world.store.sync)
        if not _may_reserve(await self._reader.read_task(id), name) and generation == member.generation:
            await self._write({name: None}, {name: id}, generation)

    async def check(self, name: str, generation: int) -> None:
        """The same, on its own."""
        try:
            await self.clear_stale(name, generation)
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)


def _may_reserve(found: tuple[Task, int] | None, name: str) -> bool:
    """Who waits does, and who runs only what it asks for besides."""
    if found is None:
        return False
    task = found[0]
    return task.state is State.PENDING or any(asked == name for asked, _ in task.asks)
