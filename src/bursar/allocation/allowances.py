"""How much each tenant may use on each server: its reserved tokens and the rest of its limit.

The paper places R-tokens, then L-tokens "on the residual demands and capacities" (section III-D),
and counts them apart. Here one allowance serves for both, with a part of it that has priority: the
R-tokens. A tenant's allowances sum to min(limit, demand); tokens of the limit go where there is
capacity left for them, and those that fit nowhere follow the demand, so that nothing allowed is
lost when a server turns out faster than was thought.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar.allocation.matrix import VALUE_MAX, Rows, Whole, read_rows, read_vector
from bursar.allocation.reservations import Allocation, allocate_rows
from bursar.errors import UsageError

UNLIMITED = 2**63 - 1
"""As a limit: none. As an allowance: as many as the tenant asks for."""


@dataclass(frozen=True)
class Allowances:
    """What each tenant may use on each server, and what of it comes first."""

    allowance: Any
    """In the form of the demand; UNLIMITED in every cell of a tenant without a limit."""
    priority: Any
    """In the form of the demand, never above the allowance: the tokens of the reservation."""
    unlimited: npt.NDArray[np.bool_]
    """By tenant. A sparse result has no cell where there is no demand: an unlimited tenant is
    unlimited there too, any other has no allowance there."""
    reserved: Allocation
    """The placement of the reservations: what falls short, and why (`cut`)."""
    rest: Allocation
    """The placement of the rest of the limits on what is left of demand and capacity."""


def allocate_allowances(
    demand: Any,
    capacity: Any,
    reservation: Any,
    limit: Any,
    *,
    previous: Allowances | None = None,
    threads: int = 1,
) -> Allowances:
    """Allowances for what is left of a period.

    demand       tenants x servers: what each tenant will ask for on each server until the end
    capacity     what each server can still serve
    reservation  what each tenant is still to get; counts up to its limit only
    limit        what each tenant may still get: its limit less what it has had; UNLIMITED where
                 there is none
    previous     the last allowances, for a warm start
    """
    rows = read_rows("demand", demand)
    tenants, servers = rows.shape
    capacities = read_vector("capacity", capacity, servers, "servers")
    limits, unlimited = _read_limits(limit, tenants)
    reservations = np.minimum(read_vector("reservation", reservation, tenants, "tenants"), limits)
    old = (previous.reserved, previous.rest) if previous is not None else (None, None)
    reserved = allocate_rows(rows, capacities, reservations, old[0], threads=threads)
    rows = reserved.demand_rows
    left = rows.with_values(rows.values - reserved.token_values)
    free = np.maximum(-reserved.excess, 0)
    wanted = np.where(unlimited, 0, limits - reserved.granted)
    rest = allocate_rows(left, free, wanted, old[1], threads=threads)
    values = reserved.token_values + rest.token_values
    return Allowances(_express(rows, values, unlimited), reserved.tokens, unlimited, reserved, rest)


def _read_limits(limit: Any, tenants: int) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """(limits with 2**53 for none, which tenants have none)."""
    values = np.asarray(limit)
    if values.shape != (tenants,):
        raise UsageError(f"limit has shape {values.shape}: pass one number for each of {tenants} tenants")
    unlimited = values == np.inf if values.dtype.kind == "f" else values == UNLIMITED
    return read_vector("limit", np.where(unlimited, VALUE_MAX, values), tenants, "tenants"), unlimited


def _express(rows: Rows, values: Whole, unlimited: npt.NDArray[np.bool_]) -> Any:
    if rows.form is None:
        dense = rows.express(values)
        dense[unlimited] = UNLIMITED
        return dense
    if unlimited.any():
        values[unlimited[rows.row_of_cells()]] = UNLIMITED
    return rows.express(values)
