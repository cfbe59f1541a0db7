"""Looks at the words of all nodes of a pool, and says what is reserved at one of them (`placing`)."""

from __future__ import annotations

from bursar.errors import NetworkError
from bursar.policy import PoolPolicy
from bursar.policy.values import POOL_INTERVALS
from bursar.pools.admission import fit
from bursar.pools.layout import perform
from bursar.pools.placing import Placing
from bursar.world import World

LOOKS = 5
"""In an interval."""


class Placer:
    """Of the pool of one node, in one process."""

    def __init__(self, world: World, policy: PoolPolicy) -> None:
        self._world = world
        self._policy = policy
        self.look_ns = policy.period_ns // LOOKS
        self._kept, self.short = _fit_all(policy)
        self._placing = self._make()
        self.unreachable = 0

    def _make(self) -> Placing:
        policy, interval_ns = self._policy, self._policy.period_ns
        return Placing(
            {node: rate.per(interval_ns) for node, rate in policy.nodes.items()},
            self._kept,
            interval_ns=interval_ns,
            period_ns=interval_ns * POOL_INTERVALS,
        )

    def set_policy(self, policy: PoolPolicy) -> dict[str, int]:
        """What is reserved here until the next look."""
        before = self._kept
        self._policy = policy
        self._kept, self.short = _fit_all(policy)
        if self._kept != before:
            self._placing = self._make()
        return self._here()

    async def place(self) -> dict[str, int]:
        """By tenant, in this node's next interval. Where the words cannot be reached, what was seen last."""
        operations = self._placing.operations()
        world = self._world
        try:
            if world.far_words is None:
                values = [perform(world.words, each) for each in operations]
            else:
                (values,) = await world.far_words.perform([operations])
            self._placing.receive(world.clock.now(), values)
        except NetworkError:
            self.unreachable += 1
        return self._here()

    def _here(self) -> dict[str, int]:
        policy, found = self._policy, self._placing.place()[self._policy.name]
        if policy.client_capacity is None:
            return found
        most = policy.client_capacity.per(policy.period_ns)
        return {tenant: min(tokens, most) for tenant, tokens in found.items()}


def _fit_all(policy: PoolPolicy) -> tuple[dict[str, int], dict[str, int]]:
    """Tokens a period, over all nodes, of those that reserve any: as many as the nodes can do together, and
    how many each is short of."""
    period_ns = policy.period_ns * POOL_INTERVALS
    reserved = {
        tenant: terms.reservation.per(period_ns)
        for tenant, terms in policy.tenants.items()
        if terms.reservation.count
    }
    return fit(reserved, {}, sum(rate.per(period_ns) for rate in policy.nodes.values()))
