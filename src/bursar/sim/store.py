"""The coordination store behind a faulty network.

`StoreServer` is the store as a whole: one tree that never fails. `SimStore` is one life's session
on it. A request travels, is done, and its reply travels; either way may be slow, lost or cut. A
request that was sent is done even if its sender dies meanwhile; requests of one session are done
in the order in which they were sent. Reads may lag behind (`lag`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bursar.errors import BursarError, SessionExpiredError, StoreUnknownError
from bursar.sim.chance import Chance, draw_ns
from bursar.sim.clock import DriftingClock
from bursar.sim.lag import Lag, View, differs
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.network import LATENCY_MAX_NS, LATENCY_MIN_NS, Fabric, nobody
from bursar.sim.trace import History
from bursar.stores.bounds import check_operations, check_path
from bursar.stores.draft import Result
from bursar.stores.shorthand import Shorthand
from bursar.stores.tree import Tree
from bursar.stores.watches import FlagWatch
from bursar.world import MILLISECOND_NS, OPERATIONS_MAX, Operation, Stat

STORE = "store"
"""The store's name on the network, for cuts."""

HEARTBEATS_PER_TIMEOUT = 4
REPLIES_PER_TIMEOUT = 2
NOTICE_RETRY_NS = 50 * MILLISECOND_NS

T = TypeVar("T")


class StoreServer:
    """The tree, the end of overdue sessions, and the way to it."""

    def __init__(self, loop: VirtualLoop, chance: Chance, fabric: Fabric, history: History) -> None:
        self.tree = Tree()
        self.operations_max = OPERATIONS_MAX
        self.history = history
        self._loop = loop
        self._fabric = fabric
        self._latency = chance.stream("store/latency")
        self._lost = chance.stream("store/lost")
        self._slow = chance.stream("store/slow")
        self._timeout = chance.stream("store/timeout")
        self._last_arrival: dict[str, int] = {}
        self._stale = chance.stream("store/stale")
        self._lag = Lag(self.tree, self._stale)

    def read(self, session: int, read: Callable[[View], T]) -> T:
        """A read by this session, which may lag behind."""
        self.tree.check_session(self._loop.now_ns, session)
        stale = self._fabric.strikes(self._stale, "store_stale")
        return read(self._lag.pick(session, stale))

    def change(self, session: int, operations: Sequence[Operation]) -> list[Result]:
        results = self.tree.transact(self._loop.now_ns, session, operations)
        self._lag.saw(session)
        return results

    def watch(self, session: int, name: str, path: str, watch: FlagWatch) -> Callable[[], None]:
        """Tell of changes from now on; and, at a replica that lags, of those it has not heard of."""
        view = self.read(session, lambda view: view)
        if differs(view, self.tree, path):
            self.notify(name, watch)
        return self.tree.subscribe(path, lambda: self.notify(name, watch))

    def sync(self, session: int) -> int:
        self.tree.check_session(self._loop.now_ns, session)
        self._lag.saw(session)
        return self.tree.revision

    def open_session(self, name: str, timeout_ns: int) -> int:
        """A server may end a session before its nominal timeout, but not before it is no longer
        trusted: two thirds of it by the session's own clock, with room for drift."""
        granted_ns = draw_ns(self._timeout, timeout_ns * 3 // 4, timeout_ns)
        session = self.tree.open_session(self._loop.now_ns, granted_ns, name)
        self._loop.call_at_ns(self._loop.now_ns + granted_ns, self._expire, session, context=nobody())
        return session

    def _expire(self, session: int) -> None:
        entry = self.tree.sessions.get(session)
        if entry is None:
            return
        if entry.expires_ns <= self._loop.now_ns:
            self.history.add(STORE, "session.expired", session=session, name=entry.name)
            self.tree.end_session(session)
        else:
            self._loop.call_at_ns(entry.expires_ns, self._expire, session, context=nobody())

    def request(self, name: str, work: Callable[[], T], reply: asyncio.Future[T]) -> None:
        """Carry a request to the tree, in order, and its outcome back into `reply`."""
        if self._fabric.strikes(self._lost, "store_lost"):
            if self._lost.random() < 0.5:
                self.history.add(STORE, "request.lost", name=name)
                return
            self.history.add(STORE, "reply.lost", name=name)
            reply = self._loop.create_future()
        when_ns = max(self._travel_ns(), self._last_arrival.get(name, 0))
        self._last_arrival[name] = when_ns
        self._loop.call_at_ns(when_ns, self._do, name, work, reply, context=nobody())

    def _travel_ns(self) -> int:
        when_ns = self._loop.now_ns + draw_ns(self._latency, LATENCY_MIN_NS, LATENCY_MAX_NS)
        if self._fabric.strikes(self._slow, "store_slow"):
            when_ns += draw_ns(self._slow, 0, self._fabric.faults.slow_ns)
        return when_ns

    def _do(self, name: str, work: Callable[[], T], reply: asyncio.Future[T]) -> None:
        if (name, STORE) in self._fabric.cut_links:
            return
        error: BursarError | None = None
        result: Any = None
        if self._fabric.faults.store_stale > 0.0:
            self._lag.keep()
        try:
            result = work()
        except BursarError as raised:
            error = raised
        self._loop.call_at_ns(self._travel_ns(), self._deliver, name, reply, result, error, context=nobody())

    def _deliver(self, name: str, reply: asyncio.Future[T], result: T, error: BursarError | None) -> None:
        if reply.done() or (STORE, name) in self._fabric.cut_links:
            return
        if error is None:
            reply.set_result(result)
        else:
            reply.set_exception(error)
            reply.exception()  # whoever asked may be dead: that is no error of the run

    def notify(self, name: str, watch: FlagWatch) -> None:
        """Tell of a change; a notice waits for a cut to end."""
        self._loop.call_at_ns(self._travel_ns(), self._fire, name, watch, context=nobody())

    def _fire(self, name: str, watch: FlagWatch) -> None:
        if (STORE, name) in self._fabric.cut_links:
            retry_ns = self._loop.now_ns + NOTICE_RETRY_NS
            self._loop.call_at_ns(retry_ns, self._fire, name, watch, context=nobody())
        else:
            self._lag.saw(watch.session)
            watch.fire()


class SimStore(Shorthand):
    """World's `store` of one life. The session is opened when it is first used, so that a
    scenario without a store pays nothing for heartbeats; `former`, that of an earlier life which
    is known to be over, ends then."""

    def __init__(
        self,
        server: StoreServer,
        loop: VirtualLoop,
        life: Life,
        clock: DriftingClock,
        spawn: Callable[[Any, str], Any],
        timeout_ns: int,
        former: int = 0,
    ) -> None:
        self._server = server
        self._loop = loop
        self._life = life
        self._clock = clock
        self._spawn = spawn
        self._timeout_ns = timeout_ns
        self._former = former
        self._session = 0
        self._expired = False
        self._trusted_until_ns = 0
        self._watches: dict[FlagWatch, Callable[[], None]] = {}

    @property
    def session(self) -> int:
        self._life.check()
        if self._session == 0:
            self._server.tree.end_session(self._former)
            self._begin(self._clock.now(), self._server.open_session(self._life.name, self._timeout_ns))
        return self._session

    @property
    def operations_max(self) -> int:
        return self._server.operations_max

    @property
    def last_session(self) -> int:
        """Also of a dead life, for the next one; 0 for none."""
        return self._session

    def trusted_until(self) -> int:
        self._life.check()
        return self._trusted_until_ns

    async def renew(self) -> int:
        old = self.session
        self._expire()
        sent_ns = self._clock.now()
        session = await self._ask(lambda: self._replace(old))
        self._begin(sent_ns, session)
        return session

    def _replace(self, old: int) -> int:
        self._server.tree.end_session(old)
        return self._server.open_session(self._life.name, self._timeout_ns)

    def _begin(self, sent_ns: int, session: int) -> None:
        self._session = session
        self._expired = False
        self._trust_from(sent_ns)
        self._spawn(self._keep_alive(session), "store.heartbeat")

    def _trust_from(self, sent_ns: int) -> None:
        self._trusted_until_ns = max(self._trusted_until_ns, sent_ns + self._timeout_ns * 2 // 3)

    async def _keep_alive(self, session: int) -> None:
        while session == self._session and not self._expired:
            sent_ns = self._clock.now()
            try:
                await self._ask(
                    lambda: self._server.tree.heartbeat(self._loop.now_ns, session),
                    self._timeout_ns // HEARTBEATS_PER_TIMEOUT,
                )
            except StoreUnknownError:
                continue
            except SessionExpiredError:
                if session == self._session:
                    self._expire()
                return
            if session == self._session and not self._expired:
                self._trust_from(sent_ns)
            await self._clock.sleep(self._timeout_ns // HEARTBEATS_PER_TIMEOUT)

    def _expire(self) -> None:
        """This session is over, as far as this node knows."""
        self._expired = True
        self._trusted_until_ns = 0
        for watch, unsubscribe in list(self._watches.items()):
            unsubscribe()
            watch.expire()
        self._watches.clear()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return await self._read(lambda view: view.get(path))

    async def exists(self, path: str) -> Stat | None:
        return await self._read(lambda view: view.exists(path))

    async def children(self, path: str) -> list[str]:
        return await self._read(lambda view: view.children(path))

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        session = self._open()
        check_operations(operations, self._server.operations_max)
        given = tuple(operations)
        return await self._guard(session, lambda: self._server.change(session, given))

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        session = self._open()
        watch = FlagWatch(path, session)
        end = await self._guard(session, lambda: self._server.watch(session, self._life.name, path, watch))
        self._watches[watch] = end
        watch.on_close = lambda: self._forget(watch)
        return watch

    def _forget(self, watch: FlagWatch) -> None:
        end = self._watches.pop(watch, None)
        if end is not None:
            end()

    async def sync(self) -> int:
        session = self._open()
        return await self._guard(session, lambda: self._server.sync(session))

    async def close(self) -> None:
        session = self._open()
        try:
            await self._ask(lambda: self._server.tree.end_session(session))
        finally:
            self._expire()

    def _open(self) -> int:
        """This session, unless it is known to be over."""
        session = self.session
        if self._expired:
            raise SessionExpiredError(f"session {session} is over: renew() opens a new one")
        return session

    async def _read(self, read: Callable[[View], T]) -> T:
        session = self._open()
        return await self._guard(session, lambda: self._server.read(session, read))

    async def _guard(self, session: int, work: Callable[[], T]) -> T:
        try:
            return await self._ask(work)
        except SessionExpiredError:
            if session == self._session and not self._expired:
                self._expire()
            raise

    async def _ask(self, work: Callable[[], T], patience_ns: int | None = None) -> T:
        """Send a request and wait for its reply, for part of the session's timeout."""
        self._life.check()
        patience_ns = patience_ns or self._timeout_ns // REPLIES_PER_TIMEOUT
        reply: asyncio.Future[T] = self._loop.create_future()
        deadline_ns = self._loop.now_ns + patience_ns
        timer = self._loop.call_at_ns(deadline_ns, _give_up, reply)
        try:
            self._server.request(self._life.name, work, reply)
            return await reply
        finally:
            timer.cancel()


def _give_up(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(
            StoreUnknownError("the store did not reply: it may or may not have happened, read back")
        )
