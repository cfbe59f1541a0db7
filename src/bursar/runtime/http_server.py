"""A small HTTP server for metrics and health: bounded in size, time and number."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bursar.errors import NetworkError
from bursar.runtime import logs
from bursar.runtime.routes import Address

REQUEST_MAX_BYTES = 8 * 1024
REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 64
REASONS = {
    200: "OK",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` in pieces: a large one is sent, and kept, piece by piece."""

    status: int
    form: str
    body: Sequence[bytes]

    @classmethod
    def text(cls, status: int, text: str) -> Answer:
        return cls(status, "text/plain; charset=utf-8", [text.encode()])


Route = Callable[[], Awaitable[Answer]]


class HttpServer:
    """Answers GET for a few paths; every connection is closed after one answer. With a `token`, the
    `guarded` paths want it (`Authorization: Bearer ...`)."""

    def __init__(
        self, routes: Mapping[str, Route], *, token: str | None = None, guarded: Collection[str] = ()
    ) -> None:
        self._routes = routes
        self._token = token
        self._guarded = guarded
        self._server: asyncio.Server | None = None
        self._open = 0

    async def listen(self, address: str) -> Address:
        wanted = Address.parse(address)
        try:
            self._server = await asyncio.start_server(
                self._serve, wanted.host, wanted.port, limit=REQUEST_MAX_BYTES
            )
        except OSError as error:
            raise NetworkError(
                f"cannot serve metrics on {wanted}: {error.strerror or error}; "
                "stop what listens there, or set another metrics under [daemon]"
            ) from error
        return Address(wanted.host, self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await _send(writer, request.startswith(b"HEAD "), await self._answer(request))
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as error:
            logs.debug("http.cut", why=str(error) or type(error).__name__)
            writer.transport.abort()  # what it did not read is not kept for it
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, request: bytes) -> Answer:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        route = self._routes.get(path)
        if method not in (b"GET", b"HEAD"):
            return Answer.text(405, "only GET is answered\n")
        if route is None:
            return Answer.text(404, f"there is {', '.join(self._routes)}\n")
        if path in self._guarded and not self._may(request):
            return Answer.text(401, "send Authorization: Bearer TOKEN\n")
        try:
            return await route()
        except Exception as error:  # noqa: BLE001  a kind's faulty figures must not end the server
            logs.failure("http.failed", error, path=path)
            return Answer.text(500, "failed; the log has the reason\n")

    def _may(self, request: bytes) -> bool:
        if self._token is None:
            return True
        given = b""
        for line in request.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                given = value.strip()
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token.encode())

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def _send(writer: asyncio.StreamWriter, head_only: bool, answer: Answer) -> None:
    wants = "WWW-Authenticate: Bearer\r\n" if answer.status == 401 else ""
    writer.write(
        f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, '')}\r\nContent-Type: {answer.form}\r\n"
        f"Content-Length: {sum(map(len, answer.body))}\r\n{wants}Connection: close\r\n\r\n".encode()
    )
    for piece in () if head_only else answer.body:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)  # a socket takes megabytes at once; others have their turn meanwhile
    await writer.drain()
