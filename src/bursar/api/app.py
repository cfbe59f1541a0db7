"""The Starlette application: /v1, its document, and pages that others make."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from bursar.api import answering, gate, openapi
from bursar.api.desk import Answered, Call, Desk
from bursar.api.errors import GoneError, UnidentifiedError
from bursar.api.gate import Gate
from bursar.api.guide import render
from bursar.api.operations import OPERATIONS, Operation
from bursar.api.pages import Answer, Page
from bursar.api.problems import Problem
from bursar.api.ratelimit import Fields
from bursar.errors import BursarError, Unknown

Failed = Callable[[BaseException, str], None]
"""Told of an operation that failed by a mistake of ours, and of its path."""

SAFE: Fields = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
PAGE: Fields = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]

Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """`pages` are served as they are, `/metrics` among them for who shows `metrics_token`. `/v1` is
    answered once there is a desk."""

    def __init__(
        self,
        entrance: Gate,
        pages: Mapping[str, Page],
        failed: Failed,
        *,
        metrics_token: str | None = None,
        has_api: bool = True,
    ) -> None:
        self.desk: Desk | None = None
        self.gate = entrance
        self._failed = failed
        self._metrics_token = metrics_token
        self._document = msgspec.json.encode(openapi.describe(OPERATIONS))
        self._guide = render(openapi.describe(OPERATIONS)).encode()
        routes = [self._route(path, {"GET": self._serve_page(path, page)}) for path, page in pages.items()]
        if has_api:
            routes += self._make_routes()
        self._router: ASGIApp = Router(routes, redirect_slashes=False)

    def _make_routes(self) -> list[Route]:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for operation in OPERATIONS:
            by_path.setdefault(operation.path, {})[operation.method] = self._serve(operation)
        routes = [self._route(path, methods) for path, methods in by_path.items()]
        document = self._serve_bytes("application/json", self._document)
        guide = self._serve_bytes("text/html; charset=utf-8", self._guide, PAGE)
        return [
            self._route("/v1/openapi.json", {"GET": document}),
            self._route("/v1/docs", {"GET": guide}),
            *routes,
        ]

    def _route(self, path: str, methods: Mapping[str, Endpoint]) -> Route:
        async def serve(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await methods[method](request)

        return Route(path, serve, methods=list(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope["app"] = self  # so that a method that is not allowed is raised, and answered below
        try:
            self.gate.check_origin(request.headers)
            await self._router(scope, receive, send)
        except GoneError:
            return
        except BursarError as error:
            await _write(answering.describe(error, self._find(request)))(scope, receive, send)
        except HTTPException as error:
            await _write(_describe_http(error, request))(scope, receive, send)
        except Exception as error:  # noqa: BLE001  a mistake of ours must not end the server
            self._failed(error, request.url.path)
            problem = answering.plain(500, "this is a mistake of bursar's; the log has it", "mistake")
            await _write(problem)(scope, receive, send)

    def _find(self, request: Request) -> Any:
        name = request.scope.get("path_params", {}).get("resource")
        return self.desk.resources.get(name) if self.desk is not None and name else None

    # -- operations

    def _serve(self, operation: Operation) -> Endpoint:
        async def serve(request: Request) -> Response:
            desk = self.desk
            if desk is None:
                raise Unknown("this daemon is being started, or stopped: ask again")
            caller = await self.gate.identify(request)
            path = {name: _check(name, value) for name, value in request.path_params.items()}
            query = gate.read_query(request, operation.query)
            if operation.body is None:
                await gate.refuse_body(request)
                body = None
            else:
                body = await gate.read_body(request, operation.body, operation.body_max)
            call = Call(
                desk, caller, path, query, body, request.headers, lambda: gate.wait_until_gone(request)
            )
            return _write_answered(await operation.act(call))

        return serve

    # -- pages

    def _serve_page(self, path: str, page: Page) -> Endpoint:
        async def serve(request: Request) -> Response:
            if path == "/metrics":
                await self._check_reader(request)
            return _write_page(await page())

        return serve

    async def _check_reader(self, request: Request) -> None:
        """On loopback metrics are for everybody, unless there is a token for them."""
        if self._metrics_token is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(token.strip().encode(), self._metrics_token.encode())
            if scheme.lower() != "bearer" or not same:
                raise UnidentifiedError("send Authorization: Bearer TOKEN")
        elif not self.gate.local:
            (await self.gate.identify(request)).check("read")

    def _serve_bytes(self, form: str, data: bytes, fields: Fields | None = None) -> Endpoint:
        async def serve(request: Request) -> Response:
            return _respond(200, form, data, fields or [])

        return serve


def _check(name: str, value: Any) -> Any:
    return gate.check_text(name, value) if isinstance(value, str) else value


def _write_answered(answered: Answered) -> Response:
    if answered.body is None:
        return _respond(answered.status, None, b"", answered.fields)
    return _respond(answered.status, "application/json", msgspec.json.encode(answered.body), answered.fields)


def _write(problem: Problem) -> Response:
    return _respond(problem.status, "application/problem+json", problem.write(), problem.fields)


def _respond(status: int, form: str | None, data: bytes, fields: Fields) -> Response:
    response = Response(data, status)
    own: Fields = [] if form is None else [(b"content-type", form.encode("ascii"))]
    if status != 204:
        own.append((b"content-length", str(len(data)).encode("ascii")))
    response.raw_headers = own + SAFE + fields
    return response


def _write_page(answer: Answer) -> Response:
    size = str(sum(map(len, answer.body)))
    headers = {"content-length": size, "content-type": answer.form, "cache-control": "no-store"}
    return StreamingResponse(answer.stream(), answer.status, headers)


def _describe_http(error: HTTPException, request: Request) -> Problem:
    """What Starlette says: there is no such path, or it has other methods."""
    detail = {
        404: f"there is no {request.url.path[:100]}; /v1/docs says what there is",
        405: f"{request.url.path[:100]} does not take {request.method[:20]}",
    }.get(error.status_code, str(error.detail))
    problem = answering.plain(error.status_code, detail, "missing" if error.status_code == 404 else "usage")
    for name, value in (error.headers or {}).items():
        problem.fields.append((name.lower().encode("ascii"), value.encode("ascii")))
    return problem
