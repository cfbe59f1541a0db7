"""Tasks as functions: `@app.task` says what a function needs, `submit` puts a call of it in the queue,
and `bursar work module:app` runs the calls that are granted.

    app = TaskApp()

    @app.task(needs="dc-1/{host}/{vm}:E")
    async def power_on(vm: str, host: str, fence: dict[str, int]) -> str: ...

    await app.submit(resource, "power_on", tenant="ops", vm="vm-7", host="host-1")

A function that takes `fence` gets the fence of each name it holds, one that takes `key` the
idempotency key, the same for every time the call is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.claims.requirements import Lookup, Template
from bursar.claims.tracker import Dispatch
from bursar.errors import FormatError, UsageError

if TYPE_CHECKING:
    from bursar.claims.resource import ClaimResource

Function = Callable[..., Awaitable[Any]]


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A payload: which function, with which arguments."""

    function: str
    arguments: dict[str, Any]


_decode = msgspec.msgpack.Decoder(Call).decode


class TaskApp:
    """Functions by name, and what each needs."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        self._lookup = lookup or _no_lookup
        self._functions: dict[str, tuple[Function, Template]] = {}

    @property
    def names(self) -> Iterable[str]:
        return tuple(self._functions)

    def task(self, *, needs: str, name: str | None = None) -> Callable[[Function], Function]:
        """Register a function. `needs` is a template over its arguments."""
        template = Template(needs)

        def register(function: Function) -> Function:
            if not inspect.iscoroutinefunction(function):
                raise UsageError(f"{function.__name__} is not async: write `async def`")
            self._functions[name or function.__name__] = function, template
            return function

        return register

    async def submit(
        self, resource: ClaimResource, function: str, *, tenant: str, key: str | None = None, **arguments: Any
    ) -> str:
        """Queue one call and return its id. The same key is the same call."""
        if function not in self._functions:
            raise UsageError(f"there is no task {function!r}: there are {', '.join(self.names) or 'none'}")
        _, template = self._functions[function]
        names = {name: str(value) for name, value in arguments.items()}
        payload = msgspec.msgpack.encode(Call(function, arguments))
        return await resource.submit(tenant, template.fill(self._lookup, **names), payload=payload, key=key)

    async def work(self, dispatch: Dispatch) -> bytes:
        """Do one call: for an InProcessTracker."""
        try:
            call = _decode(dispatch.payload)
        except msgspec.MsgspecError as error:
            raise FormatError(f"{dispatch.id} carries no call of this app: {error}") from error
        if call.function not in self._functions:
            raise UsageError(f"this app has no task {call.function!r}")
        function, _ = self._functions[call.function]
        extra = {"fence": dict(dispatch.fences), "key": dispatch.key}
        wanted = inspect.signature(function).parameters
        given = {name: value for name, value in extra.items() if name in wanted}
        result = await function(**call.arguments, **given)
        return b"" if result is None else msgspec.json.encode(result)


def _no_lookup(relation: str, name: str) -> str:
    raise UsageError(f"the template looks up {relation}({name}): give TaskApp(lookup=...)")
