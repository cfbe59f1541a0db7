"""What a caller was told, as the history has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from bursar.errors import DeniedError, Refused, Unknown, UsageError

Answer = dict[str, Any]
DONE: Answer = {"is": "done"}


def describe_grant(grant: Any) -> Answer:
    return {
        "is": "grant",
        "id": grant.id,
        "period": grant.period,
        "amount": grant.amount,
        "fence": {name: int(fence) for name, fence in grant.fence.items()},
        "fallback": grant.fallback,
        "replayed": grant.replayed,
        "used": grant.used,
        "limit": grant.limit,
        "remaining": grant.remaining,
    }


def describe_error(error: BaseException) -> Answer:
    """The four answers that the contract allows by name; whatever else it was is an "error"."""
    if isinstance(error, Refused):
        return {
            "is": "refused",
            "why": error.why,
            "limit": error.limit,
            "remaining": error.remaining,
            "retry_after": error.retry_after,
            "reason": error.reason,
        }
    if isinstance(error, Unknown):
        return {"is": "unknown", "why": error.why, "fallback": error.fallback}
    if isinstance(error, asyncio.CancelledError):
        return {"is": "cancelled"}
    word = (
        "denied" if isinstance(error, DeniedError) else "usage" if isinstance(error, UsageError) else "error"
    )
    return {"is": word, "why": f"{type(error).__name__}: {error}"[:500]}


def describe_problem(status: int, problem: Mapping[str, Any]) -> Answer:
    """A problem document of the HTTP API."""
    reason, why = problem.get("reason", ""), str(problem.get("detail", ""))[:500]
    if reason in ("limit", "amount", "tenant"):
        numbers = {name: problem.get(name) for name in ("limit", "remaining", "retry_after")}
        return {"is": "refused", "why": why, "reason": reason, **numbers}
    if status in (503, 504):
        return {"is": "unknown", "why": why}
    if status in (401, 403):
        return {"is": "denied", "why": why}
    word = "usage" if 400 <= status < 500 else "error"
    return {"is": word, "why": f"{status} {why}"}
