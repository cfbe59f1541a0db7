"""Middleware for ASGI applications (FastAPI, Starlette, any other), for every kind of resource.

    app.add_middleware(BursarMiddleware, bursar="policy.toml", resource="api", tenant=by_header("x-tenant"))

Each request acquires for its tenant before the application sees it, waiting if told to, and gives
back when the response is out, streamed ones included. Every answer carries the RateLimit fields of
the IETF draft; a refusal is a 429 problem document with Retry-After.

    tenants      whose request is it
    middleware   what is asked for a request, and what is done with the answer
    listening    clients that leave while their request waits
    exchange     a request and its response under a grant
    costs        what was used
    answers      the RateLimit fields, and problem documents
    opening      connecting, now or later
"""

from bursar.integrations.asgi.costs import Sent, Ungranted, grant_of, used_by_bytes, used_by_header
from bursar.integrations.asgi.middleware import BursarMiddleware
from bursar.integrations.asgi.tenants import by_header, by_key, by_path

__all__ = [
    "BursarMiddleware",
    "Sent",
    "Ungranted",
    "by_header",
    "by_key",
    "by_path",
    "grant_of",
    "used_by_bytes",
    "used_by_header",
]
