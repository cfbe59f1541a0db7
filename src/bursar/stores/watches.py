"""The watch that every store hands out: a flag that changes raise and `changed()` lowers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

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


class Watches:
    """Those of one store, for engines that are told which paths changed."""

    def __init__(self) -> None:
        self._by_path: dict[str, dict[FlagWatch, None]] = {}

    def open(self, path: str, session: int) -> FlagWatch:
        watch = FlagWatch(path, session)
        watch.on_close = lambda: self._forget(watch)
        self._by_path.setdefault(path, {})[watch] = None
        return watch

    def paths(self) -> list[str]:
        return list(self._by_path)

    def fire(self, paths: Iterable[str] | None) -> None:
        """These changed; None: anything may have."""
        for path in self.paths() if paths is None else paths:
            for watch in list(self._by_path.get(path, ())):
                watch.fire()

    def expire(self, session: int) -> None:
        for watches in list(self._by_path.values()):
            for watch in list(watches):
                if watch.session == session:
                    self._forget(watch)
                    watch.expire()

    def _forget(self, watch: FlagWatch) -> None:
        watches = self._by_path.get(watch.path, {})
        watches.pop(watch, None)
        if not watches:
            self._by_path.pop(watch.path, None)
