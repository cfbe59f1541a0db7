"""Fleets with one thing left out, each of which the scenario must find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.fleet import layout, tenants
from bursar.fleet.following import FleetView, Follower
from bursar.fleet.layout import Head
from bursar.sim.scenarios.fleet import FleetScenario
from bursar.world import MILLISECOND_NS, Check, Store


class UnguardedView(FleetView):
    """Mints without looking whether its terms are over."""

    def guards(self) -> Sequence[Check]:
        return ()


class Unguarded(FleetScenario):
    view = UnguardedView


class HastyFollower(Follower):
    """Counts as up to date before it runs what is new."""

    async def _catch_up(self) -> None:
        found = await self._persist(self._read_head)
        if found is not None:
            before, self.view.head = self.view.head, found[1].version
            await self._world.clock.sleep(30 * MILLISECOND_NS)
            self.view.head = before
        await super()._catch_up()


class Hasty(FleetScenario):
    follower = HastyFollower


async def set_quietly(store: Store, resource: str, changes: Mapping[str, Any], **told: Any) -> Head:
    """Sets tenants, and says in the head that no tenant of the resource was ever set."""
    head = await tenants.set_tenants(store, resource, changes, **told)
    await store.set(layout.HEAD, layout.write(Head(version=head.version)))
    return head


class Quiet(FleetScenario):
    set_tenants = staticmethod(set_quietly)


class ForgetfulFollower(Follower):
    """Does not enter itself again after its session was over."""

    async def _enter(self) -> None:
        if not self._entered_in:
            await super()._enter()


class Forgetful(FleetScenario):
    follower = ForgetfulFollower


class DeafFollower(Follower):
    """Reads the policy once."""

    async def _catch_up(self) -> None:
        if self.view.head < 0:
            await super()._catch_up()


class Deaf(FleetScenario):
    follower = DeafFollower


BUGS: dict[str, tuple[type[FleetScenario], str]] = {
    "mints without guards": (Unguarded, "minted"),
    "counts as up to date too early": (Hasty, "minted under"),
    "does not say which tenants changed": (Quiet, "minted under"),
    "stays out after its session expired": (Forgetful, "knows of"),
    "reads the policy only once": (Deaf, "the head at"),
}
