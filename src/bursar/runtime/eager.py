"""Start a coroutine at once, and make it a task only if it has to wait.

Most handlers answer without waiting; a task and another turn of the event loop for each would
cost more than the answer. Python 3.12 has this built in (`eager_start`); before that it is done
here, with the functions that asyncio documents for implementations of tasks.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any


class Stand:
    """What `asyncio.current_task()` is during the first step, and what `asyncio.timeout` then keeps:
    stands for the task that will exist if the coroutine waits."""

    __slots__ = ("_cancels", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self._cancels = 0

    def cancel(self, msg: Any = None) -> bool:
        if self.task is not None:
            return self.task.cancel(msg)
        self._cancels += 1
        return True

    def uncancel(self) -> int:
        if self.task is not None:
            return self.task.uncancel()
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def cancelling(self) -> int:
        return self.task.cancelling() if self.task is not None else self._cancels

    def is_unused(self) -> bool:
        """Nobody has asked it for anything that it would have to remember."""
        return self.task is None and self._cancels == 0

    def become(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        for _ in range(self._cancels):
            task.cancel()


_stands: list[Stand] = []
"""Those of coroutines that ended at once, to be used again."""


class Resumed:
    """A coroutine that has taken its first step and waits for `awaited`."""

    __slots__ = ("_awaited", "_coroutine", "_went_on")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._went_on = False

    def end(self, task: asyncio.Task[Any]) -> None:
        """A task that was cancelled before its first step never ran: what the coroutine began must
        be undone all the same."""
        if not self._went_on:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._went_on = True
        awaited = self._awaited
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001  whatever is thrown in is the coroutine's
                step, value = self._coroutine.throw, error
            else:
                step, value = self._coroutine.send, sent  # type: ignore[assignment]
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value


async def _go_on(resumed: Resumed) -> Any:
    return await resumed


def start(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
    """Run the first step now; return the task that goes on with it, or None if it has ended. To be
    called from a callback of the loop, not from a task. The coroutine's first step must not raise."""
    if sys.version_info >= (3, 12):
        task = asyncio.Task(coroutine, loop=loop, eager_start=True)
        return None if task.done() else task
    stand: Any = _stands.pop() if _stands else Stand()
    context = copy_context()
    _enter_task(loop, stand)
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration:
        if stand.is_unused():
            _stands.append(stand)
        return None
    finally:
        _leave_task(loop, stand)
    resumed = Resumed(coroutine, awaited)
    task = loop.create_task(_go_on(resumed), context=context)
    task.add_done_callback(resumed.end)
    stand.become(task)
    return task
