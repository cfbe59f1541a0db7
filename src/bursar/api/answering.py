"""Errors as answers: which status each has, and what it says."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from bursar.api.errors import BodyError, MissingError, StateError, TooManyError, UnidentifiedError
from bursar.api.problems import Problem, quota_exceeded, reduced_capacity
from bursar.api.ratelimit import Writer
from bursar.errors import (
    BursarError,
    DeniedError,
    NetworkError,
    PolicyError,
    Refused,
    TooLargeError,
    Unknown,
    UsageError,
)
from bursar.fleet.changes import ImpossibleChangeError
from bursar.fleet.documents import ConflictError
from bursar.resource.door import Resource

RETRY_AFTER_S = 1.0
"""When to ask again what could not be learnt."""


def describe(error: BursarError, door: Resource | None = None) -> Problem:
    """The problem that an error is."""
    match error:
        case Refused():
            return _refuse(error, door)
        case Unknown():
            more = {"reason": "unknown", "fallback": error.fallback}
            return reduced_capacity(error.why, RETRY_AFTER_S, **more)
        case PolicyError():
            fields = ("path", "line", "what", "remedy")
            found = [{name: getattr(each, name) for name in fields} for each in error.problems]
            return plain(422, str(error), "policy", problems=found)
        case BodyError():
            return plain(error.status, str(error), "usage")
    for kind, status, reason in STATUSES:
        if isinstance(error, kind):
            return plain(status, str(error), reason)
    return reduced_capacity(str(error), RETRY_AFTER_S, reason="unknown")


STATUSES: tuple[tuple[type[BursarError], int, str], ...] = (
    (MissingError, 404, "missing"),
    (StateError, 409, "state"),
    (ConflictError, 412, "conflict"),
    (ImpossibleChangeError, 409, "impossible"),
    (DeniedError, 403, "denied"),
    (UnidentifiedError, 401, "denied"),
    (TooManyError, 503, "busy"),
    (TooLargeError, 413, "usage"),
    (UsageError, 422, "usage"),
    (NetworkError, 503, "unknown"),
)
"""The first that fits. What is left is the store, or the node, that cannot answer now."""


def plain(status: int, detail: str, reason: str, **more: Any) -> Problem:
    fields = []
    if status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        fields.append((b"retry-after", b"1"))
    if status in (408, 413):
        fields.append((b"connection", b"close"))  # the rest of what it sends is not read
    return Problem(status, HTTPStatus(status).phrase, detail, fields, {"reason": reason, **more})


def _refuse(refused: Refused, door: Resource | None) -> Problem:
    """No for now is 429; never so much is 422, a tenant that the policy does not list 403: waiting would
    not help."""
    name = door.name if door is not None else ""
    writer = Writer(name)
    if door is not None:
        writer.learn(door)
    more = {
        "reason": refused.reason,
        "limit": refused.limit,
        "remaining": refused.remaining,
        "retry_after": refused.retry_after,
    }
    if refused.reason == "limit":
        return quota_exceeded(name, refused, writer, **more)
    status = 403 if refused.reason == "tenant" else 422
    return Problem(status, HTTPStatus(status).phrase, refused.why, writer.write_refusal(refused), more)
