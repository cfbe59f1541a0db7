"""The task tracker: how an instance has a task done and learns of its end (section 4.1).

Dispatch is *at least once*: an instance that dies between granting and dispatching leaves a task
that its successor dispatches again. Each dispatch of a task carries the same idempotency key, and
the fences of its names. Completion is recorded once, whoever reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from bursar.claims.model import RESULT_MAX_BYTES, Outcome
from bursar.errors import CrashedError


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


Work = Callable[[Dispatch], Awaitable[bytes | None]]


class InProcessTracker:
    """Does the work in this process, which therefore dies with it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: dict[str, None] = {}

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        self._running[dispatch.id] = None
        try:
            result = await self._work(dispatch)
        except CrashedError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the work raises is how it ended
            return Report("failed", f"{type(error).__name__}: {error}"[:1000].encode())
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            return Report("failed", b"CancelledError: something that it awaited was cancelled")
        finally:
            self._running.pop(dispatch.id, None)
        return Report("ok", result or b"").bounded()

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return Progress.RUNNING if dispatch.id in self._running else Progress.LOST


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
    ) -> None:
        self._begin = begin
        self._ask = ask

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        await self._begin(dispatch)
        return None

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return await self._ask(dispatch)
