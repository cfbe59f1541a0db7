"""bQueue's way: the allocation as a maximum flow on the graph of tenants and servers.

A source leads to each tenant (its reservation, or its demand if that is less), each tenant to the
servers where it has demand, each server to a sink (its capacity). The flow is Phi. Two solvers
that users have at hand: OR-tools (push-relabel) and scipy (Dinic).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flow:
    """`tokens` are those that are consumed: a tenant that cannot be served has fewer."""

    effective: int
    tokens: Any
    """A CSR array with the cells of the demand."""


def solve_with_ortools(demand: Any, capacity: Whole, reservation: Whole) -> Flow:
    """SimpleMaxFlow, from the CSR array to the tokens."""
    tenants, servers = demand.shape
    source, sink = tenants + servers, tenants + servers + 1
    rows = np.repeat(np.arange(tenants, dtype=np.int32), np.diff(demand.indptr))
    everyone = np.arange(tenants, dtype=np.int32)
    every_server = np.arange(tenants, tenants + servers, dtype=np.int32)
    solver = max_flow.SimpleMaxFlow()
    arcs = solver.add_arcs_with_capacity(
        rows, demand.indices.astype(np.int32) + np.int32(tenants), demand.data
    )
    solver.add_arcs_with_capacity(
        np.full(tenants, source, np.int32), everyone, np.minimum(_sum_rows(demand), reservation)
    )
    solver.add_arcs_with_capacity(every_server, np.full(servers, sink, np.int32), capacity)
    status = solver.solve(source, sink)
    if status != solver.OPTIMAL:
        raise RuntimeError(f"OR-tools found no maximum flow: {status}")
    tokens = solver.flows(arcs)
    return Flow(
        int(solver.optimal_flow()), csr_array((tokens, demand.indices, demand.indptr), shape=demand.shape)
    )


def solve_with_scipy(demand: Any, capacity: Whole, reservation: Whole) -> Flow:
    """scipy's maximum_flow; it counts in 32 bits, so amounts must stay below 2**31."""
    tenants, servers = demand.shape
    source, sink = tenants + servers, tenants + servers + 1
    cells = demand.indices.size
    granted = np.minimum(_sum_rows(demand), reservation)
    amounts = np.concatenate((demand.data, capacity, granted))
    if amounts.max(initial=0) >= 2**31 or granted.sum() >= 2**31:
        raise OverflowError("scipy's maximum_flow counts in 32 bits: amounts must stay below 2**31")
    heads = np.concatenate((demand.indices + tenants, np.full(servers, sink), np.arange(tenants)))
    ends = np.array([cells + servers + tenants] * 2)
    indptr = np.concatenate((demand.indptr, cells + 1 + np.arange(servers), ends))
    graph = csr_array(
        (amounts.astype(np.int32), heads.astype(np.int32), indptr.astype(np.int32)),
        shape=(sink + 1, sink + 1),
    )
    solution = maximum_flow(graph, source, sink)
    return Flow(int(solution.flow_value), solution.flow[:tenants, tenants:source])


def _sum_rows(demand: Any) -> Whole:
    totals: Whole = np.asarray(demand.sum(axis=1)).ravel()
    return totals
