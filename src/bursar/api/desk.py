"""What the routes work with: the node's resources, who may do what, and what callers hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bursar.api.errors import GoneError, MissingError, TooManyError
from bursar.api.holdings import Holdings
from bursar.api.ratelimit import Fields
from bursar.errors import DeniedError, Unknown
from bursar.fleet.rights import Caller, Verb
from bursar.policy.values import suggest
from bursar.resource.door import Resource
from bursar.world import World

WAITING_MAX = 400
"""Requests that wait at once. Fewer than the listener's connections, so that others are answered."""

T = TypeVar("T")

Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when whoever asked has left."""

Undo = Callable[[T], Awaitable[None]]


class Desk:
    """Of one daemon. `close` answers whoever waits."""

    def __init__(self, world: World, resources: Mapping[str, Resource]) -> None:
        self.world = world
        self.resources = resources
        self.holdings = Holdings(world)
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False

    def start(self) -> None:
        self.holdings.start()

    def find(self, name: str) -> Resource:
        found = self.resources.get(name)
        if found is None:
            raise MissingError(
                f"there is no resource {name[:100]!r} here{suggest(name[:100], self.resources)}"
            )
        return found

    def close(self) -> None:
        self._closed = True
        for waiting in self._waiting:
            waiting.cancel()

    async def wait(self, asked: Coroutine[Any, Any, T], gone: Gone, undo: Undo[T] | None = None) -> T:
        """What was asked for. Whoever asked may leave meanwhile (`gone`): then it is cancelled, or undone
        if it was granted at that moment, and raises GoneError."""
        if len(self._waiting) >= WAITING_MAX:
            asked.close()
            raise TooManyError(f"{WAITING_MAX} requests wait here already; ask again later, or another node")
        task, left = asyncio.ensure_future(asked), asyncio.ensure_future(gone())
        self._waiting.add(task)
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                raise GoneError("the client left")
            if task.cancelled():
                raise Unknown("this daemon is being stopped: ask another")
            return task.result()
        except (GoneError, asyncio.CancelledError):
            await _take_back(task, undo)
            raise
        finally:
            self._waiting.discard(task)
            left.cancel()


async def _take_back(task: asyncio.Future[T], undo: Undo[T] | None) -> None:
    task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    if undo is not None and not isinstance(found, BaseException):
        await undo(found)


@dataclass(slots=True)
class Call:
    """One request, read and checked as far as its form goes."""

    desk: Desk
    caller: Caller
    path: Mapping[str, Any]
    query: Any
    body: Any
    headers: Mapping[str, str]
    gone: Gone

    def check(self, verb: Verb, resource: str = "*", tenant: str = "*") -> None:
        """Raises DeniedError. Comes before anything else that an operation does."""
        self.caller.check(verb, resource, tenant)

    def may(self, verb: Verb, resource: str, tenant: str = "*") -> bool:
        try:
            self.caller.check(verb, resource, tenant)
        except DeniedError:
            return False
        return True

    @property
    def resource(self) -> str:
        name: str = self.path["resource"]
        return name


@dataclass(frozen=True, slots=True)
class Answered:
    """What an operation answers: a struct, or nothing."""

    body: Any = None
    status: int = 200
    fields: Fields = field(default_factory=list)
