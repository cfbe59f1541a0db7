"""Functions and blocks that need a grant: one decorator and context manager, sync and async.

    @limited(cache, "acme")                        # async def, def, and generators of both
    async def fetch(url): ...

    @limited(llm, lambda prompt, user, **_: user, amount=4000, wait=2.0)
    def complete(prompt, user, *, grant):          # a parameter named `grant` gets it
        grant.settle(...)

    async with limited(cache, "acme"): ...
    with limited(sync_cache, "acme"): ...

For `async` code the resource is one of `bursar.connect`, for plain code one of
`bursar.sync.connect`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from bursar import sync
from bursar.errors import UsageError
from bursar.resource.door import Resource
from bursar.resource.grants import Grant

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Tenant = str | Callable[..., str]


class limited:
    """Acquires when entered, releases when left; work that fails is left by its exception, so that
    a budget gets back what was not settled. `tenant` and `amount` may be functions of the decorated
    function's arguments."""

    def __init__(
        self,
        resource: Resource | sync.Resource,
        tenant: Tenant,
        amount: int | Callable[..., int] = 1,
        *,
        wait: float = 0.0,
    ) -> None:
        self._resource = resource
        self._tenant = tenant
        self._amount = amount
        self._wait = wait
        self._entered: Any = None

    # -- blocks -----------------------------------------------------------------------------

    def _acquire(self, *args: Any, **kwargs: Any) -> Any:
        tenant = self._tenant if isinstance(self._tenant, str) else self._tenant(*args, **kwargs)
        amount = self._amount if isinstance(self._amount, int) else self._amount(*args, **kwargs)
        return self._resource.acquire(tenant, amount, wait=self._wait)

    def _enter(self, wanted: type, other: str) -> Any:
        if not isinstance(self._resource, wanted):
            raise UsageError(f"this resource is for the other world: use it with {other}")
        if self._entered is not None:
            raise UsageError("this is entered already; write limited(...) anew for each block")
        if not isinstance(self._tenant, str) or not isinstance(self._amount, int):
            raise UsageError("a block has no arguments: pass the tenant's name and a number")
        self._entered = self._acquire()
        return self._entered

    async def __aenter__(self) -> Grant:
        entered = self._enter(Resource, "`with`")
        try:
            grant: Grant = await entered.__aenter__()
        except BaseException:
            self._entered = None
            raise
        return grant

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        await entered.__aexit__(kind, error, trace)

    def __enter__(self) -> sync.Grant:
        entered = self._enter(sync.Resource, "`async with`")
        try:
            grant: sync.Grant = entered.__enter__()
        except BaseException:
            self._entered = None
            raise
        return grant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        entered.__exit__(kind, error, trace)

    # -- functions --------------------------------------------------------------------------

    def __call__(self, function: FunctionT) -> FunctionT:
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        wanted = Resource if is_async else sync.Resource
        if not isinstance(self._resource, wanted):
            where = "bursar.connect" if is_async else "bursar.sync.connect"
            raise UsageError(f"{function.__qualname__} needs a resource of {where}")
        gives = "grant" in inspect.signature(function).parameters

        def extra(grant: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
            return {**kwargs, "grant": grant} if gives else kwargs

        return functools.wraps(function)(self._wrap(function, extra))  # type: ignore[return-value]

    def _wrap(self, function: Callable[..., Any], extra: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            async with self._acquire(*args, **kwargs) as grant:
                return await function(*args, **extra(grant, kwargs))

        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with self._acquire(*args, **kwargs) as grant:
                async for item in function(*args, **extra(grant, kwargs)):
                    yield item

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._acquire(*args, **kwargs) as grant:
                return function(*args, **extra(grant, kwargs))

        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self._acquire(*args, **kwargs) as grant:
                yield from function(*args, **extra(grant, kwargs))

        if inspect.isasyncgenfunction(function):
            return stream
        if inspect.iscoroutinefunction(function):
            return run
        return generate if inspect.isgeneratorfunction(function) else call
