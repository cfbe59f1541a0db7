"""Functions run as tasks: async ones beside each other in one thread, plain ones in a thread or a process of
their own, with time limits, progress, and an end for those that nobody wants any more.

Stopping goes in two steps. First the function is *asked*: an async one is cancelled, the others see it in
`bursar.current_task()`. One that has not stopped after its grace is *forced*, where that can be done: a
process is killed. A thread cannot be: it keeps its names until it returns, and the task says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Protocol

from bursar.claims.tracker import Dispatch, Progress, Report
from bursar.errors import BursarError, StoppedError
from bursar.runtime.children import ChildError, Children
from bursar.runtime.current import CurrentTask, enter
from bursar.runtime.functions import Declared, Functions, encode_result, make_current, write_failure
from bursar.runtime.work_thread import WorkThread

TOO_LONG = "it took longer than its time limit of"


class Work(Protocol):
    """One call that is being made. `ask` and `force` return at once."""

    async def run(self) -> bytes: ...

    def ask(self) -> None: ...

    def force(self) -> bool:
        """Whether it is stopped for sure."""


class InLoop:
    """An async function, in the thread of all of them."""

    def __init__(self, thread: WorkThread, call: Callable[[], Any], current: CurrentTask) -> None:
        self._thread = thread
        self._call = call
        self._current = current
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> bytes:
        result: bytes = await self._thread.run(self._do)
        return result

    async def _do(self) -> bytes:
        enter(self._current)
        self._task = asyncio.current_task()
        if self._current.stopping is not None:
            raise StoppedError(self._current.stopping)
        result: bytes = await self._call()
        return result

    def ask(self) -> None:
        if self._task is not None:
            self._thread.call_soon(self._task.cancel)

    def force(self) -> bool:
        return False


class InThread:
    """A plain function. Its thread does not keep the process alive."""

    def __init__(self, call: Callable[[], bytes], current: CurrentTask) -> None:
        self._call = call
        self._current = current
        self._done: Future[bytes] = Future()

    async def run(self) -> bytes:
        context = copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._do,), name=f"task {self._current.id}", daemon=True
        )
        thread.start()
        return await asyncio.wrap_future(self._done)

    def _do(self) -> None:
        enter(self._current)
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001  whatever it raises is how it ended
            if not self._done.cancelled():
                self._done.set_exception(_carry(error))
            return
        if not self._done.cancelled():
            self._done.set_result(result)

    def ask(self) -> None:
        """It was told in `CurrentTask`."""

    def force(self) -> bool:
        return False


class Run:
    """One attempt from its beginning to its end."""

    def __init__(self, work: Work, declared: Declared, current: CurrentTask) -> None:
        self.current = current
        self._work = work
        self._declared = declared
        self._stuck = ""
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def note(self) -> str:
        return (
            f"{self._stuck}; {self.current.note}"
            if self._stuck and self.current.note
            else (self._stuck or self.current.note)
        )

    async def end(self) -> Report:
        limit_s = self._declared.limit_s
        if limit_s is not None:
            self._later(limit_s, lambda: self.stop(f"{TOO_LONG} {limit_s:g} s"))
        try:
            return self._judge(await self._work.run(), None)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._work.force()  # the worker gives up
                raise
            return self._judge(b"", error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the function raises is how it ended
            return self._judge(b"", error)
        finally:
            for timer in self._timers:
                timer.cancel()

    def _judge(self, result: bytes, error: BaseException | None) -> Report:
        why = self.current.stopping
        if why is not None and why.startswith(TOO_LONG):
            return Report("failed", f"TimeoutError: {why}".encode())
        if error is None:
            return Report("ok", result).bounded()
        if why is not None:
            return Report("cancelled", why.encode())
        if isinstance(error, ChildError):
            return Report("failed", str(error).encode())
        return Report("failed", write_failure(error).encode())

    def stop(self, why: str) -> None:
        """Ask it to stop; the second time nothing happens."""
        if self.current.stopping is None:
            self.current.ask(why)
            self._work.ask()
            self._later(self._declared.grace_s, self._force)

    def _force(self) -> None:
        if not self._work.force():
            where = "its thread" if self._declared.run == "thread" else "an async function"
            self._stuck = (
                f"{self.current.stopping}, was asked to stop, and goes on: {where} cannot be stopped by "
                "force, and keeps its names until it returns"
            )

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(after_s, act))


class FunctionTracker:
    """Makes the calls in this process and its children, which therefore end with it."""

    def __init__(self, functions: Functions, thread: WorkThread, children: Children) -> None:
        self._functions = functions
        self._thread = thread
        self._children = children
        self._runs: dict[str, Run] = {}

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        try:
            run = self._begin(dispatch)
        except BursarError as error:
            return Report("failed", f"{type(error).__name__}: {error}".encode())
        self._runs[dispatch.id] = run
        try:
            return await run.end()
        finally:
            if self._runs.get(dispatch.id) is run:
                del self._runs[dispatch.id]

    def _begin(self, dispatch: Dispatch) -> Run:
        declared, arguments = self._functions.read(dispatch)
        current = make_current(dispatch)
        work: Work
        if declared.run == "process":
            work = self._children.prepare(dispatch, current)
        elif declared.run == "thread":
            work = InThread(lambda: encode_result(declared.name, declared.function(**arguments)), current)
        else:
            work = InLoop(self._thread, lambda: _await(declared, arguments), current)
        return Run(work, declared, current)

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return Progress.RUNNING if dispatch.id in self._runs else Progress.LOST

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        run = self._runs.get(dispatch.id)
        if run is not None and run.current.attempt == dispatch.attempt:
            run.stop(why)

    async def note(self, id: str) -> str:
        run = self._runs.get(id)
        return "" if run is None else run.note


async def _await(declared: Declared, arguments: dict[str, Any]) -> bytes:
    return encode_result(declared.name, await declared.function(**arguments))


def _carry(error: BaseException) -> BaseException:
    """As a future can carry it: these two would end the loop that awaits it."""
    if isinstance(error, KeyboardInterrupt | StopIteration | SystemExit):
        return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    return error
