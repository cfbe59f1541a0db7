"""Tasks that run and that somebody asked to be cancelled.

The request is a node, there until the task is over: so it outlives the worker that the task runs at, and
whoever looks after the task next does not begin it again. Asking is all that the store can do; stopping
the work is its tracker's. Who asks for a task asks for its subtasks too: it is not over before they are.

Invariant: a task whose request was seen here is not begun here any more.
"""

from __future__ import annotations

from collections.abc import Callable

from bursar.claims.instance_book import InstanceBook
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.reader import Reader
from bursar.claims.submission import Submission
from bursar.errors import (
    FormatError,
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
)


class Cancels:
    """`stop` is called, by whoever has the tasks done, with each id that is to be stopped."""

    def __init__(
        self, member: Membership, book: InstanceBook, reader: Reader, submission: Submission
    ) -> None:
        self.stop: Callable[[str], None] = lambda id: None
        self._asked: dict[str, None] = {}
        self._member = member
        self._store = member.world.store
        self._book = book
        self._reader = reader
        self._submission = submission
        self._is_listing = self._is_old = False

    def is_asked(self, task: Task) -> bool:
        return task.id in self._asked or task.parent in self._asked

    async def ask(self, id: str) -> None:
        """Raises StoreUnknownError, SessionExpiredError; asking again is the same request."""
        try:
            await self._store.create(self._member.layout.cancel(id))
        except NodeExistsError:
            return

    async def end(self, id: str) -> None:
        """The task is over."""
        self._asked.pop(id, None)
        try:
            await self._store.delete(self._member.layout.cancel(id))
        except NodeMissingError:
            return
        except (StoreUnknownError, SessionExpiredError) as error:
            self._member.problem = str(error)  # `sweep` finds it

    def hear(self) -> None:
        """There may be requests that are not known here."""
        self._is_old = True
        if not self._is_listing:
            self._is_listing = True
            self._member.spawn(self._list(), "cancels")

    async def _list(self) -> None:
        while self._is_old:
            self._is_old = False  # what changes from here on is heard again
            try:
                found = await self._store.children(self._member.layout.cancels)
                self._asked = dict.fromkeys(found)
            except (StoreUnknownError, SessionExpiredError, NodeMissingError) as error:
                self._member.problem = str(error)  # `sweep` lists them again
        self._is_listing = False
        self.look()

    def look(self) -> None:
        """Carry out what is asked, of the tasks that are looked after here."""
        for id in self._find_asked():
            mine = self._book.mine.get(id)
            if mine is not None and mine.task.state is State.RUNNING:
                self.stop(id)
            elif mine is not None and mine.is_recorded():
                self._member.spawn(self._withdraw(id), "cancel")

    def _find_asked(self) -> list[str]:
        if not self._asked:
            return []
        parts = [id for id, mine in self._book.mine.items() if mine.task.parent in self._asked]
        return [*self._asked, *parts]

    async def _withdraw(self, id: str) -> None:
        """It waits again: whoever did it died, or it failed."""
        try:
            if await self._submission.withdraw(id, "cancelled"):
                await self.end(id)
        except (StoreUnknownError, Unknown, FormatError) as error:
            self._member.problem = str(error)  # it is looked at again

    async def sweep(self) -> None:
        """Requests whose task is over, by whatever way."""
        try:
            for id in await self._store.children(self._member.layout.cancels):
                if id not in self._book.mine and await self._reader.read_task(id) is None:
                    await self.end(id)
        except (StoreUnknownError, SessionExpiredError, NodeMissingError, FormatError) as error:
            self._member.problem = str(error)
