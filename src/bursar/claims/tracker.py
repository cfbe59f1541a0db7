"""The task tracker: how an instance has a task done and learns of its end (section 4.1).

Dispatch is *at least once*: an instance that dies between granting and dispatching leaves a task
that its successor dispatches again. Each dispatch of a task carries the same idempotency key, and
the fences of its names. Completion is recorded once, whoever reports it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from bursar.claims.model import Outcome


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
        except Exception as error:  # noqa: BLE001  whatever the work raises is how it ended
            return Report("failed", f"{type(error).__name__}: {error}"[:1000].encode())
        finally:
            self._running.pop(dispatch.id, None)
        return Report("ok", result or b"")

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return Progress.RUNNING if dispatch.id in self._running else Progress.LOST


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
