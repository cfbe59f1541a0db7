"""What came of it: who met its reservation, who was throttled, what one more server changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bursar.allocation.allowances import UNLIMITED
from bursar.simulate.demand import Flows, add_server
from bursar.simulate.simulation import PolicySimulation, Served, Terms
from bursar.simulate.workload import Whole

MET_PART = 0.95
"""As in the paper: a reservation counts as met from 95 % on."""

AT_LIMIT_PART = 0.98
WORST_MAX = 20


@dataclass(frozen=True)
class Outcome:
    terms: Terms
    demand: Whole
    served: Served

    @property
    def due(self) -> Whole:
        """What each tenant had a right to: its reservation, as far as it asked for it."""
        return np.minimum(self.terms.reservation, self.demand)

    @property
    def met(self) -> Any:
        return self.served.by_tenant >= MET_PART * self.due

    @property
    def throttled(self) -> Any:
        """Held back by its limit: it asked for more, and got that."""
        limited = self.terms.limit < UNLIMITED
        return (
            limited
            & (self.demand > self.terms.limit)
            & (self.served.by_tenant >= AT_LIMIT_PART * self.terms.limit)
        )

    @property
    def load(self) -> Any:
        """The part of each server's capacity that was used."""
        return self.served.by_server / (self.terms.capacity * self.terms.period_s)

    def summarize(self) -> dict[str, Any]:
        reserving = self.terms.reservation > 0
        missed = int((reserving & ~self.met).sum())
        return {
            "tenants": len(self.terms.tenants),
            "servers": len(self.terms.servers),
            "period_s": self.terms.period_s,
            "requests_asked": int(self.demand.sum()),
            "requests_served": int(self.served.by_tenant.sum()),
            "tenants_with_reservation": int(reserving.sum()),
            "tenants_that_missed_it": missed,
            "tenants_throttled": int(self.throttled.sum()),
            "busiest_server": self.terms.servers[int(self.load.argmax())],
            "busiest_load": round(float(self.load.max()), 4),
            "idlest_load": round(float(self.load.min()), 4),
            "simulated_s": round(self.served.simulated_s, 3),
        }

    def list_worst(self, most: int | None = WORST_MAX) -> list[dict[str, Any]]:
        """Tenants, those that got the least part of what was due first."""
        part = self.served.by_tenant / np.maximum(self.due, 1)
        short = np.where(self.due > 0, part, np.inf)
        order = np.lexsort((-self.terms.reservation, short))[:most]
        return [self._describe(int(index)) for index in order]

    def _describe(self, index: int) -> dict[str, Any]:
        limit = int(self.terms.limit[index])
        return {
            "tenant": self.terms.tenants[index],
            "reservation": int(self.terms.reservation[index]),
            "limit": None if limit == UNLIMITED else limit,
            "asked": int(self.demand[index]),
            "got": int(self.served.by_tenant[index]),
            "met": bool(self.met[index]),
            "throttled": bool(self.throttled[index]),
        }


def simulate(terms: Terms, flows: Flows, seed: int) -> Outcome:
    served = PolicySimulation(terms, flows, seed).serve()
    return Outcome(terms, flows.demand(len(terms.tenants), terms.period_s), served)


def simulate_one_more(terms: Terms, flows: Flows, seed: int) -> Outcome:
    """The same demand with a server more, as large as the average one, used by every tenant that
    is not tied to some servers."""
    free = terms.may_use.all(axis=1)
    larger = replace(
        terms,
        servers=[*terms.servers, "one more"],
        capacity=np.append(terms.capacity, terms.capacity.mean()),
        may_use=np.column_stack([terms.may_use, free]),
    )
    return simulate(larger, add_server(flows, len(terms.servers), free), seed)
