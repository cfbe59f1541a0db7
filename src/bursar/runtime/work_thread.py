"""Work in a thread of its own, so that blocking code stops nothing but itself.

The session of a worker lives by heartbeats that its event loop sends. What tasks do runs on another loop, in
another thread: a task that blocks (a driver without `await`, a long calculation) delays the tasks beside
it, and never the heartbeats, so that it is not taken for dead and done a second time. A call that keeps the
interpreter to itself (an extension that does not let go of its lock) still does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class WorkThread:
    """`run` work there; `stop` when nothing is to be done any more. What still blocks then is left behind:
    the thread does not keep the process alive."""

    def __init__(self, name: str = "bursar-work") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Returns or raises what the work does, once it has ended."""

        async def do() -> T:
            try:
                return await work(*arguments)
            except SystemExit as error:  # it would end the thread, and with it everybody else's work
                raise RuntimeError(f"SystemExit: {error}") from error

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(do(), self._loop))

    def call_soon(self, act: Callable[[], object]) -> None:
        """There, from any thread."""
        self._loop.call_soon_threadsafe(act)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
