"""What the kind `claim` offers the front door: names, held by the code that asked, and tasks, which run
when they are granted.

    async with resource.claim(("vm-7:E", "host-1:S"), "ops", wait=30) as grant:
        database.write(..., fence=grant.fence["vm-7"])

    await resource.verb("submit", tenant="ops", names="vm-7:E", payload=b"...", key="resize-42")
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from bursar.claims.acquisitions import PATIENCE_NS
from bursar.claims.book import check_size
from bursar.claims.courier import Instance, new_task
from bursar.claims.fences import SHADOW_FENCE
from bursar.claims.holding import Held
from bursar.claims.layout import digest, new_id
from bursar.claims.lots import find_beyond
from bursar.claims.model import State, check_priority
from bursar.claims.queue import Order, conflict_order, learned_order
from bursar.claims.records import check_id
from bursar.claims.requirements import Needs, parse_needs
from bursar.claims.seen import Seen
from bursar.claims.statistics import ClaimStatistics, count
from bursar.claims.tracker import Tracker
from bursar.claims.verbs import Tasks, offer
from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.live import LIVE
from bursar.policy.values import ClaimPolicy
from bursar.resource import Decider, Explanation, Granted, Offers, Strangers, Ticket, check_change
from bursar.resource.door import Resource
from bursar.world import SECOND_NS, World

ORDERS: Mapping[str, Order] = {"conflicts": conflict_order, "learned": learned_order}
FORGET_NS = 5 * SECOND_NS


def open_resource(world: World, name: str, policy: ClaimPolicy, **options: Any) -> Resource:
    """The resource of that policy on this node, not started yet; `options` as of `ClaimDecider`."""
    return Resource(world, ClaimDecider(world, name, policy, **options), policy)


class ClaimDecider(Decider):
    """A ticket's names are what is claimed; without names it is the resource as a whole, under its own
    name, exclusively. What is granted is a number of names, each with its fence.

    The same `key` is one acquisition in the whole resource, at any of its nodes, for as long as it waits
    or is held, also over restarts: a repeat gets the names that are held, with the same fence, and with
    other names or as another tenant is a UsageError. Once it is released the key is free again.

    `options` go to the instance (see `Ground`)."""

    kind = "claim"
    strangers: Strangers
    offers = Offers(keys=True, names=True)

    def __init__(
        self,
        world: World,
        name: str,
        policy: ClaimPolicy,
        *,
        tracker: Tracker | None = None,
        order: Order | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self._world = world
        self._policy = policy
        self.instance = Instance(
            world,
            name,
            dead_holder=policy.dead_holder,
            aging_ns=policy.aging_ns,
            attempts_max=policy.attempts,
            weight_of=self._find_weight,
            tracker=tracker,
            order=order or ORDERS[policy.order],
            counted=policy.counted,
            paths=policy.paths,
            **options,
        )
        self._remember(policy)
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        self.tasks = Tasks(self.instance, policy, self.strangers)
        self._seen = Seen(self.instance, self.tasks.records)
        self.verbs = offer(self.tasks, world)

    async def start(self) -> None:
        await self.instance.start()
        self.instance.spawn(self._forget_idle(), "tenants")

    async def stop(self) -> None:
        await self.instance.stop()

    async def reconfigure(self, policy: ClaimPolicy) -> None:
        check_change(self._policy, policy, LIVE["claim"])
        self._policy = policy
        self.tasks.reconfigure(policy)
        self.strangers.part(policy.tenants)
        self.instance.reconfigure(policy.dead_holder, policy.aging_ns, policy.attempts, policy.counted)
        self._remember(policy)

    def _remember(self, policy: ClaimPolicy) -> None:
        self.instance.sweeping.history_ns = policy.history_ns
        self.instance.sweeping.dead_history_ns = policy.dead_history_ns

    def _find_weight(self, tenant: str) -> int:
        terms = self._policy.find(tenant)
        return 1 if terms is None else terms.weight

    async def _forget_idle(self) -> None:
        """Tenants of templates that neither wait nor hold anything."""
        while not self.instance.is_stopping:
            await self._world.clock.sleep(FORGET_NS)
            busy = self.instance.find_tenants()
            self.strangers.keep(busy.__contains__)
            self.instance.queue.forget_tenants(self._policy.tenants.__contains__)

    def is_ready(self) -> bool:
        return self.instance.is_trusted

    def most(self, ticket: Ticket) -> int | None:
        """As many names as one asks for; the resource as a whole is one."""
        return None if ticket.names else 1

    # -- claims

    def decide(self, ticket: Ticket) -> None:
        try:
            needs, counts = self._read(ticket)
            priority = check_priority(ticket.priority)
        except UsageError as error:
            ticket.give(error)
            return
        task = new_task(
            id=new_id("c", self._world.random),
            tenant=ticket.tenant,
            needs=needs,
            counts=counts,
            priority=priority,
            submitted=self._world.clock.wall(),
            is_claim=True,
            key="" if ticket.key is None else digest(ticket.key),
        )
        try:
            check_size(task, self.instance.layout, self._world.store.operations_max)
        except UsageError as error:
            ticket.give(error)
            return
        if why := find_beyond(task, self._policy.counted):
            ticket.give(Refused(why, reason="amount"))
            return
        self.instance.claims.ask(task, ticket)

    def _read(self, ticket: Ticket) -> Needs:
        if not ticket.names:
            return parse_needs(f"{self.name}:E")
        return parse_needs(ticket.names, paths=self._policy.paths, counted=self._policy.counted)

    def patience_ns(self, ticket: Ticket) -> int:
        return PATIENCE_NS

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        return self.instance.claims.withdraw(ticket)

    def finish(self, granted: Granted) -> Awaitable[None] | None:
        """Releases its names, also if nobody awaits what is returned. Raises Unknown if the store does
        not answer; it is tried on, until it does."""
        return self.instance.claims.holdings.finish(granted.data)

    async def release(self, id: str, attempt: int) -> None:
        await self.instance.claims.holdings.release_left(check_id(id), attempt)

    async def more(self, granted: Granted, names: tuple[str, ...], wait_ns: int) -> None:
        needs = parse_needs(names, paths=self._policy.paths, counted=self._policy.counted)
        held: Held = granted.data
        after = await self.instance.asking.ask(held.task, needs, wait_ns)
        granted.fence, granted.amount = self.instance.fences_of(after), len(after.wanted)

    def lose(self, granted: Granted) -> Awaitable[None] | None:
        """As the policy says of dead holders."""
        self.instance.claims.holdings.lose(granted.data, keep=self._policy.dead_holder in ("auto", "keep"))
        return None

    def shadow_fence(self, ticket: Ticket) -> Mapping[str, int]:
        return dict.fromkeys((name for name, _ in self._read(ticket).names), SHADOW_FENCE)

    # -- telling

    def explain(self, tenant: str) -> Explanation:
        instance = self.instance
        waiting = [entry for entry in instance.queue.entries.values() if entry.tenant == tenant]
        tasks = [mine.task for mine in instance.mine.values() if mine.task.tenant == tenant]
        held = [task for task in tasks if task.state is State.RUNNING]
        sentences = [f"{tenant} holds {len(held)} claims here and waits for {len(waiting)}."]
        sentences += [f"{entry.id}: {instance.why(entry.id)}." for entry in waiting[:5]]
        return Explanation(
            resource=self.name,
            kind=self.kind,
            tenant=tenant,
            sentences=tuple(sentences),
            figures={"held": len(held), "waiting": len(waiting)},
        )

    def statistics(self) -> ClaimStatistics:
        self._seen.look()
        return count(self.instance, self._seen.rows)
