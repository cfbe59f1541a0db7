"""The resource of kind `claim` that users acquire from: names, held by the code that asked, and tasks,
which run when they are granted.

    async with resource.claim(("vm-7:E", "host-1:S"), "ops", wait=30) as grant:
        database.write(..., fence=grant.fence["vm-7"])

    await resource.submit("ops", "vm-7:E", payload=b"...", key="resize-42")
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import task_id
from bursar.claims.model import PAYLOAD_MAX_BYTES, PRIORITY_MAX, PRIORITY_MIN, Outcome, State, Task
from bursar.claims.queue import Order, conflict_order
from bursar.claims.requirements import Requirements, parse
from bursar.claims.tracker import Tracker
from bursar.errors import Refused, SessionExpiredError, UsageError
from bursar.policy.values import ClaimPolicy
from bursar.resource import WAIT_MAX_S, Acquisition, Explanation, Grant, Resource, check_name
from bursar.world import SECOND_NS, World


def open_resource(
    world: World,
    name: str,
    policy: ClaimPolicy,
    *,
    tracker: Tracker | None = None,
    order: Order = conflict_order,
) -> ClaimResource:
    """The resource of that policy on this node, not started yet."""
    return ClaimResource(world, name, policy, tracker=tracker, order=order)


class ClaimAcquisition(Acquisition):
    """What `claim` returns: await it for a grant that you release, or use it in `async with`."""

    __slots__ = ("_claims", "_needs", "_priority")

    def __init__(
        self,
        resource: ClaimResource,
        needs: Requirements,
        tenant: str,
        wait_ns: int,
        key: str | None,
        priority: int,
    ) -> None:
        super().__init__(resource, tenant, len(needs), wait_ns, key)
        self._claims = resource
        self._needs = needs
        self._priority = priority

    def __await__(self) -> Generator[Any, None, Grant]:
        taking = self._claims.take_names(self._needs, self._tenant, self._wait_ns, self._key, self._priority)
        return taking.__await__()


class ClaimResource(Resource):
    """Implements `bursar.resource.Resource`; `acquire` without names claims the resource as a whole,
    under its own name, exclusively."""

    kind = "claim"

    def __init__(
        self, world: World, name: str, policy: ClaimPolicy, *, tracker: Tracker | None, order: Order
    ) -> None:
        super().__init__(name)
        self._world = world
        self._policy = policy
        self.instance = Instance(
            world,
            name,
            dead_holder=policy.dead_holder,
            aging_ns=policy.aging_ns,
            weights={tenant: terms.weight for tenant, terms in policy.tenants.items()},
            tracker=tracker,
            order=order,
        )

    async def start(self) -> None:
        await self.instance.start()

    async def stop(self) -> None:
        await self.instance.stop()

    # Claims

    def claim(
        self,
        names: Iterable[str],
        tenant: str,
        *,
        wait: float = 0.0,
        key: str | None = None,
        priority: int = 0,
    ) -> ClaimAcquisition:
        """Claim names, all or none, waiting at most `wait` seconds."""
        check_name("tenant", tenant)
        if not 0 <= wait <= WAIT_MAX_S:
            raise UsageError(f"wait is a number of seconds from 0 to {WAIT_MAX_S:.0f}, not {wait!r}")
        if key is not None:
            check_name("key", key)
        needs = parse(names, paths=self._policy.paths)
        return ClaimAcquisition(self, needs, tenant, int(wait * SECOND_NS), key, check_priority(priority))

    async def take_names(
        self, needs: Requirements, tenant: str, wait_ns: int, key: str | None, priority: int = 0
    ) -> Grant:
        task = new_task(
            id=task_id(key, is_claim=True) if key is not None else self._new_id("c"),
            tenant=tenant,
            needs=needs,
            priority=priority,
            submitted=self._world.clock.wall(),
            is_claim=True,
        )
        granted = await self.instance.claim(task, wait_ns)
        return Grant(self, tenant, len(needs), fence=self.instance.fences_of(granted), data=granted.id)

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        return await self.take_names(parse(self.name), tenant, wait_ns, key)

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """Nothing is held here ahead of time: a claim always asks the store."""
        return None

    async def _give_back(self, grant: Grant) -> None:
        await self.instance.release(str(grant.data))

    async def lost(self, grant: Grant) -> None:
        """The client that held it is gone: as the policy says of dead holders."""
        if self._policy.dead_holder != "keep":
            await self.instance.remove_holder(str(grant.data))

    def is_held(self, grant: Grant) -> bool:
        """Whether the grant is surely still held now: its session is trusted. The guard decides; this
        only saves the work that it would refuse."""
        mine = self.instance.mine.get(str(grant.data))
        trusted = self._world.store.trusted_until() > self._world.clock.now()
        return trusted and mine is not None and mine.task.state is State.RUNNING

    # Tasks

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
        if not isinstance(payload, bytes) or len(payload) > PAYLOAD_MAX_BYTES:
            raise UsageError(f"payload is at most {PAYLOAD_MAX_BYTES} bytes: store the rest elsewhere")
        now = self._world.clock.wall()
        task = new_task(
            id=task_id(key, is_claim=False) if key is not None else self._new_id("t"),
            tenant=tenant,
            needs=parse(names, paths=self._policy.paths),
            payload=payload,
            priority=check_priority(priority),
            submitted=now,
            deadline=0 if deadline is None else now + int(deadline * SECOND_NS),
            kept=True,
        )
        found = await self.instance.submit(task)
        return found.id

    async def read(self, id: str) -> Task | None:
        """A task as it stands, also when it is over; None for one that is not known (any more)."""
        found = await self.instance.desk.read_task(id)
        return found[0] if found is not None else await self.instance.desk.read_released(id)

    async def wait_for(self, id: str) -> Task:
        """Return the task when it is over. Watches this one task. Raises Refused for an unknown id."""
        store, path = self._world.store, self.instance.layout.task(id)
        while True:
            try:
                watch = await store.watch(path)
                task = await self.read(id)
                if task is None:
                    raise Refused(f"there is no task {id}, or it was over long ago")
                if task.state is State.RELEASED:
                    watch.close()
                    return task
                await watch.changed()
                watch.close()
            except SessionExpiredError:
                await self._world.clock.sleep(SECOND_NS // 10)

    async def cancel(self, id: str) -> Outcome:
        """Withdraw a task that waits. Raises Refused for one that runs or is not known."""
        task = await self.read(id)
        if task is None:
            raise Refused(f"there is no task {id}")
        if task.state is State.RELEASED:
            return task.outcome or "ok"
        if not await self.instance._withdraw_stored(id, "cancelled"):
            raise Refused(f"{id} runs already: `bursar claims release` takes its names by force")
        return "cancelled"

    async def holders(self, name: str) -> list[Task]:
        """Who holds a name now, from the store."""
        (view,) = (await self.instance.desk.read_names([name])).values()
        ids = [view.holding.owner] if view.holding.owner else list(view.sharers)
        found = [await self.instance.desk.read_task(id) for id in ids]
        return [task for pair in found if pair is not None for task in pair[:1]]

    async def force_release(self, name: str) -> list[str]:
        """Take a name from everybody who holds it; with it they lose all that they hold."""
        removed = []
        for task in await self.holders(name):
            if await self.instance.remove_holder(task.id):
                removed.append(task.id)
        return removed

    async def tasks(self) -> list[Task]:
        """Every task that is not over."""
        desk, layout, store = self.instance.desk, self.instance.layout, self._world.store
        found = []
        for shard in await store.children(f"{layout.root}/tasks"):
            for id in await store.children(f"{layout.root}/tasks/{shard}"):
                pair = await desk.read_task(id)
                if pair is not None:
                    found.append(pair[0])
        return sorted(found, key=lambda task: (task.submitted, task.id))

    async def why(self, id: str) -> list[str]:
        """What a task waits for: who holds each name that it needs, and its place. From the store,
        whoever looks after it."""
        task = await self.read(id)
        if task is None:
            raise Refused(f"there is no task {id}")
        if task.state is not State.PENDING:
            return [f"{id} is {task.state}" + (f" ({task.outcome})" if task.outcome else "")]
        lines = []
        views = await self.instance.desk.read_names(name for name, _ in task.needs)
        for name, mode in task.needs:
            view = views[name]
            if view.holding.owner:
                lines.append(f"{name}:{mode} waits for {view.holding.owner}, which holds it exclusively")
            elif mode == "E" and view.sharers:
                lines.append(f"{name}:{mode} waits for {', '.join(list(view.sharers)[:5])}, who share it")
            elif view.holding.reserved not in ("", id):
                lines.append(f"{name}:{mode} is reserved for {view.holding.reserved}, which waited too long")
        before = [
            other
            for other in await self.tasks()
            if other.state is State.PENDING
            and (-other.priority, other.submitted, other.id) < (-task.priority, task.submitted, task.id)
        ]
        lines.append(f"{len(before)} tasks wait that came before it, of any names")
        return lines

    def explain(self, tenant: str) -> Explanation:
        waiting = [entry for entry in self.instance.queue.entries.values() if entry.tenant == tenant]
        tasks = [mine.task for mine in self.instance.mine.values() if mine.task.tenant == tenant]
        held = [task for task in tasks if task.state is State.RUNNING]
        sentences = [f"{tenant} holds {len(held)} claims here and waits for {len(waiting)}."]
        sentences += [f"{entry.id}: {self.instance.why(entry.id)}." for entry in waiting[:5]]
        return Explanation(
            resource=self.name,
            kind=self.kind,
            tenant=tenant,
            sentences=tuple(sentences),
            figures={"held": len(held), "waiting": len(waiting)},
        )

    def statistics(self) -> Mapping[str, Any]:
        instance = self.instance
        return {
            "waiting": len(instance.queue.entries),
            "held": sum(1 for mine in instance.mine.values() if mine.task.state is State.RUNNING),
            "instances": instance._others + 1,
            "problem": instance.problem,
            **instance.counts,
            "holders": {
                id: {"tenant": mine.task.tenant, "names": _write_needs(mine.task)}
                for id, mine in list(instance.mine.items())[:LISTED_MAX]
                if mine.task.state is State.RUNNING
            },
            "queue": {
                id: {"tenant": mine.task.tenant, "names": _write_needs(mine.task), "why": instance.why(id)}
                for id in list(instance.queue.entries)[:LISTED_MAX]
                if (mine := instance.mine.get(id)) is not None
            },
        }

    def _new_id(self, kind: str) -> str:
        random = self._world.random
        return f"{kind}{random.randrange(0, 2**63):016x}{random.randrange(0, 2**31):08x}"


LISTED_MAX = 100
"""Holders, and tasks that wait, listed one by one in the statistics."""


def _write_needs(task: Task) -> str:
    return ", ".join(f"{name}:{mode}" for name, mode in task.needs)


def check_priority(priority: object) -> int:
    if not isinstance(priority, int) or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise UsageError(f"priority is a number from {PRIORITY_MIN} to {PRIORITY_MAX}, not {priority!r}")
    return priority
