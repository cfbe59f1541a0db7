"""Allocation problems, every algorithm that solves them, and one validator that trusts none.

The validator looks only at the problem and the answer; the maximum it compares with comes from
OR-tools, which shares no code with bursar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bursar.allocation.reservations import Allocation, allocate
from bursar_lab.experiments.instances import Instance, draw_instance
from bursar_lab.experiments.maxflow import solve_with_ortools
from bursar_lab.experiments.reference import allocate_as_written

LARGEST = 2**53


@dataclass(frozen=True)
class Answer:
    tokens: np.ndarray
    effective: int
    exact: bool = True


def draw_problem(seed: int) -> Instance:
    """A small problem: 1 to 12 servers, 1 to 60 tenants; zero rows, zero capacities, amounts up
    to 2**53, and more often than not infeasible."""
    rng = np.random.default_rng(seed)
    servers, tenants = int(rng.integers(1, 13)), int(rng.integers(1, 61))
    scale = float(rng.choice([3, 100, 10_000, 2**31, 2**45]))
    density = float(rng.uniform(0.1, 1.0))
    demand = (rng.random((tenants, servers)) * scale).astype(np.int64)
    demand *= rng.random((tenants, servers)) < density
    demand[rng.random(tenants) < 0.1] = 0
    if rng.random() < 0.2:
        demand[rng.integers(tenants), rng.integers(servers)] = LARGEST
    reservation = np.minimum((demand.sum(axis=1) * rng.uniform(0, 1.3, tenants)).astype(np.int64), LARGEST)
    reservation[rng.random(tenants) < 0.1] = 0
    fill = float(rng.uniform(0.3, 1.5))
    wanted = np.minimum(demand.sum(axis=1), reservation).sum()
    capacity = (rng.dirichlet(np.full(servers, 1.5)) * float(wanted) * fill).astype(np.int64)
    capacity = np.minimum(capacity, LARGEST)
    capacity[rng.random(servers) < 0.1] = 0
    if rng.random() < 0.1:
        capacity[rng.integers(servers)] = LARGEST
    return Instance(csr_array(demand), capacity, reservation)


def change_some(problem: Instance, seed: int, part: float) -> Instance:
    """The same problem with the demand of a part of the tenants moved to other servers."""
    rng = np.random.default_rng(seed)
    demand = problem.demand.tocoo()
    moved = rng.random(demand.shape[0]) < part
    turn = np.where(moved, rng.integers(0, demand.shape[1], demand.shape[0]), 0)
    servers = (demand.col + turn[demand.row]) % demand.shape[1]
    changed = csr_array((demand.data, (demand.row, servers)), shape=demand.shape)
    return Instance(changed, problem.capacity, problem.reservation)


def find_maximum(problem: Instance) -> int:
    return solve_with_ortools(problem.demand, problem.capacity, problem.reservation).effective


def _dense(allocation: Allocation) -> Answer:
    tokens = allocation.tokens
    dense = tokens if isinstance(tokens, np.ndarray) else tokens.toarray()
    return Answer(dense, allocation.effective, allocation.exact)


def solve_sparse(problem: Instance) -> Answer:
    return _dense(allocate(problem.demand, problem.capacity, problem.reservation))


def solve_dense(problem: Instance) -> Answer:
    return _dense(allocate(problem.demand.toarray(), problem.capacity, problem.reservation))


def solve_warm(problem: Instance) -> Answer:
    before = change_some(problem, 7, 0.3)
    previous = allocate(before.demand, before.capacity, before.reservation)
    return _dense(allocate(problem.demand, problem.capacity, problem.reservation, previous=previous))


def solve_threaded(problem: Instance) -> Answer:
    return _dense(allocate(problem.demand, problem.capacity, problem.reservation, threads=3))


def solve_top(problem: Instance) -> Answer:
    return _dense(allocate(problem.demand, problem.capacity, problem.reservation, top=2))


def solve_as_written(problem: Instance) -> Answer:
    return Answer(*allocate_as_written(problem.demand.toarray(), problem.capacity, problem.reservation))


def solve_as_written_threaded(problem: Instance) -> Answer:
    demand = problem.demand.toarray()
    return Answer(*allocate_as_written(demand, problem.capacity, problem.reservation, threads=2))


def solve_as_written_top(problem: Instance) -> Answer:
    demand = problem.demand.toarray()
    answer = allocate_as_written(demand, problem.capacity, problem.reservation, top=2)
    return Answer(*answer, exact=False)


FAST = [solve_sparse, solve_dense, solve_warm, solve_threaded, solve_top]
SLOW = [solve_as_written, solve_as_written_threaded, solve_as_written_top]


def validate(problem: Instance, answer: Answer, maximum: int | None = None) -> None:
    """Prudent, whole, complete, and (if exact) optimal; raises AssertionError."""
    demand = problem.demand.toarray()
    tokens = answer.tokens
    assert tokens.shape == demand.shape
    assert tokens.dtype.kind == "i"
    assert (tokens >= 0).all(), "tokens below zero"
    assert (tokens <= demand).all(), "strong excess: more tokens than demand"
    granted = np.minimum(demand.sum(axis=1), problem.reservation)
    assert (tokens.sum(axis=1) == granted).all(), "tokens lost or made"
    effective = int(np.minimum(tokens.sum(axis=0), problem.capacity).sum())
    assert answer.effective == effective, "Phi is not what the tokens give"
    maximum = find_maximum(problem) if maximum is None else maximum
    assert effective <= maximum, "more than a maximum flow: the validator or OR-tools is wrong"
    if answer.exact:
        assert effective == maximum, f"Phi {effective} below the maximum {maximum}"


def validate_cut(problem: Instance, allocation: Allocation) -> None:
    """The cut alone must prove that no allocation does better."""
    demand = problem.demand.toarray()
    missing = int(allocation.granted.sum()) - allocation.effective
    if missing == 0:
        assert allocation.cut is None
        return
    cut = allocation.cut
    assert cut is not None
    outside = np.setdiff1d(np.arange(demand.shape[1]), cut.servers)
    elsewhere = demand[np.ix_(cut.tenants, outside)].sum(axis=1)
    must = sum(int(g) - int(e) for g, e in zip(allocation.granted[cut.tenants], elsewhere, strict=True))
    assert cut.required == must
    assert cut.capacity == sum(int(c) for c in problem.capacity[cut.servers])
    assert cut.required - cut.capacity == missing


def validate_shortfall(problem: Instance, allocation: Allocation) -> None:
    """Play each overloaded server's rounds, one token at a time for small amounts, and compare."""
    tokens = allocation.tokens.toarray()
    short = np.zeros(tokens.shape[0], np.int64)
    for server in range(tokens.shape[1]):
        held = tokens[:, server]
        short += held - serve_in_turn(held, int(problem.capacity[server]))
    assert allocation.shortfall.tolist() == short.tolist()


def serve_in_turn(held: np.ndarray, capacity: int) -> np.ndarray:
    """Rounds over those who still hold tokens; whole rounds are taken at once."""
    left, served = held.copy(), np.zeros_like(held)
    while capacity > 0 and (left > 0).any():
        waiting = np.flatnonzero(left > 0)
        rounds = min(int(left[waiting].min()), capacity // waiting.size)
        if rounds == 0:
            served[waiting[:capacity]] += 1
            break
        left[waiting] -= rounds
        served[waiting] += rounds
        capacity -= rounds * waiting.size
    return served


def draw_large(number: int) -> Instance:
    """Twenty large problems of different kinds."""
    settings = [
        {},
        {"reserved": 0.9},
        {"multiple": 1.5},
        {"active": 2},
        {"active": 4, "heat": 0.5},
        {"heat": 0.8, "reserved": 0.7, "multiple": 2.0},
        {"unevenness": 0.7},
        {"servers": 1000, "active": 2, "multiple": 1.5},
        {"servers": 1000, "active": 3, "reserved": 0.8, "multiple": 2.0},
        {"servers": 300, "exponent": 0.0, "active": 5},
    ]
    return draw_instance(number, **settings[number % len(settings)])
