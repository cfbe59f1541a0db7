"""`memory://`: a tree in this process. For tests, demonstrations and a single process that needs
no durability: nothing survives the process, and every session lives in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bursar.errors import SessionExpiredError
from bursar.stores.bounds import check_path
from bursar.stores.draft import Result
from bursar.stores.shorthand import Shorthand
from bursar.stores.tree import Tree
from bursar.stores.watches import FlagWatch
from bursar.world import OPERATIONS_MAX, Clock, Operation, Stat

HEARTBEATS_PER_TIMEOUT = 4


class MemoryStore(Shorthand):
    """A session on a `Tree`. Stores that share a tree must share the clock and the event loop.

    Calls never wait, so a change is seen by all before its caller goes on. A heartbeat of any
    session ends those that are overdue; without any, they end at the next change.
    """

    def __init__(self, tree: Tree, clock: Clock, *, timeout_ns: int, name: str = "") -> None:
        """Open a session; needs a running event loop, for the heartbeat."""
        self._tree = tree
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._name = name
        self._watches: dict[FlagWatch, Callable[[], None]] = {}
        self._open_session()

    @property
    def session(self) -> int:
        return self._session

    @property
    def operations_max(self) -> int:
        return OPERATIONS_MAX

    def trusted_until(self) -> int:
        return self._trusted_until_ns

    async def renew(self) -> int:
        await self.close()
        self._open_session()
        return self._session

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self._check_session()
        return self._tree.get(path)

    async def exists(self, path: str) -> Stat | None:
        self._check_session()
        return self._tree.exists(path)

    async def children(self, path: str) -> list[str]:
        self._check_session()
        return self._tree.children(path)

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        return self._tree.transact(self._clock.now(), self._session, operations)

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        self._check_session()
        watch = FlagWatch(path, self._session)
        watch.on_close = lambda: self._forget(watch)
        self._watches[watch] = self._tree.subscribe(path, watch.fire)
        return watch

    async def sync(self) -> int:
        self._check_session()
        return self._tree.revision

    async def close(self) -> None:
        self._beat.cancel()
        self._tree.end_session(self._session)

    def _open_session(self) -> None:
        sent_ns = self._clock.now()
        self._session = self._tree.open_session(sent_ns, self._timeout_ns, self._name)
        self._trust_from(sent_ns)
        self._tree.subscribe_end(self._session, self._expire)
        self._beat = asyncio.get_running_loop().create_task(self._keep_alive(self._session))

    def _check_session(self) -> None:
        self._tree.check_session(self._clock.now(), self._session)

    def _trust_from(self, sent_ns: int) -> None:
        self._trusted_until_ns = sent_ns + self._timeout_ns * 2 // 3

    def _expire(self) -> None:
        self._trusted_until_ns = 0
        for watch in list(self._watches):
            self._forget(watch)
            watch.expire()

    def _forget(self, watch: FlagWatch) -> None:
        unsubscribe = self._watches.pop(watch, None)
        if unsubscribe is not None:
            unsubscribe()

    async def _keep_alive(self, session: int) -> None:
        while True:
            await self._clock.sleep(self._timeout_ns // HEARTBEATS_PER_TIMEOUT)
            now_ns = self._clock.now()
            try:
                self._tree.heartbeat(now_ns, session)
            except SessionExpiredError:
                return  # whoever calls next is told
            self._trust_from(now_ns)
