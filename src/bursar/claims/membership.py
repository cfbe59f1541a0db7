"""Being one of the instances: a session of the store, and one generation for each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bursar.claims.era import open_era
from bursar.claims.layout import Layout
from bursar.claims.limits import RETRY_NS
from bursar.claims.reader import Reader
from bursar.errors import NodeExistsError, SessionExpiredError, StoreUnknownError
from bursar.world import World


class Membership:
    """What an instance believes to look after is its own for one generation. Whoever waited for the store
    asks afterwards whether it is still the same; `expire` ends it, once, and tells those in `on_loss`."""

    def __init__(self, world: World, layout: Layout, reader: Reader, node: str) -> None:
        """`node`: its name among the instances."""
        self.world = world
        self.layout = layout
        self.node = node
        self.epoch = 0
        self.generation = 0
        self.peers: list[str] = []
        self.is_stopping = False
        self.problem: str | None = None
        self.on_loss: list[Callable[[], None]] = []
        self._reader = reader
        self._session = 0
        self._left = 0

    @property
    def others(self) -> int:
        """How many instances run beside this one, as far as is known."""
        return max(0, len(self.peers) - 1)

    @property
    def has_session(self) -> bool:
        return self._session != 0

    @property
    def is_trusted(self) -> bool:
        """Whether the session cannot have ended, however slow the store is: what was seen, holds."""
        return self.has_session and self.world.store.trusted_until() > self.world.clock.now()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.world.spawn(work, f"claims.{self.layout.resource}.{name}")

    async def attach(self) -> None:
        """Be able to read and change what the store has, without being an instance."""
        self.epoch = await open_era(self.world, self.layout)
        self._session = self.world.store.session

    async def join(self) -> None:
        """Be one of the instances, in this session. Returns when it is so: another part of the node may
        have opened another session meanwhile, and what is the last one's goes with it."""
        while True:
            session = self.world.store.session
            try:
                self.epoch = await open_era(self.world, self.layout)
                await self._enrol()
                if self.world.store.session == session:
                    self._session = session
                    return
            except SessionExpiredError:
                await self._renew(self.world.store.session)
            except StoreUnknownError:
                await self.world.clock.sleep(RETRY_NS)

    async def join_again(self) -> None:
        """In another session, even if the store did not end the last one: with that go the marks of
        everything that was forgotten, so that somebody finds it."""
        await self._renew(self._left)
        await self.join()

    async def leave(self) -> None:
        await self.world.store.delete(self.layout.instance(self.node))

    async def _renew(self, session: int) -> None:
        """Open a new session, unless another user of the same store did so already."""
        while self.world.store.session == session:
            try:
                await self.world.store.renew()
            except StoreUnknownError:
                await self.world.clock.sleep(RETRY_NS)

    async def _enrol(self) -> None:
        store, path = self.world.store, self.layout.instance(self.node)
        try:
            await store.create(path, ephemeral=True)
        except NodeExistsError:
            stat = await store.exists(path)
            if stat is None or stat.owner != store.session:
                # A session of this very instance that is not over yet at the store.
                await self.world.clock.sleep(RETRY_NS)
                raise StoreUnknownError(f"{path} is another session's") from None

    def expire(self, generation: int) -> None:
        """The session is over: nothing that this instance believed to look after is its own."""
        if generation != self.generation:
            return
        self.generation += 1
        self.world.trace("claim.session_lost", instance=f"{self.world.name}.{self.world.incarnation}")
        self._left, self._session = self._session, 0
        for tell in self.on_loss:
            tell()

    def stop(self) -> None:
        """What is under way belongs to nobody any more."""
        self.generation += 1

    async def wait_for_session(self) -> None:
        while self._session == 0 and not self.is_stopping:
            await self.world.clock.sleep(RETRY_NS)

    async def watch(self, path: str, act: Callable[[], None]) -> None:
        """Act whenever the node changes, for as long as this session lasts."""
        generation = self.generation
        try:
            watch = await self._reader.repeat(lambda: self.world.store.watch(path))
            while generation == self.generation and not self.is_stopping:
                act()
                await watch.changed()
            watch.close()
        except SessionExpiredError:
            self.expire(generation)
        except StoreUnknownError:
            await self.world.clock.sleep(RETRY_NS)
            if generation == self.generation:
                self.spawn(self.watch(path, act), "watch")
