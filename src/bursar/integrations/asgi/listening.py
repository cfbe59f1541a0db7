"""Hears while a request waits for its tokens, so that a client that hangs up waits no longer.

A server tells of a client that left only to who asks it for the next message. What else it says
meanwhile, the request's body, is kept for the application.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from bursar.integrations.asgi.scopes import Message, Receive

PARTINGS = ("http.disconnect", "websocket.disconnect")
BEGIN_AFTER_S = 0.005
"""Most requests wait for less, and listening costs more than that."""

KEPT_MAX_BYTES = 64 * 1024
"""Of a body that is longer the rest stays at the server, which then cannot tell that its client left."""

DecidedT = TypeVar("DecidedT")


class Listening:
    """Runs what a request waits for; ends it when the client leaves. `receive` is the application's."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._kept_bytes = 0
        self._next: asyncio.Task[Message] | None = None
        self._waiter: asyncio.Task[Any] | None = None
        self.left = False

    async def wait(self, deciding: Coroutine[Any, Any, DecidedT]) -> DecidedT | None:
        """What was decided, or None if the client left first."""
        self._waiter = asyncio.current_task()
        assert self._waiter is not None, "a server runs every request in a task"
        timer = asyncio.get_running_loop().call_later(BEGIN_AFTER_S, self._hear)
        try:
            return await deciding
        except asyncio.CancelledError:
            if not self.left:
                raise
            self._waiter.uncancel()
            return None
        finally:
            timer.cancel()
            self._waiter = None

    def _hear(self) -> None:
        self._next = asyncio.ensure_future(self._take())
        self._next.add_done_callback(self._heard)

    async def _take(self) -> Message:
        return await self._receive()

    def _heard(self, told: asyncio.Task[Message]) -> None:
        """Nothing is done once it is decided: then the application hears it."""
        if self._waiter is None or told.cancelled() or told.exception() is not None:
            return
        message = told.result()
        if message["type"] in PARTINGS:
            self.left = True
            self._waiter.cancel()
            return
        self._next = None
        self._kept.append(message)
        self._kept_bytes += len(message.get("body", b""))
        if self._kept_bytes <= KEPT_MAX_BYTES:
            self._hear()

    async def receive(self) -> Message:
        if self._kept:
            return self._kept.popleft()
        told, self._next = self._next, None
        return await (self._receive() if told is None else told)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
