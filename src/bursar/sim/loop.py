"""An asyncio event loop in virtual time: nothing waits, and one order of events for each seed.

Time is an integer of nanoseconds and jumps from one timer to the next. What is ready runs in the
order in which it became ready; timers of one moment run in the order in which they were set.
There are no sockets, threads or signals: whatever a protocol needs comes through its World.

Everything that runs belongs to a *life*: one node from its boot to its crash. Tasks and timers
inherit the life of whoever started them through the context, also those started by asyncio
itself (`gather`, `wait_for`, `timeout`). A dead life is never run again. Its tasks are neither
cancelled nor collected, either of which would run their `finally` blocks: that is how a graceful
release looks, and a crash is not one.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from bursar.errors import BursarError, CrashedError
from bursar.sim.errors import EndlessError
from bursar.world import SECOND_NS

COLLECT_EVERY_EVENTS = 200_000
"""Python's collector runs at moments of its own choosing; here it runs at counted events."""

STILL_MAX_EVENTS = 200_000
"""So many events without time passing are an endless loop, not a busy moment."""

CANCELLED_TIMERS_MIN = 2_000


class Life:
    """One node from boot to crash. `held` is true while the loop must not simply run it: it is
    dead, or paused until some time."""

    __slots__ = ("dead", "held", "incarnation", "name", "paused_until")

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.dead = False
        self.held = False
        self.paused_until = 0

    def check(self) -> None:
        """Every port calls this first: nothing is done in the name of a dead node."""
        if self.dead:
            raise CrashedError(f"{self.name} has crashed (life {self.incarnation})")

    def kill(self) -> None:
        self.dead = self.held = True

    def pause(self, until_ns: int) -> None:
        self.paused_until = until_ns
        self.held = True


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("bursar_life", default=None)


class Handle:
    """A callback that is to run, as asyncio's own handles look from outside."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_timers", "_when_ns")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        when_ns: int = -1,
        timers: _Timers | None = None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when_ns = when_ns
        self._timers = timers

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self._timers is not None:
                self._timers.note_cancelled()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when_ns / SECOND_NS


def _nothing() -> None:
    """What a cancelled handle calls."""


class _Timers:
    """Handles by the time at which they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Handle]] = []
        self._sequence = 0
        self._cancelled = 0

    def push(self, when_ns: int, handle: Handle) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_ns, self._sequence, handle))

    def note_cancelled(self) -> None:
        """Timeouts are mostly cancelled long before they are due; do not carry them along."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_TIMERS_MIN and 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2]._cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def pop(self, until_ns: int) -> tuple[int, Handle] | None:
        """The next live timer that is due by then."""
        heap = self._heap
        while heap:
            when_ns, _, handle = heap[0]
            if handle._cancelled:
                heapq.heappop(heap)
                self._cancelled = max(0, self._cancelled - 1)
            elif when_ns > until_ns:
                return None
            else:
                heapq.heappop(heap)
                handle._timers = None
                return when_ns, handle
        return None


class VirtualLoop(asyncio.AbstractEventLoop):
    """Run it with `run(until_ns)`; what `after_event` raises ends the run there."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.after_event: Callable[[], None] | None = None
        self._ready: deque[Handle] = deque()
        self._timers = _Timers()
        self._buried: set[asyncio.Task[Any]] = set()
        self._unhandled: list[str] = []
        self._still = 0
        self._running = False
        self._closed = False

    # -- running

    def run(self, until_ns: int) -> None:
        """Run until that time. Ends early, at that time all the same, when nothing is left."""
        previous = asyncio._get_running_loop()
        collecting = gc.isenabled()
        gc.disable()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            self._run(until_ns)
        finally:
            self._running = False
            asyncio._set_running_loop(previous)
            if collecting:
                gc.enable()

    def _run(self, until_ns: int) -> None:
        while True:
            self._run_ready()
            due = self._timers.pop(until_ns)
            if due is None:
                break
            when_ns, handle = due
            if when_ns > self.now_ns:
                self.now_ns = when_ns
                self._still = 0
            self._ready.append(handle)
        self.now_ns = max(self.now_ns, until_ns)

    def _run_ready(self) -> None:
        ready, life_of = self._ready, LIFE
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            life = handle._context.get(life_of)
            if life is not None and life.held and self._hold(life, handle):
                continue
            handle._context.run(handle._callback, *handle._args)
            self.events += 1
            if self.after_event is not None:
                self.after_event()
            if self._unhandled:
                raise BursarError(self._unhandled[0])
            self._count()

    def _count(self) -> None:
        self._still += 1
        if self._still > STILL_MAX_EVENTS:
            raise EndlessError(f"{STILL_MAX_EVENTS} events without time passing: an endless loop")
        if self.events % COLLECT_EVERY_EVENTS == 0:
            gc.collect()

    def _hold(self, life: Life, handle: Handle) -> bool:
        """Whether the handle was dropped with its dead life, or put off to the end of a pause."""
        if life.dead:
            return True
        if life.paused_until > self.now_ns:
            self._timers.push(life.paused_until, handle)
            return True
        life.held = False
        return False

    def bury(self) -> None:
        """Keep the tasks that are now unfinished as they are until the end of the run. To be
        called when a life was killed: a task that is collected runs its `finally` blocks."""
        self._buried |= asyncio.all_tasks(self)

    def close(self) -> None:
        """Let go of all that did not finish. Nothing that runs now may reach the world: poison
        the ports first."""
        self._closed = True
        self.bury()
        for task in self._buried:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                coroutine = task.get_coro()
                if coroutine is not None:
                    coroutine.close()
            except (BursarError, RuntimeError):
                continue  # a `finally` met a poisoned port, or wanted to wait: the run is over
        self._buried.clear()
        self._ready.clear()

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_ns / SECOND_NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._ready.append(handle)
        return handle

    def call_at_ns(
        self,
        when_ns: int,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        """Call at that time, or as soon as possible when it is past."""
        context = context if context is not None else contextvars.copy_context()
        handle = Handle(callback, args, context, when_ns, self._timers)
        self._timers.push(max(when_ns, self.now_ns), handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at_ns(round(when * SECOND_NS), callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at_ns(self.now_ns + round(delay * SECOND_NS), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """asyncio reports here what nobody waited for, such as the error of a forgotten task."""
        if self._closed:
            return
        error = context.get("exception")
        self._unhandled.append(f"{context.get('message')}: {error!r}" if error else str(context))

    def get_debug(self) -> bool:
        return False  # whatever `-X dev` says: debug mode adds handles and would change nothing else

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed


async def sleep_until(loop: VirtualLoop, when_ns: int) -> None:
    """Wait for a moment of true time."""
    if when_ns <= loop.now_ns:
        await asyncio.sleep(0)
        return
    future = loop.create_future()
    handle = loop.call_at_ns(when_ns, _finish, future)
    try:
        await future
    finally:
        handle.cancel()


def _finish(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
