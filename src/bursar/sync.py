"""bursar without `await`: the same nouns and verbs for programs that do not use asyncio.

    b = bursar.sync.connect("policy.toml")
    with b.resource("cache").acquire("acme", wait=0.2): ...

One background thread runs the event loop on which everything is decided; a call hands its question
over and waits for the answer. It may be used from any number of threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bursar.errors import UsageError
from bursar.policy import Policy, Tls
from bursar.resource import door, grants, several
from bursar.resource.decider import Explanation
from bursar.resource.statistics import Statistics
from bursar.resource.wire import FleetTold
from bursar.runtime import client, tasks
from bursar.runtime.loops import new_event_loop
from bursar.runtime.tasks import wait as far_wait

if TYPE_CHECKING:
    from bursar.claims.requirements import Lookup
    from bursar.runtime.functions import Function

__all__ = ["Acquisition", "Bursar", "Grant", "GrantOfAll", "Resource", "Task", "connect", "wait"]

T = TypeVar("T")
GrantT = TypeVar("GrantT", bound="Grant | GrantOfAll")
CLOSE_TIMEOUT_S = 5.0


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bursar", daemon=True)
        self._closed = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def wait_for(self, work: Awaitable[T]) -> T:
        if self._closed:
            if asyncio.iscoroutine(work):
                work.close()
            raise UsageError("this connection is closed; call bursar.sync.connect again")
        if threading.current_thread() is self._thread:
            raise UsageError("bursar.sync was called from its own event loop; use bursar.connect there")
        future: Future[T] = asyncio.run_coroutine_threadsafe(_await(work), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: nobody wants the answer any more.
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function on the loop: what it touches belongs to the loop's thread."""

        async def run() -> T:
            return function(*args)

        return self.wait_for(run())

    def stop(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)
            self._loop.close()


async def _await(work: Awaitable[T]) -> T:
    return await work


class Grant:
    """As `bursar.Grant`."""

    def __init__(self, grant: grants.Grant, thread: LoopThread) -> None:
        self._grant = grant
        self._thread = thread

    @property
    def resource(self) -> str:
        return self._grant.resource

    @property
    def tenant(self) -> str:
        return self._grant.tenant

    @property
    def amount(self) -> int:
        return self._grant.amount

    @property
    def period(self) -> int:
        return self._grant.period

    @property
    def id(self) -> str:
        return self._grant.id

    @property
    def fence(self) -> Mapping[str, int]:
        return self._grant.fence

    @property
    def fallback(self) -> str | None:
        return self._grant.fallback

    @property
    def replayed(self) -> bool:
        return self._grant.replayed

    @property
    def limit(self) -> int | None:
        return self._grant.limit

    @property
    def remaining(self) -> int | None:
        return self._grant.remaining

    @property
    def reset_after(self) -> float | None:
        return self._grant.reset_after

    @property
    def closed(self) -> bool:
        return self._grant.closed

    @property
    def used(self) -> int | None:
        return self._grant.used

    def settle(self, used: int) -> None:
        self._grant.settle(used)

    def spend(self, tokens: int) -> None:
        self._thread.wait_for(self._grant.spend(tokens))

    def more(self, *names: str, wait: float = 0.0) -> Grant:
        self._thread.wait_for(self._grant.more(*names, wait=wait))
        return self

    def extend(self, hold: float | str) -> None:
        self._thread.wait_for(self._grant.extend(hold))

    def lost(self, wait: float | None = None) -> bool:
        return self._thread.wait_for(self._grant.lost(wait))

    def release(self) -> None:
        self._thread.wait_for(self._grant.release())

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.wait_for(self._grant.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._grant)


class GrantOfAll:
    """As `bursar.GrantOfAll`."""

    def __init__(self, grant: several.GrantOfAll, thread: LoopThread) -> None:
        self._grant = grant
        self._thread = thread

    @property
    def tenant(self) -> str:
        return self._grant.tenant

    @property
    def grants(self) -> Mapping[str, Grant]:
        return {name: Grant(grant, self._thread) for name, grant in self._grant.grants.items()}

    @property
    def closed(self) -> bool:
        return self._grant.closed

    def settle(self, used: Mapping[str, int]) -> None:
        self._grant.settle(used)

    def release(self) -> None:
        self._thread.wait_for(self._grant.release())

    def __enter__(self) -> GrantOfAll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.wait_for(self._grant.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._grant)


class Acquisition(Generic[GrantT]):
    """As `bursar.Acquisition`: use it in `with`, or call `take()` for a grant that you release."""

    def __init__(self, take: Callable[[], GrantT]) -> None:
        self._take = take
        self._grant: GrantT | None = None

    def take(self) -> GrantT:
        return self._take()

    def __enter__(self) -> GrantT:
        self._grant = self.take()
        return self._grant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._grant is not None, "entered before"
        self._grant.__exit__(kind, error, trace)


class Resource:
    """As `bursar.Resource`."""

    def __init__(self, resource: door.Resource, thread: LoopThread) -> None:
        self._resource = resource
        self._thread = thread

    @property
    def name(self) -> str:
        return self._resource.name

    @property
    def kind(self) -> str:
        return self._resource.kind

    def acquire(
        self,
        tenant: str,
        amount: int = 1,
        *,
        wait: float = 0.0,
        key: str | None = None,
        hold: float | str | None = None,
    ) -> Acquisition[Grant]:
        acquisition = self._resource.acquire(tenant, amount, wait=wait, key=key, hold=hold)
        return Acquisition(lambda: Grant(self._thread.wait_for(acquisition), self._thread))

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """From what is here already. No network is involved, but the loop's thread is: some tens of
        microseconds."""
        grant = self._thread.call(self._resource.try_acquire, tenant, amount)
        return None if grant is None else Grant(grant, self._thread)

    def claim(
        self,
        names: Sequence[str],
        tenant: str,
        *,
        wait: float = 0.0,
        key: str | None = None,
        priority: int = 0,
    ) -> Acquisition[Grant]:
        acquisition = self._resource.claim(names, tenant, wait=wait, key=key, priority=priority)
        return Acquisition(lambda: Grant(self._thread.wait_for(acquisition), self._thread))

    def settle(self, id: str, used: int | None) -> None:
        self._thread.wait_for(self._resource.settle(id, used))

    def verb(self, name: str, **arguments: Any) -> Any:
        return self._thread.wait_for(self._resource.verb(name, **arguments))


class Task:
    """As `bursar.Task`."""

    def __init__(self, task: tasks.Task, thread: LoopThread) -> None:
        self._task = task
        self._thread = thread

    @property
    def id(self) -> str:
        return self._task.id

    @property
    def resource(self) -> str:
        return self._task.resource

    def result(self, wait: float | str | None = None) -> Any:
        return self._thread.wait_for(self._task.result(wait))

    def ended(self, wait: float | str | None = None) -> dict[str, Any]:
        return self._thread.wait_for(self._task.ended(wait))

    def status(self) -> dict[str, Any]:
        return self._thread.wait_for(self._task.status())

    def why(self) -> list[str]:
        return self._thread.wait_for(self._task.why())

    def cancel(self, wait: float = 2.0) -> str:
        return self._thread.wait_for(self._task.cancel(wait))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self._task == other._task

    def __hash__(self) -> int:
        return hash(self._task)

    def __repr__(self) -> str:
        return repr(self._task)


def wait(
    tasks: Iterable[Task], *, count: int | None = None, wait: float | str | None = None
) -> tuple[list[Task], list[Task]]:
    """As `bursar.wait`, for tasks of one connection."""
    given = list(tasks)
    if not given:
        return [], []
    thread, found = given[0]._thread, {task._task: task for task in given}
    over, pending = thread.wait_for(far_wait(list(found), count=count, wait=wait))
    return [found[task] for task in over], [found[task] for task in pending]


class Bursar:
    """As `bursar.Bursar`."""

    def __init__(self, bursar: client.Bursar, thread: LoopThread) -> None:
        self._bursar = bursar
        self._thread = thread

    @property
    def resources(self) -> tuple[str, ...]:
        return self._bursar.resources

    def resource(self, name: str) -> Resource:
        return Resource(self._bursar.resource(name), self._thread)

    def acquire_all(
        self, tenant: str, amounts: Mapping[str, int], *, wait: float = 0.0
    ) -> Acquisition[GrantOfAll]:
        acquisition = self._bursar.acquire_all(tenant, amounts, wait=wait)
        return Acquisition(lambda: GrantOfAll(self._thread.wait_for(acquisition), self._thread))

    def claim(
        self,
        *names: str,
        tenant: str,
        wait: float = 0.0,
        key: str | None = None,
        priority: int = 0,
        resource: str | None = None,
    ) -> Acquisition[Grant]:
        acquisition = self._bursar.claim(
            *names, tenant=tenant, wait=wait, key=key, priority=priority, resource=resource
        )
        return Acquisition(lambda: Grant(self._thread.wait_for(acquisition), self._thread))

    def task(
        self, *, needs: str, lookup: Lookup | None = None, name: str | None = None, **options: Any
    ) -> Callable[[Function], Function]:
        """As `bursar.Bursar.task`; `options` are its own."""
        return self._bursar.task(needs=needs, lookup=lookup, name=name, **options)

    def submit(self, function: Function | str, *, tenant: str, **options: Any) -> Task:
        """As `bursar.Bursar.submit`; `options` are its own, and the call's arguments."""
        return Task(
            self._thread.wait_for(self._bursar.submit(function, tenant=tenant, **options)), self._thread
        )

    def find_task(self, id: str, *, resource: str | None = None) -> Task:
        return Task(self._bursar.find_task(id, resource=resource), self._thread)

    def explain(self, resource: str, tenant: str) -> Explanation:
        return self._thread.wait_for(self._bursar.explain(resource, tenant))

    def statistics(self, resource: str, *, most: int = 0, find: Sequence[str] = ()) -> Statistics:
        return self._thread.wait_for(self._bursar.statistics(resource, most=most, find=find))

    def set_tenants(self, resource: str, tenants: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._thread.wait_for(self._bursar.set_tenants(resource, tenants))

    def tenants(self, resource: str) -> dict[str, Mapping[str, Any]]:
        return self._thread.wait_for(self._bursar.tenants(resource))

    def fleet(self) -> FleetTold:
        return self._thread.wait_for(self._bursar.fleet())

    def fallbacks(self, resource: str) -> Mapping[str, int]:
        return self._bursar.fallbacks(resource)

    def close(self) -> None:
        """Closing again does nothing."""
        if not self._thread._closed:
            try:
                self._thread.wait_for(self._bursar.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Bursar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._bursar)


def connect(
    target: str | os.PathLike[str] | Policy | client.Bursar,
    *,
    name: str | None = None,
    tls: Tls | None = None,
    token: str | None = None,
    timeout: float = client.CONNECT_TIMEOUT_S,
) -> Bursar:
    """As `bursar.connect`. Of a `bursar.Bursar` that has tasks, and is not connected yet, the calls can be
    submitted here; it is connected by this, with its own options."""
    thread = LoopThread()
    try:
        if isinstance(target, client.Bursar):
            return Bursar(thread.wait_for(target.connect()), thread)
        opening = client.connect(target, name=name, tls=tls, token=token, timeout=timeout)
        return Bursar(thread.wait_for(opening), thread)
    except BaseException:
        thread.stop()
        raise
