"""What the tenants of this node are promised, and where they stand: over all of its servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bursar.rates.messages import UNBOUNDED
from bursar.rates.terms import Terms

NO_TERMS = Terms(0, 0)
"""Of a number that nobody has."""


class Standing(Protocol):
    """What is asked of a server about a tenant, by its number: tokens of the present period."""

    def used(self, index: int) -> int: ...

    def unused(self, index: int) -> int: ...

    def count_waiting(self, index: int) -> int: ...


class Promises:
    """The terms of the tenants that ask here, by their numbers, which are the same at every server of the
    node. A number whose tenant was forgotten goes to another."""

    def __init__(self, period_ns: int, tenants: Iterable[str] = ()) -> None:
        self.period_ns = period_ns
        self.servers: list[Standing] = []
        self.tenants: list[str] = []
        self._index: dict[str, int] = {}
        self._terms: list[Terms] = []
        self._whole: list[bool] = []
        self._free: list[int] = []
        for tenant in tenants:
            self.set(tenant, Terms(0, None), whole=False)

    def index(self, tenant: str) -> int | None:
        return self._index.get(tenant)

    def set(self, tenant: str, terms: Terms, whole: bool) -> int:
        """A tenant's terms, new or changed; `whole` if every server that it may use runs here. Its
        number, which it keeps."""
        index = self._index.get(tenant)
        if index is None:
            index = self._index[tenant] = self._free.pop() if self._free else self._add()
        self.tenants[index], self._terms[index], self._whole[index] = tenant, terms, whole
        return index

    def _add(self) -> int:
        self.tenants.append("")
        self._terms.append(NO_TERMS)
        self._whole.append(False)
        return len(self.tenants) - 1

    def forget(self, index: int) -> None:
        del self._index[self.tenants[index]]
        self.tenants[index], self._terms[index] = "", NO_TERMS
        self._free.append(index)

    def terms(self, index: int) -> Terms:
        return self._terms[index]

    @property
    def limits(self) -> list[int]:
        return [UNBOUNDED if terms.limit is None else terms.limit for terms in self._terms]

    def burst_ns(self, index: int) -> int:
        """The burst as time at the tenant's pace: the same at every server, because a server has the
        same part of the one as of the other. A nanosecond for each token makes up for rounding."""
        return find_burst_ns(self._terms[index], self.period_ns)

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


def find_burst_ns(terms: Terms, period_ns: int) -> int:
    """See `Promises.burst_ns`."""
    return -(-terms.burst * period_ns // terms.limit) + terms.burst if terms.limit else 0


def is_whole(terms: Terms, servers: Iterable[str], here: Iterable[str]) -> bool:
    """Whether every server that a tenant of these terms may use is here."""
    return set(servers if terms.servers is None else terms.servers) <= set(here)
