"""What clients are told in place of the application's answer: problems, with the RateLimit fields."""

from __future__ import annotations

from bursar.api.problems import Problem, quota_exceeded, reduced_capacity
from bursar.api.ratelimit import Writer
from bursar.errors import Refused
from bursar.integrations.asgi.scopes import Scope, Send

TRY_AGAIN_LATER = 1013
"""The close code of a refused WebSocket, where the server cannot answer it otherwise."""


async def send_problem(problem: Problem, scope: Scope, send: Send) -> None:
    kind = scope["type"]
    if kind == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": problem.title})
            return
        kind = "websocket.http"
    body = problem.write()
    headers = problem.write_headers(len(body))
    await send({"type": f"{kind}.response.start", "status": problem.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})


def no_tenant(detail: str) -> Problem:
    return Problem(400, "No tenant", detail)


def unknown_tenant(tenant: str, resource: str) -> Problem:
    """Says no more than the client said itself: not which tenants there are."""
    return Problem(403, "Unknown tenant", f"tenant {tenant!r} has no part in {resource}")


def refused(resource: str, error: Refused, writer: Writer) -> Problem:
    return quota_exceeded(resource, error, writer)


def away(retry_after: float) -> Problem:
    """Why it is away is for the logs: it names addresses."""
    detail = "whether this request may go on cannot be learnt now; nothing was charged for it"
    return reduced_capacity(detail, retry_after)
