"""Serving the dashboard: on loopback only, beside whatever else this event loop does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Response
from nicegui import ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from bursar.dashboard.history import History, Sample
from bursar.dashboard.pages import Action, Board, add_pages, describe
from bursar.dashboard.source import Source
from bursar.errors import NetworkError

HOST = "127.0.0.1"
SAMPLE_S = 1.0
START_TIMEOUT_S = 30.0


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs the event loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class DashboardServer:
    """A dashboard that is served. Close it; it closes its source."""

    def __init__(self, source: Source, board: Board, server: _Server, listener: socket.socket) -> None:
        self._source = source
        self._board = board
        self._server = server
        self._listener = listener
        self._tasks: list[asyncio.Task[None]] = []
        self.port = int(listener.getsockname()[1])
        self.url = f"http://{HOST}:{self.port}"
        self.secret_url = f"{self.url}/?token={board.token}" if board.token else self.url

    @classmethod
    async def open(
        cls,
        source: Source,
        port: int,
        *,
        or_any: bool = False,
        title: str = "bursar",
        token: str | None = None,
        actions: Mapping[str, Action] | None = None,
    ) -> DashboardServer:
        """Serve on `port` (0: any); with `or_any` on another if that one is taken. One a process.
        Raises NetworkError if it cannot."""
        listener = _listen(port, or_any)
        board = Board(History(), title, token, actions or {})
        app = _make_app(board)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1
        )
        dashboard = cls(source, board, _Server(config), listener)
        await dashboard._start()
        return dashboard

    async def _start(self) -> None:
        await self._sample()
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self._server.serve([self._listener]))
        self._tasks = [serving, loop.create_task(self._keep_sampling())]
        ends_at = loop.time() + START_TIMEOUT_S
        while not self._server.started and not serving.done() and loop.time() < ends_at:
            await asyncio.sleep(0.01)
        if not self._server.started:
            raise NetworkError(f"the dashboard did not start within {START_TIMEOUT_S:g} s at {self.url}")

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self._sample()

    async def _sample(self) -> None:
        history = self._board.history
        reading = await self._source.read(history.looked_for)
        history.add(time.monotonic(), time.time(), reading)

    async def run(self) -> None:
        """Until it ends by itself, which is an error, or is cancelled."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        serving, sampling = self._tasks
        sampling.cancel()
        self._server.should_exit = True
        await asyncio.gather(serving, sampling, return_exceptions=True)
        self._listener.close()
        await self._source.close()


def _listen(port: int, or_any: bool) -> socket.socket:
    for wanted in (port, 0) if or_any else (port,):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, wanted))
            listener.listen(64)
        except OSError as error:
            listener.close()
            why = f"cannot listen on {HOST}:{wanted}: {error.strerror or error}; choose another --port"
            problem = NetworkError(why)
        else:
            return listener
    raise problem


def _make_app(board: Board) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A page elsewhere that points its own name at loopback is not let in.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.get("/api/statistics")
    def statistics() -> Response:
        return _answer(board.history.latest)

    @app.get("/api/statistics/{number}")
    def earlier(number: int) -> Response:
        return _answer(board.history.find(number))

    add_pages(board)
    ui.run_with(app, title=board.title, favicon="🪙", show_welcome_message=False, tailwind=False)
    return app


def _answer(sample: Sample | None) -> Response:
    import msgspec

    if sample is None:
        return Response(status_code=404)
    return Response(msgspec.json.encode(describe(sample)), media_type="application/json")
