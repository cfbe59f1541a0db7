"""The task tracker: how an instance has a task done and learns of its end (section 4.1).

Dispatch is *at least once*: an instance that dies between granting and dispatching leaves a task
that its successor dispatches again. Each dispatch of a task carries the same idempotency key, and
the fences of its names. Completion is recorded once, whoever reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from bursar.claims.model import RESULT_MAX_BYTES, Outcome
from bursar.errors import CrashedError

NOTE_MAX = 500
"""Characters of what is said of how far a task is."""


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever does the work is told."""

    id: str
    key: str
    tenant: str
    payload: bytes
    attempt: int
    fences: Mapping[str, int]


class Report(msgspec.Struct, frozen=True):
    """How it ended."""

    outcome: Outcome
    result: bytes = b""

    def bounded(self) -> Report:
        """The same, if the store can keep its result. A result that is too large is a failure, and told
        as one: whoever reads half of it would not know."""
        size = len(self.result)
        if size <= RESULT_MAX_BYTES:
            return self
        why = f"its result has {size} bytes, at most {RESULT_MAX_BYTES} are kept"
        return Report("failed", f"{why}: store it elsewhere and return where it is".encode())


class Progress(StrEnum):
    RUNNING = "running"
    LOST = "lost"


class Tracker(Protocol):
    """Runs elsewhere than the instance, or with it; survives it or not."""

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        """Begin the work. The report if it is over when this returns, None if `status` will tell."""

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        """How a task stands that was dispatched, perhaps by an instance that is gone. LOST: nobody
        works on it and nobody ever will."""

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        """Nobody wants it any more: ask the work to stop, and force it where that can be done. Its end is
        learnt as any other. Called again it does nothing."""

    async def note(self, id: str) -> str:
        """How far it is, for people; nothing where the work does not say."""


Work = Callable[[Dispatch], Awaitable[bytes | None]]


class InProcessTracker:
    """Does the work in this process, which therefore dies with it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: dict[str, asyncio.Task[Any] | None] = {}
        self._asked: dict[str, None] = {}

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        self._running[dispatch.id] = asyncio.current_task()
        try:
            result = await self._work(dispatch)
        except CrashedError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the work raises is how it ended
            return Report("failed", f"{type(error).__name__}: {error}"[:1000].encode())
        except asyncio.CancelledError:
            if dispatch.id in self._asked and (task := self._running[dispatch.id]) is not None:
                task.uncancel()
            if _is_being_cancelled():
                raise
            if dispatch.id in self._asked:
                return Report("cancelled", b"it was cancelled")
            return Report("failed", b"CancelledError: something that it awaited was cancelled")
        finally:
            self._running.pop(dispatch.id, None)
            self._asked.pop(dispatch.id, None)
        return Report("ok", result or b"").bounded()

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return Progress.RUNNING if dispatch.id in self._running else Progress.LOST

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        task = self._running.get(dispatch.id)
        if task is not None and dispatch.id not in self._asked:
            self._asked[dispatch.id] = None
            task.cancel()

    async def note(self, id: str) -> str:
        return ""


def _is_being_cancelled() -> bool:
    """Whether the instance gives up its own task, and not the work something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class PollingTracker:
    """Starts the work with one function and asks another how it stands."""

    def __init__(
        self,
        begin: Callable[[Dispatch], Awaitable[None]],
        ask: Callable[[Dispatch], Awaitable[Report | Progress]],
        stop: Callable[[Dispatch], Awaitable[None]] | None = None,
    ) -> None:
        self._begin = begin
        self._ask = ask
        self._stop = stop

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        await self._begin(dispatch)
        return None

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return await self._ask(dispatch)

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        if self._stop is not None:
            await self._stop(dispatch)

    async def note(self, id: str) -> str:
        return ""
