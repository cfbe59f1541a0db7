"""What the tenants of this node are promised, and where they stand: over all of its servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from bursar.rates.messages import UNBOUNDED
from bursar.rates.views import Terms


class Standing(Protocol):
    """What is asked of a server about a tenant, by its number: tokens of the present period."""

    def used(self, index: int) -> int: ...

    def unused(self, index: int) -> int: ...


class Promises:
    """The terms by the tenants' numbers, which are the same at every server of the node."""

    def __init__(self, period_ns: int, tenants: Iterable[str] = ()) -> None:
        self.period_ns = period_ns
        self.servers: list[Standing] = []
        self._index: dict[str, int] = {}
        self._terms: list[Terms] = []
        self._whole: list[bool] = []
        for tenant in tenants:
            self.set(tenant, Terms(0, None), whole=False)

    def set(self, tenant: str, terms: Terms, whole: bool) -> int:
        """A tenant's terms, new or changed; `whole` if every server that it may use runs here. Its
        number, which it keeps."""
        index = self._index.setdefault(tenant, len(self._terms))
        if index == len(self._terms):
            self._terms.append(terms)
            self._whole.append(whole)
        self._terms[index], self._whole[index] = terms, whole
        return index

    def terms(self, index: int) -> Terms:
        return self._terms[index]

    @property
    def limits(self) -> list[int]:
        return [UNBOUNDED if terms.limit is None else terms.limit for terms in self._terms]

    def burst_ns(self, index: int) -> int:
        """The burst as time at the tenant's pace: the same at every server, because a server has the
        same part of the one as of the other. A nanosecond for each token makes up for rounding."""
        terms = self._terms[index]
        if not terms.limit:
            return 0
        return -(-terms.burst * self.period_ns // terms.limit) + terms.burst

    def burst(self, index: int, pace: int) -> int | None:
        """The part of the burst that goes with that part of the pace; None for a tenant that has no
        limit, and no burst of its own either."""
        terms = self._terms[index]
        if terms.limit and pace:
            return max(1, terms.burst * pace // terms.limit)
        return terms.burst or None

    def remaining(self, index: int) -> int | None:
        """What is left of the limit. Where others have some of the tenant's servers, it is what they
        left here; None where there is no limit."""
        limit = self._terms[index].limit
        if limit is None:
            return None
        if self._whole[index]:
            return max(0, limit - sum(server.used(index) for server in self.servers))
        return sum(server.unused(index) for server in self.servers)


def find_burst(limit: int | None) -> int:
    """The burst of a tenant whose policy names none: a twentieth of its limit, and for small limits
    enough that people do not run into it one request at a time."""
    return 0 if limit is None else max(limit // 20, min(limit, 10))


def count_whole(
    tenant_servers: Mapping[str, Sequence[str] | None], servers: Iterable[str], here: Iterable[str]
) -> dict[str, bool]:
    """By tenant, whether every server that it may use is here."""
    everywhere, local = set(servers), set(here)
    return {
        tenant: (everywhere if chosen is None else set(chosen)) <= local
        for tenant, chosen in tenant_servers.items()
    }
