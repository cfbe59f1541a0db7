"""Tenants that no line of the policy names: who is here under a template."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from bursar.errors import Refused
from bursar.policy.values import ResourcePolicy, suggest


class Strangers:
    """Those that asked, until their kind has forgotten them. `forget` is told of each who goes."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._names: dict[str, None] = {}
        self._forget = forget

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._names

    def admit(self, tenant: str, room: int) -> bool:
        """Whether it may come in, beside so many at most. Then it is here."""
        if tenant in self._names:
            return True
        if len(self._names) >= room:
            return False
        self._names[tenant] = None
        return True

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """The others are forgotten."""
        for tenant in [tenant for tenant in self._names if not is_kept(tenant)]:
            del self._names[tenant]
            self._forget(tenant)

    def part(self, listed: Container[str]) -> None:
        """Who is listed now is no stranger; nothing of it is forgotten."""
        self._names = {tenant: None for tenant in self._names if tenant not in listed}


def check_tenant(policy: ResourcePolicy, tenant: str, strangers: Strangers | None) -> None:
    """Refuse a tenant that is neither listed nor under a template with room for it."""
    if tenant in policy.tenants:
        return
    if policy.find(tenant) is None:
        raise Refused(
            f'{policy.name} has no tenant "{tenant}"{suggest(tenant, policy.tenants)}', reason="tenant"
        )
    room = policy.max_tenants - len(policy.tenants)
    if strangers is not None and not strangers.admit(tenant, room):
        raise Refused(
            f'{policy.name} has as many tenants as it may have, {policy.max_tenants}: "{tenant}" gets in '
            "once another was idle for long enough; or raise max_tenants",
            reason="tenant",
        )
