"""An interceptor for gRPC servers on asyncio: what `bursar.integrations.asgi` does, for calls.

    server = grpc.aio.server(interceptors=[BursarInterceptor(bursar="policy.toml", resource="api",
                                                             tenant=by_header("x-tenant"))])

A call acquires for its tenant before its handler runs, and gives back when it is through. `tenant`,
`amount` and the other functions are given a scope whose `path` is the method ("/package.Service/Method")
and whose `headers` are the call's metadata. A refusal is RESOURCE_EXHAUSTED, with the RateLimit fields and
retry-after in the trailing metadata; what cannot be learnt now is UNAVAILABLE.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc

from bursar.api.problems import Problem
from bursar.errors import UsageError
from bursar.integrations.asgi.costs import FindUsed, RequestGrant, Ungranted, show
from bursar.integrations.asgi.deciding import Away, Deciding
from bursar.integrations.asgi.exchange import Bill
from bursar.integrations.asgi.opening import Target
from bursar.integrations.asgi.scopes import Scope
from bursar.integrations.asgi.tenants import FindTenant, by_header, by_key

__all__ = ["BursarInterceptor", "by_header", "by_key", "current_grant"]

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
OK = 200

_grant: ContextVar[RequestGrant | Ungranted] = ContextVar("bursar grant")


def current_grant() -> RequestGrant | Ungranted:
    """The grant of the call whose handler asks: call `settle` on it when the cost is known."""
    return _grant.get()


class BursarInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Acquires for each call. The parameters are those of the ASGI middleware."""

    def __init__(
        self,
        *,
        bursar: Target,
        resource: str,
        tenant: FindTenant,
        amount: int | Callable[[Scope], int] = 1,
        wait: float | Callable[[Scope], float] = 0.0,
        used: FindUsed | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        when_away: Away | Callable[[Scope], Away] | None = None,
    ) -> None:
        self._used = used
        self._exempt = exempt
        self._deciding = Deciding(
            bursar, resource, tenant, amount=amount, wait=wait, when_away=when_away, window_s=None
        )

    async def close(self) -> None:
        """Close what was connected here; call it when the server has stopped."""
        await self._deciding.opening.close()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(details)
        scope = make_scope(details)
        if handler is None or (self._exempt is not None and self._exempt(scope)):
            return handler
        return self._guard(handler, scope)

    def _guard(self, handler: Any, scope: Scope) -> grpc.RpcMethodHandler:
        make, call = _find_call(handler)

        async def answer(request: Any, context: Any) -> Any:
            bill = await self._charge(scope, context)
            failed: Exception | None = None
            try:
                return await call(request, context)
            except Exception as error:
                failed = error
                raise
            finally:
                await _leave(bill, failed)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            bill = await self._charge(scope, context)
            failed: Exception | None = None
            try:
                async for response in call(request, context):
                    yield response
                    if bill is not None:
                        bill.sent.status = OK  # something of it has been used
            except Exception as error:
                failed = error
                raise
            finally:
                await _leave(bill, failed)

        guarded = stream if handler.response_streaming else answer
        return make(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _charge(self, scope: Scope, context: Any) -> Bill | None:
        """Ends the call where it is not granted."""
        decided = await self._deciding.decide(scope)
        if isinstance(decided, Problem):
            fields = ((key.decode("ascii"), value.decode("ascii")) for key, value in decided.fields)
            await context.abort(CODES[decided.status], decided.detail, tuple(fields))
            raise AssertionError("abort does not return")
        _grant.set(show(decided))
        return None if isinstance(decided, Ungranted) else Bill(decided, self._used)


async def _leave(bill: Bill | None, failed: Exception | None) -> None:
    if bill is not None:
        await bill.leave(failed)


def _find_call(handler: Any) -> tuple[Any, Any]:
    """How a handler of its form is made, and what it calls. Raises UsageError for one that grpc.aio would run
    in a thread, or that writes to its context."""
    for form in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        call = getattr(handler, form)
        if call is not None:
            break
    fits = inspect.isasyncgenfunction if handler.response_streaming else inspect.iscoroutinefunction
    if not fits(call):
        wanted = "async def with yield" if handler.response_streaming else "async def"
        raise UsageError(f"{call.__qualname__} cannot be called under a grant: write it as {wanted}")
    return getattr(grpc, f"{form}_rpc_method_handler"), call


def make_scope(details: Any) -> Scope:
    """What the functions that are shared with ASGI look at."""
    headers = [
        (key.encode("latin-1"), value if isinstance(value, bytes) else value.encode("latin-1"))
        for key, value in details.invocation_metadata
    ]
    return {"type": "grpc", "path": details.method, "headers": headers}
