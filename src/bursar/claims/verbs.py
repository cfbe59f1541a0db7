"""What else can be done with claims: tasks, and names taken by force. The same here and at a daemon.

`Tasks` speaks of tasks; `offer` makes of it the verbs of the kind, whose arguments and answers are plain
values, so that they can be asked for over the wire:

    submit(tenant, names, payload, key, priority, deadline, parent, function, retries, backoff)   its id
    read(id)                      the task as it stands (see `records`), also when it is over, or None
    wait_for(id, timeout)         the task when it is over, or as it stands after so many seconds
    wait_for_some(ids, count, timeout)   which of them are over: once so many are, or after so many seconds
    wait_lost(id, timeout)        whether a claim's names were taken away, by then
    cancel(id, wait)              its outcome; or "asked", if it runs still after so many seconds
    tasks(tenant, ...)            every task that is not over
    history(tenant, ..., most)    tasks that are over, the latest first
    dead()                        every task that was given up: it failed, or whoever did it died, too often
    retry(id)                     have one of these tried again
    discard(id)                   forget one of these
    why(id)                       sentences on what it waits for, or who does it
    holders(of)                   the tasks that hold a name
    force_release(of)             ids of those it was taken from
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from functools import wraps
from hashlib import blake2b
from typing import Any

import msgspec

from bursar.claims.book import check_size
from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import new_id, scoped, task_id
from bursar.claims.lots import find_beyond
from bursar.claims.model import (
    BACKOFF_MAX_NS,
    FUNCTION_MAX,
    PAYLOAD_MAX_BYTES,
    RETRIES_MAX,
    State,
    Task,
    check_priority,
)
from bursar.claims.reader import READS_AT_ONCE
from bursar.claims.records import Records, check_id, check_most, describe, make_filter
from bursar.claims.requirements import Mode, Needs, parse_needs
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
from bursar.world import MILLISECOND_NS, SECOND_NS, Watch, World

DEADLINE_MAX_S = 10 * 365 * 86_400
ANSWER_NS = 10 * SECOND_NS
"""Shorter than a daemon's clients wait for the answer to a verb."""

WAIT_FOR_S = 1.0
"""Shorter than a daemon's clients wait for an answer: whoever waits longer asks again."""

WAITED_FOR_MAX = 1_000
FOLLOWED_MAX = 64
"""Of many tasks that are waited for: how many are watched at a time."""

TOGETHER_NS = 20 * MILLISECOND_NS
"""Ends that come so soon one after the other are told together."""

HISTORY_ROWS = 100


class Tasks:
    """Tasks of one resource, from its store, whoever looks after them."""

    def __init__(self, instance: Instance, policy: ClaimPolicy, strangers: Strangers | None = None) -> None:
        self._instance = instance
        self._clock = instance.world.clock
        self._policy = policy
        self.records = self._records = Records(instance, policy)
        self._strangers = strangers

    def reconfigure(self, policy: ClaimPolicy) -> None:
        self._policy = self._records.policy = policy

    async def submit(
        self,
        tenant: str,
        names: str | Iterable[str],
        *,
        payload: bytes = b"",
        key: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        parent: str | None = None,
        function: str = "",
        retries: int = 0,
        backoff: float = 0.0,
    ) -> str:
        """Put a task in the queue and return its id. The same key of the same tenant is the same task, also
        after it is over. `deadline`: seconds from now after which it is no longer to be begun. `function`:
        what is called, by which it is learned how long such tasks take. A task that fails is tried
        `retries` more times, the first after `backoff` seconds, each next after twice as long; then it is
        given up. `parent`: a task that runs, of whose names this one uses some while that waits for it.
        Raises Refused where it does not hold them."""
        check_name("tenant", tenant)
        check_tenant(self._policy, tenant, self._strangers)
        if not isinstance(payload, bytes) or len(payload) > PAYLOAD_MAX_BYTES:
            raise UsageError(f"payload is at most {PAYLOAD_MAX_BYTES} bytes: store the rest elsewhere")
        if key is not None:
            check_name("key", key)
        now = self._clock.wall()
        needs = parse_needs(names, paths=self._policy.paths, counted=self._policy.counted)
        task = new_task(
            id=task_id(tenant, key) if key is not None else new_id("t", self._instance.world.random),
            tenant=tenant,
            needs=needs.names,
            counts=needs.counts,
            payload=payload,
            priority=check_priority(priority),
            submitted=now,
            deadline=0 if deadline is None else now + _check_seconds("deadline", deadline, DEADLINE_MAX_S),
            kept=True,
            function=_check_function(function),
            content=_digest(needs, payload) if key is not None else "",
            retries=_check_retries(retries),
            backoff=_check_seconds("backoff", backoff, BACKOFF_MAX_NS / SECOND_NS),
        )
        if parent is not None:
            task = await self._inherit(task, parent)
        check_size(task, self._instance.layout, self._instance.world.store.operations_max)
        if why := find_beyond(task, self._policy.counted):
            raise Refused(why, reason="amount")
        found = await self._instance.submit(task)
        if found.content != task.content:
            raise UsageError(f"key {key!r} is in use for other work: give each task a key of its own")
        return found.id

    async def _inherit(self, task: Task, id: str) -> Task:
        """As a part of another one: it needs nothing that its parent does not hold, so that who waits for its
        subtasks waits for nobody else."""
        found = await self._instance.reader.read_task(check_id(id))
        if found is None or found[0].state is not State.RUNNING:
            raise Refused(f"{id} does not run, so it cannot have subtasks")
        parent = found[0]
        if parent.parent or parent.is_claim or task.counts:
            raise UsageError("a subtask has names of a task that is no subtask itself, and no counted ones")
        held = dict(parent.needs)
        for name, mode in task.needs:
            if name not in held or (mode == Mode.EXCLUSIVE and held[name] != Mode.EXCLUSIVE):
                raise Refused(f"{id} does not hold {name}:{mode}: let it ask for more before it has subtasks")
        names = tuple(sorted((scoped(name, id), mode) for name, mode in task.needs))
        return msgspec.structs.replace(task, needs=names, inherited=task.needs, parent=id)

    async def read(self, id: str) -> dict[str, Any] | None:
        """A task as it stands, also when it is over; None for one that is not known (any more)."""
        task = await self._records.find(id)
        return None if task is None else (await self._records.tell([task]))[0]

    # Waiting

    async def wait_for(self, id: str, timeout: float = WAIT_FOR_S) -> Task:
        """The task when it is over, or as it stands after `timeout` seconds. Watches this one task.
        Raises Refused for an unknown id."""
        until_ns = self._clock.now() + _check_seconds("timeout", timeout, WAIT_MAX_S)
        while True:
            try:
                watch = await self._instance.world.store.watch(self._instance.layout.task(check_id(id)))
                try:
                    task = await self._records.get(id)
                    if task.state is State.RELEASED or self._clock.now() >= until_ns:
                        return task
                    await self._await_change([watch], until_ns)
                finally:
                    watch.close()
            except SessionExpiredError:
                await self._clock.sleep(SECOND_NS // 10)

    async def wait_for_some(
        self, ids: Iterable[str], count: int | None = None, timeout: float = WAIT_FOR_S
    ) -> list[dict[str, Any]]:
        """Those that are over, without their results: as soon as `count` of them are (else all), or after
        `timeout` seconds. What is not known (any more) is over."""
        wanted = list(dict.fromkeys(map(check_id, ids)))
        if len(wanted) > WAITED_FOR_MAX:
            raise UsageError(f"at most {WAITED_FOR_MAX} tasks are waited for in one call, not {len(wanted)}")
        needed = len(wanted) if count is None else min(_check_count(count), len(wanted))
        until_ns = self._clock.now() + _check_seconds("timeout", timeout, WAIT_MAX_S)
        over: dict[str, dict[str, Any]] = {}
        while True:
            pending = [id for id in wanted if id not in over]
            watches = await self._watch_all(pending[:FOLLOWED_MAX])
            try:
                over.update(await self._find_over(pending))
                if len(over) >= needed or self._clock.now() >= until_ns:
                    return [over[id] for id in wanted if id in over]
                await self._await_change(watches, until_ns)
                await self._clock.sleep(TOGETHER_NS)
            finally:
                for watch in watches:
                    watch.close()

    async def _watch_all(self, ids: list[str]) -> list[Watch]:
        store, layout = self._instance.world.store, self._instance.layout
        return list(await asyncio.gather(*(store.watch(layout.task(id)) for id in ids)))

    async def _find_over(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        over = {}
        for first in range(0, len(ids), READS_AT_ONCE):
            part = ids[first : first + READS_AT_ONCE]
            for id, task in zip(part, await asyncio.gather(*map(self._records.find, part)), strict=True):
                if task is None or task.state is State.RELEASED:
                    outcome = None if task is None else task.outcome
                    over[id] = {"id": id, "tenant": "" if task is None else task.tenant, "outcome": outcome}
        return over

    async def wait_lost(self, id: str, timeout: float = WAIT_FOR_S) -> bool:
        """Whether the names of a claim are its own no longer: taken by force, or released."""
        until_ns = self._clock.now() + _check_seconds("timeout", timeout, WAIT_MAX_S)
        while True:
            watch = await self._instance.world.store.watch(self._instance.layout.task(check_id(id)))
            try:
                found = await self._instance.reader.read_task(id)
                if found is None or found[0].state is not State.RUNNING:
                    return True
                if self._clock.now() >= until_ns:
                    return False
                await self._await_change([watch], until_ns)
            finally:
                watch.close()

    async def _await_change(self, watches: list[Watch], until_ns: int) -> None:
        """Of one of them, or until then."""
        changed, spawn = asyncio.Event(), self._instance.world.spawn
        working = [spawn(self._ring(watch, changed), "claims.wait_for") for watch in watches]
        working.append(spawn(self._ring_at(until_ns, changed), "claims.wait_for"))
        try:
            await changed.wait()
        finally:
            for each in working:
                each.cancel()

    async def _ring(self, watch: Watch, changed: asyncio.Event) -> None:
        try:
            await watch.changed()
        except SessionExpiredError:
            pass  # whoever waits looks again
        changed.set()

    async def _ring_at(self, at_ns: int, changed: asyncio.Event) -> None:
        await self._clock.sleep(at_ns - self._clock.now())
        changed.set()

    # Cancelling

    async def cancel(self, id: str, wait: float = 0.0) -> str:
        """Withdraw a task that waits; ask one that runs to stop. Its outcome, which is another one than
        "cancelled" for what was over before; "asked" if it has not stopped after `wait` seconds. It is not
        begun again then. Raises Refused for a claim that is held, or what is not known."""
        wait_ns = _check_seconds("wait", wait, WAIT_MAX_S)
        task = await self._records.get(id)
        if task.state is not State.RELEASED and await self._instance.withdraw_stored(id, "cancelled"):
            task = await self._records.find(id) or task
            return task.outcome or "cancelled"
        if task.state is not State.RELEASED and task.is_claim:
            raise Refused(f"{id} is held already: `bursar claims release` takes its names by force")
        if task.state is not State.RELEASED:
            await self._instance.cancels.ask(id)
            task = await self.wait_for(id, wait_ns / SECOND_NS)
        if task.state is not State.RELEASED:
            return "asked"
        await self._instance.cancels.end(id)
        return task.outcome or "ok"

    # Seen

    async def tasks(
        self,
        tenant: str | None = None,
        state: str | None = None,
        of: str | None = None,
        function: str | None = None,
    ) -> list[dict[str, Any]]:
        """Every task that is not over, first come first; those that are all of what is given. `of`: a
        name that they need."""
        is_wanted = make_filter(tenant, state, None, of, function)
        found = [record.task for record in await self._records.waiting_and_running()]
        return await self._records.tell([task for task in found if is_wanted(task)])

    async def history(
        self,
        tenant: str | None = None,
        outcome: str | None = None,
        of: str | None = None,
        function: str | None = None,
        most: int = HISTORY_ROWS,
    ) -> list[dict[str, Any]]:
        """Tasks that are over, the latest first; those that are all of what is given. `of`: as above."""
        found = await self._records.over(make_filter(tenant, None, outcome, of, function))
        return [describe(task) for task in found[: check_most(most)]]

    async def dead(self) -> list[Task]:
        """Every task that was given up, because it failed, or whoever did it died, too often."""
        return await self._records.dead()

    async def why(self, id: str) -> list[str]:
        """What a task waits for, or who does it."""
        return await self._records.why(id)

    async def holders(self, of: str) -> list[dict[str, Any]]:
        """Who holds a name now, from the store."""
        return await self._records.tell(await self._records.holders(of))

    # By hand

    async def retry(self, id: str) -> None:
        """Have a task that was given up tried again, as often as any. Raises Refused for another one."""
        found = await self._find_dead(id)
        try:
            await self._instance.world.store.transact(self._instance.book.plans.revive(*found))
        except (NodeMissingError, VersionError):
            raise Refused(f"{id} is tried again already") from None

    async def discard(self, id: str) -> None:
        """Forget a task that was given up. Raises Refused for another one."""
        _, version = await self._find_dead(id)
        try:
            await self._instance.world.store.delete(self._instance.layout.dead(id), version)
        except (NodeMissingError, VersionError):
            raise Refused(f"{id} is tried again already, or was discarded") from None

    async def _find_dead(self, id: str) -> tuple[Task, int]:
        found = await self._instance.reader.read_dead(check_id(id))
        if found is None:
            raise Refused(f"{id} is not among the tasks that were given up: `bursar tasks dead` lists them")
        return found

    async def force_release(self, of: str, by: str = audit.HERE) -> list[str]:
        """Take a name from everybody who holds it; with it they lose all that they hold. `by`: who does
        it, for the audit."""
        store, removed = self._instance.world.store, []
        await store.ensure(AUDIT)
        for task in await self._records.holders(of):
            what = f"{of} from {task.id} of {task.tenant}"[: audit.DETAIL_MAX]
            line = audit.record(by, self._clock.wall(), "release", self._policy.name, what)
            if await self._instance.remove_holder(task.id, also=[line]):
                removed.append(task.id)
        await audit.trim(store)
        return removed


def offer(tasks: Tasks, world: World) -> Mapping[str, Verb]:
    """The verbs of the kind. Each is answered within ten seconds, beside what it was told to wait."""
    names = (
        "submit",
        "read",
        "wait_for",
        "wait_for_some",
        "wait_lost",
        "cancel",
        "tasks",
        "history",
        "dead",
        "retry",
        "discard",
        "why",
        "holders",
        "force_release",
    )
    return {name: _make_plain(name, getattr(tasks, name), world) for name in names}


def _make_plain(name: str, verb: Verb, world: World) -> Verb:
    @wraps(verb)
    async def act(**arguments: Any) -> Any:
        waits = arguments.get("timeout", arguments.get("wait", 0))
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


def _digest(needs: Needs, payload: bytes) -> str:
    """Of what a task is to do, so that it need not be kept when it is over."""
    counts = "".join(f"{len(name)}:{name}:{units}" for name, units in needs.counts)
    names = ("".join(f"{len(each.name)}:{each}" for each in needs.names) + counts).encode()
    return blake2b(b"%d:%b%b" % (len(names), names, payload), digest_size=16).hexdigest()


def _check_function(name: object) -> str:
    if not isinstance(name, str) or len(name) > FUNCTION_MAX:
        raise UsageError(f"function is a name of at most {FUNCTION_MAX} characters")
    return name


def _check_retries(retries: object) -> int:
    if not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
        raise UsageError(f"retries is a number from 0 to {RETRIES_MAX}, not {retries!r}")
    return retries


def _check_count(count: object) -> int:
    if not isinstance(count, int) or count < 1:
        raise UsageError(f"count is a number of tasks, at least 1, not {count!r}")
    return count


def _check_seconds(what: str, seconds: object, most: float) -> int:
    """The seconds in nanoseconds."""
    if not isinstance(seconds, int | float) or not 0 <= seconds <= most:
        raise UsageError(f"{what} is a number of seconds from 0 to {most:.0f}, not {seconds!r}")
    return int(seconds * SECOND_NS)
