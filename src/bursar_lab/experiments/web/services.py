"""A service that tells a story in pieces, and settles what it has told after each. What a call has settled in
the end is a line in a file, one file for each process: whatever the client did meanwhile.

    python -m bursar_lab.experiments.web.services wsgi|grpc PORT      (ASGI: uvicorn's own command)
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from bursar.integrations import wsgi
from bursar.integrations.asgi import BursarMiddleware, by_header, grant_of

AMOUNT = 20
PIECES = 10
PIECE_S = 0.01
DAEMON = os.environ.get("BURSAR_WEB_DAEMON", "")
FOLDER = Path(os.environ.get("BURSAR_WEB_FOLDER", "."))


class Told:
    """What one call has told so far, and its line in the end."""

    def __init__(self, grant: Any) -> None:
        self._grant = grant
        self._settled = 0

    def tell(self) -> bytes:
        self._settled += 1
        self._grant.settle(self._settled)
        return b"word "

    def end(self) -> None:
        with (FOLDER / f"told-{os.getpid()}").open("a") as file:
            file.write(f"{self._settled}\n")


def limits() -> dict[str, Any]:
    return {"bursar": DAEMON, "resource": "llm", "tenant": by_header("x-tenant"), "amount": AMOUNT}


async def tell(scope: Any) -> AsyncIterator[bytes]:
    told = Told(grant_of(scope))
    try:
        for _ in range(PIECES):
            yield told.tell()
            await asyncio.sleep(PIECE_S)
    finally:
        told.end()


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    from starlette.responses import StreamingResponse

    if scope["type"] != "lifespan":
        await StreamingResponse(tell(scope))(scope, receive, send)
        return
    while True:
        word = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{word}.complete"})
        if word == "shutdown":
            return


def make_asgi() -> Any:
    """What `uvicorn --factory` is given."""
    limited: Any = BursarMiddleware(_answer, **limits())
    return BursarMiddleware(
        limited,
        bursar=DAEMON,
        resource="api",
        tenant=by_header("x-tenant"),
        wait=0.2,
    )


def answer_wsgi(environ: Any, start_response: Any) -> Iterator[bytes]:
    told = Told(grant_of({"bursar.grant": environ["bursar.grant"]}))
    start_response("200 OK", [("Content-Type", "text/plain")])
    try:
        for _ in range(PIECES):
            yield told.tell()
            time.sleep(PIECE_S)
    finally:
        told.end()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Clients that hang up are meant to."""


def serve_wsgi(port: int) -> None:
    app: Any = wsgi.BursarMiddleware(answer_wsgi, **limits())
    make_server("127.0.0.1", port, app, _Server, _Quiet).serve_forever()


async def serve_grpc(port: int) -> None:
    import grpc

    from bursar.integrations.grpc_server import BursarInterceptor, current_grant

    async def tell_all(request: bytes, context: Any) -> AsyncIterator[bytes]:
        told = Told(current_grant())
        try:
            for _ in range(PIECES):
                yield told.tell()
                await asyncio.sleep(PIECE_S)
        finally:
            told.end()

    handlers: Iterable[Any] = [
        grpc.method_handlers_generic_handler(
            "web.Story", {"Tell": grpc.unary_stream_rpc_method_handler(tell_all)}
        )
    ]
    server = grpc.aio.server(interceptors=[BursarInterceptor(**limits())])
    server.add_generic_rpc_handlers(tuple(handlers))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1] == "wsgi":
        serve_wsgi(int(sys.argv[2]))
    else:
        asyncio.run(serve_grpc(int(sys.argv[2])))
