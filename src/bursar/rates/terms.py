"""What the policy promises a tenant, looked up when it is needed: nobody walks over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from bursar.policy.values import RatePolicy, RateTenant

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy promises one tenant in a period. limit None: no limit. burst: tokens that it
    may use at once, ahead of its pace. servers None: it may use all. groups: its servers by zones, where
    there are zones. pace: in tokens a period; None: the limit."""

    reservation: int
    limit: int | None
    weight: int = 1
    burst: int = 0
    servers: tuple[str, ...] | None = None
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pace: int | None = None


class PolicyTerms(Mapping[str, Terms]):
    """The terms of a policy, listed or by template. Going through them gives the listed ones only.

    digest   names these terms: two nodes whose terms have the same name promise the same
    """

    def __init__(self, policy: RatePolicy) -> None:
        self._policy = policy
        self._made: dict[int, Terms] = {}  # by the identity of what the policy, which stays, says
        zones = [policy.list_zones()] if policy.zones else []
        written = _encode((policy.period_ns, policy.tenants, policy.templates, *zones))
        self.digest = blake2b(written, digest_size=8).hexdigest()

    def find(self, tenant: str) -> Terms | None:
        """Raises nothing: None for a tenant that has no terms."""
        found: RateTenant | None = self._policy.find(tenant)
        if found is None:
            return None
        made = self._made.get(id(found))
        if made is None:
            made = make_terms(found, self._policy.period_ns)
            if made.servers is not None:
                made = replace(made, groups=self._group(made.servers))
            self._made[id(found)] = made
        return made

    def _group(self, servers: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        zones = self._policy.list_zones().items()
        groups = ((zone, tuple(name for name in servers if name in each)) for zone, each in zones)
        return tuple(group for group in groups if group[1])

    def __getitem__(self, tenant: str) -> Terms:
        found = self.find(tenant)
        if found is None:
            raise KeyError(tenant)
        return found

    def __contains__(self, tenant: object) -> bool:
        return isinstance(tenant, str) and self._policy.find(tenant) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._policy.tenants)

    def __len__(self) -> int:
        return len(self._policy.tenants)


class LiftedTerms(Mapping[str, Terms]):
    """The same terms for who sees zones, and not their servers."""

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self._terms = terms

    def __getitem__(self, tenant: str) -> Terms:
        return lift(self._terms[tenant])

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)


def lift(terms: Terms) -> Terms:
    """A tenant that is bound to some servers is bound to their zones."""
    if terms.servers is None:
        return terms
    return replace(terms, servers=tuple(zone for zone, _ in terms.groups), groups=())


def make_terms(tenant: RateTenant, period_ns: int) -> Terms:
    limit = None if tenant.limit is None else tenant.limit.per(period_ns)
    burst = find_burst(limit) if tenant.burst is None else tenant.burst
    servers = None if tenant.servers is None else tuple(dict.fromkeys(tenant.servers))
    return Terms(tenant.reservation.per(period_ns), limit, tenant.weight, burst, servers)


def find_burst(limit: int | None) -> int:
    """The burst of a tenant whose policy names none: a twentieth of its limit, and for small limits
    enough that people do not run into it one request at a time."""
    return 0 if limit is None else max(limit // 20, min(limit, 10))
