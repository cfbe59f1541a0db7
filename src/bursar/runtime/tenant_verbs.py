"""What can be done with a resource's tenants while it runs: the same verbs here, at a daemon, over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bursar.errors import UsageError
from bursar.fleet import tenants
from bursar.fleet.layout import SHARDS
from bursar.world import World

PAGE = 1000


class TenantVerbs:
    """For one resource of a node. `stepped` waits until the node itself runs what was set."""

    def __init__(self, world: World, resource: str, stepped: Callable[[], Awaitable[None]]) -> None:
        self._world = world
        self._resource = resource
        self._stepped = stepped

    def by_name(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        return {"set_tenants": self.set, "list_tenants": self.list, "show_tenant": self.show}

    async def set(self, tenants: Mapping[str, Any], by: str = "local") -> None:
        """Give tenants terms, as one would write them in the policy; None removes one. All or none, up
        to ten thousand at once."""
        _check(tenants)
        await _set(self._world, self._resource, tenants, by)
        await self._stepped()

    async def show(self, tenant: str) -> Any:
        """The terms that were set for a tenant; None if none were."""
        return await tenants.show_tenant(self._world.store, self._resource, tenant)

    async def list(self, page: int = 0) -> Any:
        """Some of the tenants that were set, and the page to go on with, None after the last."""
        if not isinstance(page, int) or not 0 <= page < SHARDS:
            raise UsageError(f"page is what the call before said, or 0, not {page!r}")
        found, more = await tenants.list_tenants(self._world.store, self._resource, shard=page, most=PAGE)
        return {"tenants": found, "next": more}


def _check(changes: object) -> None:
    if not isinstance(changes, Mapping) or not changes:
        raise UsageError('give terms by tenant: {"acme": {"limit": "60k/s"}}, None to remove one')
    for tenant, terms in changes.items():
        if not isinstance(tenant, str) or not (terms is None or isinstance(terms, Mapping)):
            raise UsageError(f'{tenant!r}: {terms!r} are no terms; write {{"limit": "60k/s"}}, or None')


async def _set(world: World, resource: str, changes: Mapping[str, Any], by: str) -> None:
    await tenants.set_tenants(world.store, resource, changes, by=by, at_ns=world.clock.wall())
