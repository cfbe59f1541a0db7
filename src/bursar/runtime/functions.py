"""Tasks as functions: what each needs, calls of them put in the queue, and calls done.

    b = bursar.Bursar("policy.toml")

    @b.task(needs="dc-1/{host}/{vm}:E")
    async def power_on(vm: str, host: str, fence: dict[str, int]) -> str: ...

    await b.submit(power_on, tenant="ops", vm="vm-7", host="host-1")

A plain function runs in a thread, its names held until it returns.

A function that takes `fence` gets the fence of each name it holds, one that takes `key` the
idempotency key, the same for every time the call is tried.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bursar.claims.requirements import Lookup, Template
from bursar.claims.tracker import Dispatch
from bursar.errors import FormatError, UsageError
from bursar.resource.decider import Verb

Function = Callable[..., Any]
GIVEN = ("fence", "key")
"""Arguments that a function is given if it has them; a call cannot set them."""


class Call(msgspec.Struct, frozen=True):
    """The payload of a task that is a function's call."""

    function: str
    arguments: dict[str, Any]


_decode = msgspec.msgpack.Decoder(Call).decode


class Functions:
    """Functions by name, and what each needs."""

    def __init__(self) -> None:
        self._functions: dict[str, tuple[Function, Template, Lookup]] = {}

    @property
    def names(self) -> Iterable[str]:
        return tuple(self._functions)

    def register(self, function: Function, needs: str, lookup: Lookup | None, name: str | None) -> None:
        """`needs` is a template over the function's arguments."""
        called = name or function.__name__
        if called in self._functions:
            raise UsageError(f"there are two tasks {called!r}: give one another name=...")
        self._functions[called] = function, Template(needs), lookup or _no_lookup

    async def submit(
        self,
        verb: Verb,
        function: Function | str,
        arguments: dict[str, Any],
        *,
        tenant: str,
        **options: Any,
    ) -> str:
        """Queue one call and return its id. `verb(name, **arguments)` does what else the resource can
        do, here or at a daemon; `options` are those of its verb `submit`."""
        name = self._find_name(function)
        called, template, lookup = self._functions[name]
        arguments = _complete(called, arguments)
        try:
            payload = msgspec.msgpack.encode(Call(name, arguments))
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{name}: its arguments cannot be stored: {error}; give plain values") from error
        texts = {argument: str(value) for argument, value in arguments.items()}
        names = template.fill(lookup, **texts)
        id: str = await verb("submit", tenant=tenant, names=names, payload=payload, **options)
        return id

    def _find_name(self, function: Function | str) -> str:
        for name, (known, _, _) in self._functions.items():
            if function in (name, known):
                return name
        listed = ", ".join(self.names) or "none"
        raise UsageError(f"there is no task {getattr(function, '__name__', function)!r}: there are {listed}")

    async def work(self, dispatch: Dispatch) -> bytes:
        """Do one call: for an InProcessTracker."""
        try:
            call = _decode(dispatch.payload)
        except msgspec.MsgspecError as error:
            raise FormatError(f"{dispatch.id} is no call of a function: {error}") from error
        if call.function not in self._functions:
            raise UsageError(f"there is no task {call.function!r} here: there are {', '.join(self.names)}")
        function, _, _ = self._functions[call.function]
        extra = {"fence": dict(dispatch.fences), "key": dispatch.key}
        wanted = inspect.signature(function).parameters
        given = {name: extra[name] for name in GIVEN if name in wanted}
        if inspect.iscoroutinefunction(function):
            result = await function(**call.arguments, **given)
        else:
            result = await asyncio.to_thread(function, **call.arguments, **given)
        return b"" if result is None else msgspec.json.encode(result)


def _complete(function: Function, arguments: dict[str, Any]) -> dict[str, Any]:
    """With the defaults. A wrong call is told to whoever makes it, not to a worker later."""
    signature = inspect.signature(function)
    given = {name: None for name in GIVEN if name in signature.parameters}
    try:
        bound = signature.bind(**arguments, **given)
    except TypeError as error:
        raise UsageError(f"{function.__name__}: {error}") from error
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name not in GIVEN}


def _no_lookup(relation: str, name: str) -> str:
    raise UsageError(f"the template looks up {relation}({name}): give @b.task(..., lookup=...)")
