"""The watch that every store hands out: a flag that changes raise and `changed()` lowers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bursar.errors import SessionExpiredError, UsageError


class FlagWatch:
    """`Watch` for stores that learn of changes on the event loop.

    A change that comes while nobody waits keeps the flag up, so the next `changed()` returns at
    once: that is what makes "read, then wait, then read again" miss nothing.
    """

    def __init__(self, path: str, session: int) -> None:
        self.path = path
        self.session = session
        self.on_close: Callable[[], None] = lambda: None
        self._flag = asyncio.Event()
        self._expired = False
        self._closed = False

    def fire(self) -> None:
        """The node changed, or may have."""
        self._flag.set()

    def expire(self) -> None:
        """The session is over: every `changed()` from now on says so."""
        self._expired = True
        self._flag.set()

    async def changed(self) -> None:
        if self._closed:
            raise UsageError(f"the watch of {self.path} is closed: ask the store for a new one")
        await self._flag.wait()
        if self._expired and not self._closed:
            raise SessionExpiredError(f"session {self.session} is over: renew, then watch {self.path} again")
        if not self._closed:
            self._flag.clear()

    def close(self) -> None:
        self._closed = True
        self._flag.set()
        self.on_close()
