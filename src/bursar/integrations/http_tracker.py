"""A task tracker over HTTP, for work that is done by another service.

    POST URL/ID    {"id", "key", "tenant", "payload" (base64), "attempt", "fences"}, with the headers
                   `Idempotency-Key` and `Bursar-Fence`; any 2xx means taken in
    GET URL/ID     {"state": "running" | "lost" | "ok" | "failed", "result": "..."}; 404 means lost

Whoever answers must take the same key twice as one piece of work.
"""

from __future__ import annotations

import asyncio
import base64
import urllib.error
import urllib.request
from typing import Literal

import msgspec

from bursar.claims.fences import HEADER, write_header
from bursar.claims.model import RESULT_MAX_BYTES
from bursar.claims.tracker import Dispatch, Progress, Report
from bursar.errors import UsageError

TIMEOUT_S = 10.0


class Answer(msgspec.Struct, frozen=True):
    """What the service says of a task."""

    state: Literal["running", "lost", "ok", "failed"]
    result: str = ""


class HttpTracker:
    """Implements `bursar.claims.tracker.Tracker`. A service that cannot be reached is asked again."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"tracker {url!r}: write http://host:port/path or https://host/path")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        body = {
            "id": dispatch.id,
            "key": dispatch.key,
            "tenant": dispatch.tenant,
            "payload": base64.b64encode(dispatch.payload).decode(),
            "attempt": dispatch.attempt,
            "fences": dict(dispatch.fences),
        }
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": dispatch.key,
            HEADER: write_header(dict(dispatch.fences)),
        }
        try:
            await self._ask(dispatch.id, msgspec.json.encode(body), headers)
        except urllib.error.HTTPError as error:
            if 400 <= error.code < 500:
                return Report("failed", f"the service refused the task: HTTP {error.code}".encode())
        except OSError:
            pass  # not known to be taken in: `status` finds out, and a lost one is tried again
        return None

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        try:
            answer = msgspec.json.decode(await self._ask(dispatch.id), type=Answer)
        except urllib.error.HTTPError as error:
            return Progress.LOST if error.code == 404 else Progress.RUNNING
        except (OSError, msgspec.MsgspecError):
            return Progress.RUNNING  # nothing is known: a task is not given up for that
        if answer.state == "running":
            return Progress.RUNNING
        if answer.state == "lost":
            return Progress.LOST
        return Report(answer.state, answer.result.encode()[:RESULT_MAX_BYTES])

    async def _ask(self, id: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        request = urllib.request.Request(f"{self._url}/{id}", data=body, headers=headers or {})
        return await asyncio.to_thread(self._fetch, request)

    def _fetch(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
            found: bytes = answer.read(2 * RESULT_MAX_BYTES)
            return found
