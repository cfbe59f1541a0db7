"""Tasks as functions: what each needs, calls of them put in the queue, and calls made.

    b = bursar.Bursar("policy.toml")

    @b.task(needs="dc-1/{host}/{vm}:E", retries=3, backoff="1s")
    def power_on(vm: str, host: str, fence: dict[str, int]) -> str: ...

    task = await b.submit(power_on, tenant="ops", vm="vm-7", host="host-1")
    await task.result(wait=60)

An async function runs beside the others in one thread; a plain one has a thread to itself, or a process
with `run="process"`. A function that takes `fence` gets the fence of each name it holds, one that takes
`key` the idempotency key, the same for every time the call is tried.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from bursar.claims.model import FUNCTION_MAX, RETRIES_MAX, cut
from bursar.claims.requirements import Lookup, Template
from bursar.claims.tracker import Dispatch
from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError, UsageError
from bursar.resource.decider import Verb
from bursar.runtime.current import CurrentTask
from bursar.units import read_duration_ns
from bursar.world import SECOND_NS

Function = Callable[..., Any]
GIVEN = ("fence", "key")
"""Arguments that a function is given if it has them; a call cannot set them."""

RunIn = Literal["loop", "thread", "process"]
TRACEBACK_MAX = 16_000
"""Characters of a traceback that are kept with a task that failed."""

GRACE_S = 5.0


class Call(msgspec.Struct, frozen=True):
    """The payload of a task that is a function's call."""

    function: str
    arguments: dict[str, Any]


_decode = msgspec.msgpack.Decoder(Call).decode


@dataclass(frozen=True, slots=True)
class Declared:
    """A function, and how it is to be run.

    limit_s  seconds that one attempt may take, None for as long as it likes
    grace_s  seconds that it has to stop in when it is asked to; a process is killed then
    """

    name: str
    function: Function
    needs: Template
    lookup: Lookup
    run: RunIn
    limit_s: float | None
    grace_s: float
    retries: int
    backoff_s: float


class Functions:
    """Functions by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Declared] = {}

    @property
    def names(self) -> Iterable[str]:
        return tuple(self._functions)

    def register(
        self,
        function: Function,
        needs: str,
        lookup: Lookup | None = None,
        name: str | None = None,
        *,
        run: str | None = None,
        time_limit: float | str | None = None,
        grace: float | str = GRACE_S,
        retries: int = 0,
        backoff: float | str = 1.0,
    ) -> None:
        """`needs` is a template over the function's arguments."""
        called = name or function.__name__
        if called in self._functions:
            raise UsageError(f"there are two tasks {called!r}: give one another name=...")
        if not 0 < len(called) <= FUNCTION_MAX:
            raise UsageError(f"a task's name has at most {FUNCTION_MAX} characters")
        if not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
            raise UsageError(f"{called}: retries is a number from 0 to {RETRIES_MAX}, not {retries!r}")
        self._functions[called] = Declared(
            called,
            function,
            Template(needs),
            lookup or _no_lookup,
            _check_run(called, function, run),
            None if time_limit is None else read_seconds(f"{called}: time_limit", time_limit),
            read_seconds(f"{called}: grace", grace),
            retries,
            read_seconds(f"{called}: backoff", backoff),
        )

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
        found = self._find(function)
        arguments = _complete(found.function, arguments)
        try:
            payload = msgspec.msgpack.encode(Call(found.name, arguments))
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"{found.name}: its arguments cannot be stored: {error}; give plain values"
            ) from error
        texts = {argument: str(value) for argument, value in arguments.items()}
        names = found.needs.fill(found.lookup, **texts)
        given = {"function": found.name, "retries": found.retries, "backoff": found.backoff_s, **options}
        id: str = await verb("submit", tenant=tenant, names=names, payload=payload, **given)
        return id

    def _find(self, function: Function | str) -> Declared:
        for name, declared in self._functions.items():
            if function in (name, declared.function):
                return declared
        listed = ", ".join(self.names) or "none"
        raise UsageError(f"there is no task {getattr(function, '__name__', function)!r}: there are {listed}")

    def read(self, dispatch: Dispatch) -> tuple[Declared, dict[str, Any]]:
        """What is to be called, with which arguments. Raises FormatError, UsageError."""
        try:
            call = _decode(dispatch.payload)
        except DECODE_ERRORS as error:
            raise FormatError(f"{dispatch.id} is no call of a function: {error}") from error
        if call.function not in self._functions:
            raise UsageError(f"there is no task {call.function!r} here: there are {', '.join(self.names)}")
        declared = self._functions[call.function]
        extra = {"fence": dict(dispatch.fences), "key": dispatch.key}
        wanted = inspect.signature(declared.function).parameters
        return declared, {**call.arguments, **{name: extra[name] for name in GIVEN if name in wanted}}


def make_current(dispatch: Dispatch) -> CurrentTask:
    return CurrentTask(dispatch.id, dispatch.tenant, dispatch.attempt, dict(dispatch.fences))


def encode_result(name: str, result: Any) -> bytes:
    """Raises UsageError for what JSON cannot carry: whoever waits for it is told."""
    try:
        return b"" if result is None else msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} returned what cannot be stored: {error}; return plain values") from error


def write_failure(error: BaseException) -> str:
    """What was raised, with its traceback; the last line says what it was. Of a long one, both ends."""
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_globals.get("__name__", "").startswith("bursar.runtime."):
        shown = shown.tb_next  # what called the function is of no interest
    return cut("".join(traceback.format_exception(type(error), error, shown)).strip(), TRACEBACK_MAX)


def read_seconds(what: str, given: float | str) -> float:
    """A time: seconds, or as in a policy ("10min")."""
    if isinstance(given, str):
        return read_duration_ns(given) / SECOND_NS
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given < 1e9:
        raise UsageError(f'{what} is a time (30, or "30s"), not {given!r}')
    return float(given)


def _check_run(name: str, function: Function, run: str | None) -> RunIn:
    is_async = inspect.iscoroutinefunction(function)
    if run is None:
        return "loop" if is_async else "thread"
    if run not in get_args(RunIn) or (run == "loop") != (is_async and run != "process"):
        choices = '"loop" or "process"' if is_async else '"thread" or "process"'
        raise UsageError(f"{name}: run is {choices} for {'an async' if is_async else 'a plain'} function")
    found: RunIn = "process" if run == "process" else "loop" if is_async else "thread"
    return found


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
