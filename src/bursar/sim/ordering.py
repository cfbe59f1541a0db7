"""A run in which somebody else says what happens next: the ports of a few nodes on one store.

Whatever a node asks of the store waits here until it is chosen; so does the news of a change, the end of a
session, and time. So one run is one order of events, told by the moves that were chosen (see `orders`).
The nodes run the code that they run anywhere.

Sessions last until a move ends them. Timers that only look again whether anything is to be done
(`periodic_ns`) never ring: what rests on them is found out. Those that ask somebody else how work goes on
(`asking_ns`) ring when nothing else happens.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from bursar.errors import BursarError, SessionExpiredError, StoreUnknownError
from bursar.sim.chance import Chance, NodeRandom
from bursar.sim.errors import InvariantError
from bursar.sim.loop import LIFE, Life, VirtualLoop, sleep_until
from bursar.stores.draft import Result
from bursar.stores.shorthand import Shorthand
from bursar.stores.tree import Tree
from bursar.stores.watches import FlagWatch
from bursar.world import OPERATIONS_MAX, SECOND_NS, Operation, Stat, Task, World

NEVER_NS = 1 << 62
AWAY_NS = 60 * SECOND_NS
PATIENCE_NS = 2 * SECOND_NS
"""How long the store is away when it is, and how soon a node gives a request up meanwhile."""

T = TypeVar("T")
Timer = tuple[int, str]
"""When, and whose."""


@dataclass(eq=False, slots=True)
class Request:
    """What a node asked. `what` tells it from others."""

    node: str
    what: Hashable
    work: Callable[[], Any]
    reply: asyncio.Future[Any]

    @property
    def changes(self) -> bool:
        """Whether it would have changed something if only its reply is lost."""
        return isinstance(self.what, tuple) and not isinstance(self.what[0], str)


class Ordering:
    """The store, time, and what waits to be chosen. `requests` are in the order in which they were sent;
    of one node only the first can be done."""

    def __init__(self, periodic_ns: frozenset[int], asking_ns: frozenset[int]) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no signals, no processes
        self.tree = Tree()
        self.periodic_ns = periodic_ns
        self.asking_ns = asking_ns
        self.requests: list[Request] = []
        self.news: list[tuple[str, FlagWatch]] = []
        self.timers: list[Timer] = []
        self.asking: list[Timer] = []
        self.lives: dict[str, Life] = {}
        self.stores: dict[str, OrderedStore] = {}
        self.away_until_ns = self.until_ns = 0
        self.never: asyncio.Future[None] = self.loop.create_future()

    def open_world(self, name: str) -> World:
        """The ports of a node that begins to live."""
        life = self.lives[name] = Life(name, 1)
        store = self.stores[name] = OrderedStore(self, life)
        nothing = cast(Any, None)
        return World(
            name=name,
            incarnation=1,
            clock=OrderedClock(self, life),
            network=nothing,
            store=store,
            journal=nothing,
            words=nothing,
            random=NodeRandom(life, Chance(1).stream(name)),
            spawn=Spawner(self, life),
            trace=_no_trace,
        )

    def perform(self, act: Callable[[], None]) -> None:
        """Do it, and let everybody go on until they wait for what is to be chosen."""
        self.loop.call_soon(act)
        self.loop.run(self.until_ns)
        self.loop.run(self.until_ns)

    def heads(self) -> list[Request]:
        """The next request of each node, oldest first."""
        firsts: dict[str, Request] = {}
        for request in self.requests:
            firsts.setdefault(request.node, request)
        return list(firsts.values())

    def do(self, request: Request) -> None:
        self.requests.remove(request)
        _answer(request.reply, request.work)

    def lose(self, request: Request, *, done: bool) -> None:
        """The request, or if it is done the reply, never arrives."""
        self.requests.remove(request)
        if done:
            _answer(self.loop.create_future(), request.work)
        _answer(request.reply, _unknown)

    def pass_time(self) -> None:
        """To the next timer."""
        self.until_ns = min([*self.timers, *self.asking])[0]

    def leave(self) -> None:
        """The store is away for long; sessions outlast it."""
        self.away_until_ns = self.loop.now_ns + AWAY_NS
        requests, self.requests = self.requests, []
        for request in requests:
            _answer(request.reply, _unknown)

    def kill(self, node: str) -> None:
        """Its session ends when the store misses it: `end_session`."""
        self.lives[node].kill()
        self.requests = [request for request in self.requests if request.node != node]
        self.news = [news for news in self.news if news[0] != node]
        self.timers = [timer for timer in self.timers if timer[1] != node]
        self.asking = [timer for timer in self.asking if timer[1] != node]
        self.loop.bury()

    def end_session(self, node: str) -> None:
        self.tree.end_session(self.stores[node].session_now)

    def close(self) -> None:
        for life in self.lives.values():
            life.kill()
        self.loop.close()


def _no_trace(event: str, /, **fields: int | str | bool | None) -> None:
    """The moves are the history."""


def _answer(reply: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BursarError as error:
        if not reply.done():
            reply.set_exception(error)
            reply.exception()  # whoever asked may be dead
        return
    if not reply.done():
        reply.set_result(result)


def _unknown() -> None:
    raise StoreUnknownError("the store did not reply")


class OrderedClock:
    """World's `clock`: one for all."""

    def __init__(self, run: Ordering, life: Life) -> None:
        self._run = run
        self._life = life

    def now(self) -> int:
        self._life.check()
        return self._run.loop.now_ns

    def wall(self) -> int:
        return self.now()

    def origin(self) -> str:
        return "one"

    async def sleep(self, duration_ns: int) -> None:
        self._life.check()
        run = self._run
        if duration_ns in run.periodic_ns:
            await run.never
        when_ns = run.loop.now_ns + duration_ns
        timer = (when_ns, self._life.name)
        asks = duration_ns in run.asking_ns
        (run.asking if asks else run.timers).append(timer)
        try:
            await sleep_until(run.loop, when_ns)
        finally:
            timers = run.asking if asks else run.timers
            if timer in timers:  # the dead have none any more
                timers.remove(timer)


class Spawner:
    """World's `spawn`."""

    def __init__(self, run: Ordering, life: Life) -> None:
        self._run = run
        self._life = life
        self._context = contextvars.copy_context()
        self._context.run(LIFE.set, life)

    def __call__(self, work: Coroutine[Any, Any, Any], name: str) -> Task:
        task = self._run.loop.create_task(work, name=name, context=self._context.copy())
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._life.dead:
            name = task.get_name()
            raise InvariantError(f"{name} of {self._life.name} ended with {error!r}") from error


@dataclass(eq=False)
class OrderedStore(Shorthand):
    """World's `store`: a session from the beginning, and no heartbeats."""

    run: Ordering
    life: Life
    session_now: int = 0
    is_over: bool = False
    watches: dict[FlagWatch, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        tree = self.run.tree
        self.session_now = tree.open_session(self.run.loop.now_ns, SECOND_NS, self.life.name)
        tree.sessions[self.session_now].expires_ns = NEVER_NS
        self.is_over = False

    @property
    def session(self) -> int:
        self.life.check()
        return self.session_now

    @property
    def operations_max(self) -> int:
        return OPERATIONS_MAX

    def trusted_until(self) -> int:
        return 0 if self.is_over else NEVER_NS

    def expire(self) -> None:
        """It knows that its session is over."""
        self.is_over = True
        watches, self.watches = self.watches, {}
        for watch, end in watches.items():
            end()
            watch.expire()

    async def renew(self) -> int:
        self.expire()
        await self._ask("renew", self._replace)
        return self.session_now

    def _replace(self) -> None:
        self.run.tree.end_session(self.session_now)
        self._open()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return await self._read("get", path, self.run.tree.get)

    async def exists(self, path: str) -> Stat | None:
        return await self._read("exists", path, self.run.tree.exists)

    async def children(self, path: str) -> list[str]:
        return await self._read("children", path, self.run.tree.children)

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        session, given, tree = self.session_now, tuple(operations), self.run.tree
        return await self._guard(given, lambda: tree.transact(self.run.loop.now_ns, session, given))

    async def watch(self, path: str) -> FlagWatch:
        watch = FlagWatch(path, self.session_now)
        self.watches[watch] = await self._read("watch", path, lambda _: self._subscribe(watch))
        watch.on_close = lambda: self.watches.pop(watch, _nothing)()
        return watch

    def _subscribe(self, watch: FlagWatch) -> Callable[[], None]:
        news = (self.life.name, watch)
        return self.run.tree.subscribe(watch.path, lambda: self._hear(news))

    def _hear(self, news: tuple[str, FlagWatch]) -> None:
        if news not in self.run.news and not self.life.dead:
            self.run.news.append(news)

    async def sync(self) -> int:
        return await self._read("sync", "", lambda _: self.run.tree.revision)

    async def close(self) -> None:
        await self._ask("close", lambda: self.run.tree.end_session(self.session_now))

    async def _read(self, what: str, path: str, read: Callable[[str], T]) -> T:
        session, tree = self.session_now, self.run.tree

        def work() -> T:
            tree.check_session(self.run.loop.now_ns, session)
            return read(path)

        return await self._guard((what, path), work)

    async def _guard(self, what: Hashable, work: Callable[[], T]) -> T:
        session = self.session_now
        if self.is_over:
            raise SessionExpiredError(f"session {session} is over")
        try:
            return await self._ask(what, work)
        except SessionExpiredError:
            if session == self.session_now and not self.is_over:
                self.expire()
            raise

    async def _ask(self, what: Hashable, work: Callable[[], T]) -> T:
        self.life.check()
        loop = self.run.loop
        if loop.now_ns < self.run.away_until_ns:
            await OrderedClock(self.run, self.life).sleep(PATIENCE_NS)
            _unknown()
        reply: asyncio.Future[T] = loop.create_future()
        self.run.requests.append(Request(self.life.name, what, work, reply))
        return await reply


def _nothing() -> None:
    """It was never subscribed, or its session is over."""
