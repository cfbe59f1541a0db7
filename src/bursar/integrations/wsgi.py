"""Middleware for WSGI applications (Flask, Django, any other): what `bursar.integrations.asgi` does, for
servers that give each request a thread.

    app.wsgi_app = BursarMiddleware(app.wsgi_app, bursar="bursar://127.0.0.1:7070", resource="api",
                                    tenant=by_header("x-tenant"))

Deciding and settling are the same code. It runs on one event loop, in a thread that begins with the first
request: a server that forks its workers after loading the application forks no connection.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from http import HTTPStatus
from typing import Any

from bursar.api.problems import Problem
from bursar.api.ratelimit import Fields
from bursar.integrations.asgi.costs import FindUsed, Ungranted, grant_of, show, used_by_bytes, used_by_header
from bursar.integrations.asgi.deciding import Away, Deciding
from bursar.integrations.asgi.exchange import Bill
from bursar.integrations.asgi.opening import Target
from bursar.integrations.asgi.scopes import Scope
from bursar.integrations.asgi.tenants import FindTenant, by_header, by_key, by_path
from bursar.sync import Grant, LoopThread

__all__ = [
    "BursarMiddleware",
    "by_header",
    "by_key",
    "by_path",
    "grant_of",
    "used_by_bytes",
    "used_by_header",
]

GRANT = "bursar.grant"
"""Where a request's environ holds its grant."""

Environ = MutableMapping[str, Any]
App = Callable[[Environ, Any], Iterable[bytes]]


class BursarMiddleware:
    """Acquires for each request. The parameters are those of the ASGI middleware; functions are given a
    scope with the request's `path`, `root_path`, `method` and `headers`."""

    def __init__(
        self,
        app: App,
        *,
        bursar: Target,
        resource: str,
        tenant: FindTenant,
        amount: int | Callable[[Scope], int] = 1,
        wait: float | Callable[[Scope], float] = 0.0,
        used: FindUsed | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        when_away: Away | Callable[[Scope], Away] | None = None,
        window_s: int | None = None,
    ) -> None:
        self._app = app
        self._used = used
        self._exempt = exempt
        self._make_deciding = partial(
            Deciding, bursar, resource, tenant,
            amount=amount, wait=wait, when_away=when_away, window_s=window_s,
        )  # fmt: skip
        self._deciding = self._make_deciding()
        self._thread: LoopThread | None = None
        self._pid = os.getpid()
        self._starting = threading.Lock()

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        scope = make_scope(environ)
        if self._exempt is not None and self._exempt(scope):
            return self._app(environ, start_response)
        thread = self._find_thread()
        decided = thread.wait_for(self._deciding.decide(scope))
        if isinstance(decided, Problem):
            return _answer(decided, start_response)
        if isinstance(decided, Ungranted):
            environ[GRANT] = show(decided)
            return self._app(environ, start_response)
        environ[GRANT] = show(Grant(decided, thread))
        fields = self._deciding.writer.write_grant(decided)
        return Exchange(Bill(decided, self._used), fields, thread).run(self._app, environ, start_response)

    def _find_thread(self) -> LoopThread:
        """A fork takes no threads along, so a process has the one that it began itself."""
        with self._starting:
            if self._pid != os.getpid():
                self._deciding, self._thread, self._pid = self._make_deciding(), None, os.getpid()
            if self._thread is None:
                self._thread = LoopThread()
                self._thread.wait_for(self._deciding.opening.start(required=False))
                atexit.register(self.close)
            return self._thread

    def close(self) -> None:
        """Close what was connected here. It is done at the end of the process."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.wait_for(self._deciding.opening.close())
            thread.stop()


class Exchange:
    """One request and its response, under a grant that is left when the server has closed the response."""

    def __init__(self, bill: Bill, fields: Fields, thread: LoopThread) -> None:
        self._bill = bill
        self._fields = _write_text(fields)
        self._thread = thread

    def run(self, app: App, environ: Environ, start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            sent = self._bill.sent
            sent.status = int(status.partition(" ")[0])
            sent.headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
            return start_response(status, headers + self._fields, *error)

        try:
            body = app(environ, start)
        except BaseException as error:
            self._leave(error)
            raise
        return Body(body, self)

    def count(self, piece: bytes) -> None:
        self._bill.sent.body_bytes += len(piece)

    def _leave(self, error: BaseException | None) -> None:
        failed = error if isinstance(error, Exception) else None
        self._thread.wait_for(self._bill.leave(failed))


class Body:
    """A response as it is sent. Every server calls `close`, also where its client went away."""

    def __init__(self, pieces: Iterable[bytes], exchange: Exchange) -> None:
        self._pieces = pieces
        self._exchange = exchange
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces:
                self._exchange.count(piece)
                yield piece
        except GeneratorExit:
            raise  # the client went away, which is no failure of the work
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        try:
            close = getattr(self._pieces, "close", None)
            if close is not None:
                close()
        finally:
            self._exchange._leave(self._error)


def make_scope(environ: Environ) -> Scope:
    """What the functions that are shared with ASGI look at."""
    root = environ.get("SCRIPT_NAME", "")
    headers = [
        (key[5:].replace("_", "-").lower().encode("latin-1"), str(value).encode("latin-1"))
        for key, value in environ.items()
        if key.startswith("HTTP_")
    ]
    return {
        "type": "http",
        "method": environ.get("REQUEST_METHOD", "GET"),
        "root_path": root,
        "path": root + environ.get("PATH_INFO", ""),
        "headers": headers,
    }


def _answer(problem: Problem, start_response: Any) -> Iterable[bytes]:
    body = problem.write()
    headers = _write_text(problem.write_headers(len(body)))
    start_response(f"{problem.status} {HTTPStatus(problem.status).phrase}", headers)
    return [body]


def _write_text(fields: Fields) -> list[tuple[str, str]]:
    return [(key.decode("ascii"), value.decode("ascii")) for key, value in fields]
