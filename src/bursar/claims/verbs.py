"""What else can be done with claims: tasks, and names taken by force. The same here and at a daemon.

`Tasks` speaks of tasks; `offer` makes of it the verbs of the kind, whose arguments and answers are plain
values, so that they can be asked for over the wire:

    submit(tenant, names, payload, key, priority, deadline)   the id of the task
    read(id)                      the task as it stands (see `describe`), also when it is over, or None
    wait_for(id, timeout)         the task when it is over, or as it stands after so many seconds
    cancel(id)                    its outcome, once it waits no more
    tasks()                       every task that is not over
    dead()                        every task that was given up: whoever did it died too often
    retry(id)                     have one of these tried again
    why(id)                       sentences on what it waits for
    holders(of)                   the tasks that hold a name
    force_release(of)             ids of those it was taken from
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from bursar.claims.book import check_size
from bursar.claims.courier import Instance, new_task
from bursar.claims.desk import READS_AT_ONCE, Record
from bursar.claims.layout import new_id, task_id
from bursar.claims.model import PAYLOAD_MAX_BYTES, Outcome, State, Task, check_priority
from bursar.claims.requirements import check_claim_name, parse
from bursar.errors import (
    NodeMissingError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
    UsageError,
    VersionError,
)
from bursar.fleet import audit
from bursar.fleet.layout import AUDIT
from bursar.policy.values import ClaimPolicy
from bursar.resource import WAIT_MAX_S, Strangers, check_name, check_tenant
from bursar.resource.decider import Verb
from bursar.world import SECOND_NS, Watch, World

DEADLINE_MAX_S = 10 * 365 * 86_400
ANSWER_NS = 10 * SECOND_NS
"""Shorter than a daemon's clients wait for the answer to a verb."""

WAIT_FOR_S = 1.0
"""Shorter than a daemon's clients wait for an answer: whoever waits longer asks again."""


class Tasks:
    """Tasks of one resource, from its store, whoever looks after them."""

    def __init__(self, instance: Instance, policy: ClaimPolicy, strangers: Strangers | None = None) -> None:
        self._instance = instance
        self._clock = instance.world.clock
        self.policy = policy
        self._strangers = strangers

    async def submit(
        self,
        tenant: str,
        names: str | Iterable[str],
        *,
        payload: bytes = b"",
        key: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> str:
        """Put a task in the queue and return its id. The same key is the same task, also after it is
        over. `deadline`: seconds from now after which it is no longer to be begun."""
        check_name("tenant", tenant)
        check_tenant(self.policy, tenant, self._strangers)
        if not isinstance(payload, bytes) or len(payload) > PAYLOAD_MAX_BYTES:
            raise UsageError(f"payload is at most {PAYLOAD_MAX_BYTES} bytes: store the rest elsewhere")
        if key is not None:
            check_name("key", key)
        now = self._clock.wall()
        task = new_task(
            id=task_id(key) if key is not None else new_id("t", self._instance.world.random),
            tenant=tenant,
            needs=parse(names, paths=self.policy.paths),
            payload=payload,
            priority=check_priority(priority),
            submitted=now,
            deadline=0 if deadline is None else now + _check_seconds("deadline", deadline, DEADLINE_MAX_S),
            kept=True,
        )
        check_size(task, self._instance.layout)
        found = await self._instance.submit(task)
        if (found.tenant, found.needs, found.payload) != (task.tenant, task.needs, task.payload):
            whose = "other work" if found.tenant == tenant else "another tenant's task"
            raise UsageError(f"key {key!r} is in use for {whose}: give each task a key of its own")
        return found.id

    async def read(self, id: str) -> Task | None:
        """A task as it stands, also when it is over; None for one that is not known (any more)."""
        _check_id(id)
        found = await self._instance.desk.read_task(id)
        return found[0] if found is not None else await self._instance.desk.read_released(id)

    async def wait_for(self, id: str, timeout: float = WAIT_FOR_S) -> Task:
        """The task when it is over, or as it stands after `timeout` seconds. Watches this one task.
        Raises Refused for an unknown id."""
        until_ns = self._clock.now() + _check_seconds("timeout", timeout, WAIT_MAX_S)
        while True:
            try:
                watch = await self._instance.world.store.watch(self._instance.layout.task(_check_id(id)))
                try:
                    task = await self._find(id)
                    if task.state is State.RELEASED or self._clock.now() >= until_ns:
                        return task
                    await self._await_change(watch, until_ns)
                finally:
                    watch.close()
            except SessionExpiredError:
                await self._clock.sleep(SECOND_NS // 10)

    async def _await_change(self, watch: Watch, until_ns: int) -> None:
        timer = self._instance.world.spawn(self._close(watch, until_ns), "claims.wait_for")
        try:
            await watch.changed()
        finally:
            timer.cancel()

    async def _close(self, watch: Watch, at_ns: int) -> None:
        await self._clock.sleep(at_ns - self._clock.now())
        watch.close()

    async def _find(self, id: str) -> Task:
        task = await self.read(id)
        if task is None:
            raise Refused(f"there is no task {id}, or it was over long ago")
        return task

    async def cancel(self, id: str) -> Outcome:
        """Withdraw a task that waits. Raises Refused for one that runs or is not known."""
        task = await self._find(id)
        if task.state is State.RELEASED:
            return task.outcome or "ok"
        if not await self._instance.withdraw_stored(id, "cancelled"):
            raise Refused(f"{id} runs already: `bursar claims release` takes its names by force")
        return "cancelled"

    async def holders(self, of: str) -> list[Task]:
        """Who holds a name now, from the store."""
        check_name("of", of)
        check_claim_name(of)
        desk = self._instance.desk
        (view,) = (await desk.read_names([of])).values()
        ids = [view.holding.owner] if view.holding.owner else list(view.sharers)
        found = [await desk.read_task(id) for id in ids]
        return [pair[0] for pair in found if pair is not None]

    async def force_release(self, of: str, by: str = audit.HERE) -> list[str]:
        """Take a name from everybody who holds it; with it they lose all that they hold. `by`: who does
        it, for the audit."""
        store, removed = self._instance.world.store, []
        await store.ensure(AUDIT)
        for task in await self.holders(of):
            what = f"{of} from {task.id} of {task.tenant}"[: audit.DETAIL_MAX]
            line = audit.record(by, self._clock.wall(), "release", self.policy.name, what)
            if await self._instance.remove_holder(task.id, also=[line]):
                removed.append(task.id)
        await audit.trim(store)
        return removed

    async def tasks(self) -> list[Task]:
        """Every task that is not over."""
        return [record.task for record in await self._list()]

    async def _list(self) -> list[Record]:
        """In the order in which the store took them in."""
        desk, layout, store = self._instance.desk, self._instance.layout, self._instance.world.store
        found: list[Record | None] = []
        for shard in layout.task_shards:
            ids = await store.children(f"{layout.root}/tasks/{shard}")
            for first in range(0, len(ids), READS_AT_ONCE):
                part = ids[first : first + READS_AT_ONCE]
                found += await asyncio.gather(*(desk.read_record(id) for id in part))
        return sorted((each for each in found if each is not None), key=lambda each: each.created)

    async def dead(self) -> list[Task]:
        """Every task that was given up, because whoever did it died as often as the policy allows."""
        desk, layout, store = self._instance.desk, self._instance.layout, self._instance.world.store
        ids = [
            id for shard in layout.task_shards for id in await store.children(f"{layout.root}/dead/{shard}")
        ]
        found = [await desk.read_dead(id) for id in ids]
        return sorted((pair[0] for pair in found if pair is not None), key=lambda task: (task.ended, task.id))

    async def retry(self, id: str) -> None:
        """Have a task that was given up tried again, as often as any. Raises Refused for another one."""
        found = await self._instance.desk.read_dead(_check_id(id))
        if found is None:
            raise Refused(f"{id} is not among the tasks that were given up: `bursar tasks dead` lists them")
        try:
            await self._instance.world.store.transact(self._instance.book.revive(*found))
        except (NodeMissingError, VersionError):
            raise Refused(f"{id} is tried again already") from None

    async def why(self, id: str) -> list[str]:
        """What a task waits for: who holds each name that it needs, and its place."""
        task = await self._find(id)
        if task.state is not State.PENDING:
            return [f"{id} is {task.state}" + (f" ({task.outcome})" if task.outcome else "")]
        lines = []
        views = await self._instance.desk.read_names(name for name, _ in task.needs)
        for name, mode in task.needs:
            view = views[name]
            if view.holding.owner:
                lines.append(f"{name}:{mode} waits for {view.holding.owner}, which holds it exclusively")
            elif mode == "E" and view.sharers:
                lines.append(f"{name}:{mode} waits for {', '.join(list(view.sharers)[:5])}, who share it")
            elif view.holding.reserved not in ("", id):
                lines.append(f"{name}:{mode} is reserved for {view.holding.reserved}, which waited too long")
        waiting = [record for record in await self._list() if record.task.state is State.PENDING]
        place = {each.task.id: (-each.task.priority, each.created) for each in waiting}
        before = [other for other in place if place[other] < place.get(id, (0, 0))]
        lines.append(f"{len(before)} tasks wait that came before it, of any names")
        return lines


def describe(task: Task) -> dict[str, Any]:
    """A task in plain values."""
    return {
        "id": task.id,
        "tenant": task.tenant,
        "state": str(task.state),
        "outcome": task.outcome,
        "needs": [f"{name}:{mode}" for name, mode in task.needs],
        "priority": task.priority,
        "attempt": task.attempt,
        "holder": task.holder,
        "claim": task.is_claim,
        "result": task.result,
    }


def offer(tasks: Tasks, world: World) -> Mapping[str, Verb]:
    """The verbs of the kind. Each is answered within ten seconds, beside what it was told to wait."""
    names = (
        "submit",
        "read",
        "wait_for",
        "cancel",
        "tasks",
        "dead",
        "retry",
        "why",
        "holders",
        "force_release",
    )
    return {name: _make_plain(name, getattr(tasks, name), world) for name in names}


def _make_plain(name: str, verb: Verb, world: World) -> Verb:
    """Arguments come over the wire, so that wrong ones are the caller's mistake and not a fault here."""
    signature = inspect.signature(verb)

    async def act(**arguments: Any) -> Any:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise UsageError(f"{name}{signature}: {error}") from error
        waits = arguments.get("timeout", 0)
        limit_ns = ANSWER_NS + (int(waits * SECOND_NS) if isinstance(waits, int | float) else 0)
        try:
            return _describe_all(await _answer_within(world, verb(**arguments), limit_ns))
        except (StoreUnknownError, SessionExpiredError) as error:
            raise Unknown(f"{name}: {error}") from error
        except TimeoutError:
            then = "submit it again with the same key" if arguments.get("key") else "look what is there"
            remedy = f"whether it was submitted is not known: {then}" if name == "submit" else "ask again"
            raise Unknown(f"{name}: the store does not answer; {remedy}") from None

    return act


async def _answer_within(world: World, work: Awaitable[Any], limit_ns: int) -> Any:
    """Raises TimeoutError, and the work is given up."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    working = world.spawn(_work(work, answer), "claims.verb")
    timer = world.spawn(_run_out(world, limit_ns, answer), "claims.verb")
    try:
        return await answer
    finally:
        working.cancel()
        timer.cancel()


async def _work(work: Awaitable[Any], answer: asyncio.Future[Any]) -> None:
    try:
        result = await work
    except Exception as error:  # noqa: BLE001  whoever asked is told
        if not answer.done():
            answer.set_exception(error)
        return
    if not answer.done():
        answer.set_result(result)


async def _run_out(world: World, limit_ns: int, answer: asyncio.Future[Any]) -> None:
    await world.clock.sleep(limit_ns)
    if not answer.done():
        answer.set_exception(TimeoutError())


def _describe_all(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_describe_all(item) for item in answer]
    return describe(answer) if isinstance(answer, Task) else answer


def _check_id(id: object) -> str:
    check_name("id", id)
    assert isinstance(id, str), "checked"
    if "/" in id:
        raise UsageError(f"{id[:60]!r} is no task's id")
    return id


def _check_seconds(what: str, seconds: object, most: float) -> int:
    """The seconds in nanoseconds."""
    if not isinstance(seconds, int | float) or not 0 <= seconds <= most:
        raise UsageError(f"{what} is a number of seconds from 0 to {most:.0f}, not {seconds!r}")
    return int(seconds * SECOND_NS)
