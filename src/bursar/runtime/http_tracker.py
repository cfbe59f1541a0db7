"""Tasks done by a service over HTTP: `[resource.NAME.tracker] url = "https://example.com/tasks"`.

    POST url        a task to be done, as JSON. Header Idempotency-Key: the same in every attempt.
        200-299     it is over, and the body is its result
        202         it was begun: how it stands is asked at url/ID
        429, 503    not now: asked again after Retry-After, or a pause that doubles
        else        this attempt failed; what was answered says why
    GET url/ID      how a task stands
        200-299     it is over, and the body is its result
        202         it runs; the body says how far it is
        404, 410    nobody does it, and nobody will
        else        asked again
    DELETE url/ID   nobody wants it any more; its end is learnt as any other

Whatever is answered, by a proxy, a page, or something that is no HTTP at all, costs an attempt at most. A
request without an answer may have begun the work: the service is asked how it stands before it is told
again, with the same Idempotency-Key.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from bursar.claims.model import RESULT_MAX_BYTES
from bursar.claims.tracker import NOTE_MAX, Dispatch, Progress, Report
from bursar.decoding import DECODE_ERRORS, is_number
from bursar.errors import FormatError
from bursar.policy.values import Tracker
from bursar.runtime.functions import Call
from bursar.runtime.token_files import read_token
from bursar.world import SECOND_NS

PORTS = {"http": 80, "https": 443}
HEAD_MAX = 64 * 1024
NOT_NOW = (429, 503)
GONE = (404, 410)
ACCEPTED = 202

PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
BUSY_MAX_S = 600.0
"""So long a service may say "not now", or not be there at all; then the attempt has failed."""

SAID_MAX = 500


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    retry_after_s: float | None = None

    @property
    def is_over(self) -> bool:
        return 200 <= self.status < 300 and self.status != ACCEPTED


class NotBegunError(Exception):
    """Nothing reached the service."""


FAULTS = (OSError, EOFError, FormatError, TimeoutError, asyncio.LimitOverrunError)


class HttpTracker:
    """For an instance that has its tasks done by a service. It keeps nothing that a successor would miss."""

    def __init__(self, policy: Tracker, pause_s: float = PAUSE_S, busy_max_s: float = BUSY_MAX_S) -> None:
        self._url = urlsplit(policy.url)
        self._timeout_s = policy.timeout_ns / SECOND_NS
        self._poll_s = policy.poll_ns / SECOND_NS
        self._pause_s = pause_s
        self._busy_max_s = busy_max_s
        self._token = read_token(policy.token_file) if policy.token_file else None
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._asked: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        try:
            reply = await self._post(dispatch)
            while reply.status == ACCEPTED:
                self._notes[dispatch.id] = _read_text(reply.body)[:NOTE_MAX]
                await asyncio.sleep(self._poll_s)
                reply = await self._ask_until_told(dispatch)
            return self._judge(dispatch, reply)
        except NotBegunError as error:
            return Report("failed", str(error).encode())
        except FAULTS as error:
            return Report("failed", self._blame(error).encode())
        finally:
            self._notes.pop(dispatch.id, None)
            self._asked.pop(dispatch.id, None)

    async def _post(self, dispatch: Dispatch) -> Reply:
        """Until it is taken, or refused for good."""
        pause_s, busy_s, body = self._pause_s, 0.0, _write(dispatch)
        while True:
            why, reply = "", None
            try:
                reply = await self._exchange("POST", "", body, dispatch.key)
            except NotBegunError as error:
                why = str(error)
            except FormatError:
                raise  # whoever answers so is no such service
            except FAULTS as error:
                reply = await self._find_out(dispatch, error)
            if reply is not None and reply.status not in NOT_NOW:
                return reply
            if dispatch.id in self._asked or busy_s >= self._busy_max_s:
                raise NotBegunError(
                    why or f"{self._url.netloc} answered {reply.status if reply else 0}: not now"
                )
            given_s = reply.retry_after_s if reply is not None else None
            pause_s, slept_s = min(2 * pause_s, PAUSE_MAX_S), pause_s if given_s is None else given_s
            self._notes[dispatch.id] = f"{why or 'the service says: not now'}; asked again in {slept_s:g} s"
            await asyncio.sleep(slept_s)
            busy_s += max(slept_s, self._pause_s / 10)

    async def _find_out(self, dispatch: Dispatch, error: BaseException) -> Reply | None:
        """Whether a request without an answer began the work. None: it did not."""
        try:
            reply = await self._exchange("GET", f"/{quote(dispatch.id)}")
        except NotBegunError:
            return None
        except FAULTS:
            raise error from None
        return None if reply.status in GONE else reply

    async def _ask_until_told(self, dispatch: Dispatch) -> Reply:
        """What was begun is not given up because an answer is late, or strange."""
        failed_s = 0.0
        while True:
            try:
                reply = await self._exchange("GET", f"/{quote(dispatch.id)}")
            except (NotBegunError, *FAULTS) as error:
                reply = Reply(0, self._blame(error).encode())
            if reply.is_over or reply.status in (ACCEPTED, *GONE) or failed_s >= self._busy_max_s:
                return reply
            self._notes[dispatch.id] = f"{self._url.netloc} does not say how it stands: {_say(reply)}"[
                :NOTE_MAX
            ]
            await asyncio.sleep(self._poll_s)
            failed_s += self._poll_s

    def _judge(self, dispatch: Dispatch, reply: Reply) -> Report:
        if reply.is_over:
            return Report("ok", reply.body).bounded()
        if (why := self._asked.get(dispatch.id)) is not None:
            return Report("cancelled", why.encode())
        return Report("failed", f"{self._url.netloc} answered {_say(reply)}".encode())

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        """Raises what goes wrong: then it is asked again."""
        reply = await self._exchange("GET", f"/{quote(dispatch.id)}")
        if reply.is_over:
            return Report("ok", reply.body).bounded()
        if reply.status in GONE:
            return Progress.LOST
        if reply.status != ACCEPTED:
            raise FormatError(f"{self._url.netloc} answered {_say(reply)}")
        return Progress.RUNNING

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        if dispatch.id not in self._asked:
            self._asked[dispatch.id] = why
            await self._exchange("DELETE", f"/{quote(dispatch.id)}")

    async def note(self, id: str) -> str:
        return self._notes.get(id, "")

    def _blame(self, error: BaseException) -> str:
        return f"{self._url.netloc}: {str(error) or type(error).__name__}"

    # One exchange

    async def _exchange(self, method: str, below: str, body: bytes = b"", key: str = "") -> Reply:
        async with asyncio.timeout(self._timeout_s):
            return await self._ask(self._write_head(method, below, len(body), key) + body)

    async def _ask(self, request: bytes) -> Reply:
        host, port = self._url.hostname or "", self._url.port or PORTS[self._url.scheme]
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._tls, limit=HEAD_MAX)
        except OSError as error:
            raise NotBegunError(f"{self._url.netloc} cannot be reached: {error}") from error
        try:
            writer.write(request)
            await writer.drain()
            return await read_reply(reader)
        finally:
            writer.transport.abort()

    def _write_head(self, method: str, below: str, size: int, key: str) -> bytes:
        path = self._url.path.rstrip("/") + below or "/"
        lines = [
            f"{method} {path}{f'?{self._url.query}' if self._url.query else ''} HTTP/1.0",
            f"Host: {self._url.netloc}",
            "User-Agent: bursar",
            "Connection: close",
            f"Content-Length: {size}",
        ]
        lines += ["Content-Type: application/json"] * bool(size)
        lines += [f"Idempotency-Key: {key}"] * bool(key)
        lines += [f"Authorization: Bearer {self._token}"] * bool(self._token)
        return "\r\n".join([*lines, "", ""]).encode()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Asked in HTTP/1.0, so that nothing comes in pieces. Raises FormatError, EOFError."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/") or not is_number(rest[:3]):
        raise FormatError(f"that is no HTTP: {head[0][:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in head[1:])}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        raise FormatError("it answered in pieces (chunked), which it was not asked for")
    size = headers.get("content-length", "")
    if size and not is_number(size):
        raise FormatError(f"its Content-Length is {size[:40]!r}")
    most = RESULT_MAX_BYTES + 1
    body = b""
    while len(body) < most and (part := await reader.read(most - len(body))):
        body += part
        if size and len(body) >= int(size):
            break
    if size and len(body) < min(int(size), most):
        raise FormatError(f"it ended after {len(body)} of {int(size)} bytes")
    after = headers.get("retry-after", "")
    return Reply(int(rest[:3]), body, min(float(after), PAUSE_MAX_S) if is_number(after) else None)


def _write(dispatch: Dispatch) -> bytes:
    """Fences as text: JavaScript would round them."""
    told: dict[str, Any] = {
        "id": dispatch.id,
        "key": dispatch.key,
        "tenant": dispatch.tenant,
        "attempt": dispatch.attempt,
        "fences": {name: str(fence) for name, fence in dispatch.fences.items()},
    }
    try:
        call = msgspec.msgpack.decode(dispatch.payload, type=Call)
        return msgspec.json.encode({**told, "function": call.function, "arguments": call.arguments})
    except (*DECODE_ERRORS, TypeError):
        pass  # it was submitted with a payload of its own
    try:
        return msgspec.json.encode({**told, "payload": dispatch.payload.decode()})
    except UnicodeDecodeError:
        return msgspec.json.encode({**told, "payload_base64": base64.b64encode(dispatch.payload).decode()})


def _read_text(data: bytes) -> str:
    return " ".join(data.decode("utf-8", "replace").split())


def _say(reply: Reply) -> str:
    said = _read_text(reply.body)[:SAID_MAX]
    return f"{reply.status}: {said}" if said else str(reply.status)
