"""The resources of a policy, opened on one node: what the daemon serves and what is embedded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from bursar.errors import BursarError, CrashedError, JournalError, StoreError, UsageError
from bursar.fleet.layout import NodeRecord
from bursar.policy import Policy
from bursar.policy.values import OWN_WORDS, PoolPolicy, QuotaPolicy, RatePolicy, ResourcePolicy
from bursar.rates.blocks import JOURNALLED_ABOVE_NS
from bursar.resource.door import Resource
from bursar.resource.excerpts import Wanted
from bursar.resource.statistics import Statistics
from bursar.resource.wire import FleetTold
from bursar.runtime import kinds, logs
from bursar.runtime.limits import Limits, fit_connections
from bursar.runtime.membership import MEMORY, Membership
from bursar.runtime.tenant_verbs import TenantVerbs
from bursar.runtime.world import LiveWorld, open_world
from bursar.world import SECOND_NS, Clock

LEAVE_TIMEOUT_S = 0.5
NOT_CHANGED = "not changed"


class Host:
    """One node and its resources. `policy` is the one in force."""

    def __init__(self, world: LiveWorld, policy: Policy, http: str = "") -> None:
        self.world = world
        self.policy = policy
        self.membership = Membership(world, policy, choose_store(policy), self._take, http)
        self.taken: Callable[[Policy], None] | None = None
        """Told of every policy that was taken over."""
        self.resources: dict[str, Resource] = {}
        self.policies: dict[str, ResourcePolicy] = {}

    @classmethod
    async def open(cls, policy: Policy, *, listen: str | None = None, http: str = "") -> Host:
        """Open the node and start every resource. A policy without resources is the node's own settings:
        the fleet's counts. Raises BursarError; then nothing is left open. A node with peers listens where
        the policy says, so that they can reach it. `http` is where it serves HTTP, for the others to know."""
        daemon = policy.daemon
        kinds.prepare(policy.resources.values())
        at = listen or (daemon.listen if daemon.peers else None)
        world = await open_world(
            daemon.name,
            state=daemon.state if at or http or _keeps_something(policy) else None,
            listen=at,
            limits=Limits(connections_max=fit_connections(daemon.connections)) if at else None,
            peers=daemon.peers,
            tls=daemon.tls,
            store=choose_store(policy),
            session_timeout_ns=daemon.session_timeout_ns,
        )
        host = cls(world, policy, http)
        try:
            await host._begin()
        except BaseException:
            await host.close()
            raise
        return host

    async def _begin(self) -> None:
        in_force = await self.membership.open()
        # Whoever asks meanwhile, over HTTP, is told that the node is being started.
        await asyncio.to_thread(kinds.prepare, list(in_force.resources.values()))
        await self.membership.enter()
        for resource in in_force.resources.values():
            await self.add(resource)
        self.membership.follow()

    @property
    def clock(self) -> Clock:
        return self.world.clock

    async def add(self, policy: ResourcePolicy) -> None:
        if _is_remembered(policy) and choose_store(self.policy) == MEMORY:
            raise UsageError(
                f"{policy.name} is the first {policy.kind} here that outlasts a restart, and the store "
                "forgets: restart to add it"
            )
        resource = kinds.open_resource(self.world, policy)
        if not self.membership.by_hand:
            verbs = TenantVerbs(self.world, policy.name, self.membership.follower.catch_up)
            resource.verbs |= verbs.by_name()
        await resource.start()
        self.resources[policy.name] = resource
        self.policies[policy.name] = policy

    async def remove(self, name: str) -> None:
        resource = self.resources.pop(name)
        del self.policies[name]
        await self._stop(resource)

    async def _stop(self, resource: Resource) -> None:
        timeout_s = resource.decider.stop_ns / SECOND_NS
        try:
            async with asyncio.timeout(timeout_s):
                await resource.stop()
        except TimeoutError:
            logs.warning("resource.stop_timeout", resource=resource.name, after_s=timeout_s)
        except (CrashedError, JournalError) as error:
            # The node failed, and with it what this would hand back; the others stop all the same.
            logs.warning("resource.not_stopped", resource=resource.name, why=str(error))

    async def apply(self, policy: Policy) -> Mapping[str, str]:
        """Take a changed policy: what was done to each resource that differs. A resource whose kind
        cannot change while it runs, or that refuses the change, keeps the terms it has."""
        done: dict[str, str] = {}
        for name in [name for name in self.resources if name not in policy.resources]:
            await self.remove(name)
            done[name] = "removed"
        for name, wanted in policy.resources.items():
            if self.policies.get(name) != wanted:
                done[name] = await self._change(name, wanted)
        self.policy = msgspec.structs.replace(
            self.policy, resources=policy.resources, alert=policy.alert, descriptors=policy.descriptors
        )
        return done

    async def _take(self, policy: Policy) -> None:
        """The fleet's policy is another one now. Raises UsageError if a resource did not take it."""
        # A kind that is new here is loaded and compiled, which takes seconds once on a machine.
        await asyncio.to_thread(kinds.prepare, list(policy.resources.values()))
        done = await self.apply(policy)
        for name, what in done.items():
            logs.info("policy.applied", resource=name, outcome=what)
        logs.info("policy.taken", source=policy.source)
        if self.taken is not None:
            self.taken(self.policy)
        problems = [f"{name}: {what}" for name, what in done.items() if what.startswith(NOT_CHANGED)]
        if problems:
            raise UsageError("; ".join(problems))

    async def _change(self, name: str, wanted: ResourcePolicy) -> str:
        try:
            if name not in self.resources:
                await self.add(wanted)
                return "added"
            if wanted.kind != self.policies[name].kind:
                return f"{NOT_CHANGED}: a resource keeps its kind; restart to apply it"
            await self.resources[name].reconfigure(wanted)
        except BursarError as error:
            return f"{NOT_CHANGED}: {error}"
        self.policies[name] = wanted
        return "changed"

    async def close(self) -> None:
        """Stop every resource, each within its time, all at once: as a member, so that the others take what
        it hands back. Then leave the fleet, and close the node."""
        await asyncio.gather(*(self._stop(resource) for resource in self.resources.values()))
        await self._leave()
        await self.world.close()

    def nodes(self) -> Mapping[str, NodeRecord]:
        """Those that are up, this one as it is now."""
        return {**self.membership.view.up, self.world.name: self.membership.follower.record}

    async def count(self, resource: str, most: int, find: Sequence[str]) -> Statistics:
        return await self.resources[resource].statistics(wanted=Wanted(most, tuple(find)))

    async def ask_fleet(self) -> FleetTold:
        return FleetTold(self.world.name, self.nodes())

    async def _leave(self) -> None:
        """Nobody waits long for a store."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.membership.leave()
        except (TimeoutError, StoreError, CrashedError) as error:
            logs.info("node.left_without_a_word", node=self.world.name, why=str(error) or "no answer in time")


def choose_store(policy: Policy) -> str:
    """Where the policy names no store, one in the state directory if what was spent is remembered
    there: the account, or the period, that it was spent from must not be forgotten before it."""
    if policy.store != MEMORY or not any(map(_is_remembered, policy.resources.values())):
        return policy.store
    return f"sqlite://{quote(str(Path(policy.daemon.state).resolve()))}/store.db"


def _keeps_something(policy: Policy) -> bool:
    """Whether its node has anything to keep in a state folder. A program that only shares pools has not, so
    any number of them can be opened from one policy file."""
    apart = (isinstance(each, PoolPolicy) and each.words != OWN_WORDS for each in policy.resources.values())
    return policy.store != MEMORY or not policy.resources or not all(apart)


def _is_remembered(policy: ResourcePolicy) -> bool:
    """Whether its kind journals what is spent."""
    is_long = isinstance(policy, RatePolicy) and policy.period_ns > JOURNALLED_ABOVE_NS
    return is_long or isinstance(policy, QuotaPolicy)
