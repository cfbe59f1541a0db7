"""What a live run showed: reservations met, limits kept, time spent on talking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bursar.allocation.reservations import allocate
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live.cluster import Outcome
from bursar_lab.experiments.rates_live.tally import Whole

MET = 0.99
"""A reservation counts as met from this part of it on."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Findings:
    """Of the measured periods: rows are periods, columns are tenants."""

    periods: list[int]
    served: Whole
    reservation: Whole
    limit: Whole
    feasible: Flags

    @property
    def met(self) -> Flags:
        return np.asarray(self.served >= np.ceil(MET * self.reservation), bool)

    @property
    def met_part(self) -> float:
        return float(self.met.mean())

    @property
    def within_limit_part(self) -> float:
        return float((self.served <= self.limit).mean())

    @property
    def over_limit(self) -> int:
        """Requests beyond a limit, in all."""
        return int(np.maximum(self.served - self.limit, 0).sum())

    @property
    def infeasible(self) -> int:
        """Reservations that nobody could have met, knowing everything beforehand."""
        return int((~self.feasible).sum())

    @property
    def missed_feasible(self) -> int:
        return int((~self.met & self.feasible).sum())

    @property
    def misses(self) -> list[list[int]]:
        """(period, tenant by number, served) of every reservation that was missed."""
        found = np.argwhere(~self.met)
        return [[self.periods[row], int(column), int(self.served[row, column])] for row, column in found]


def measure(outcome: Outcome) -> Findings:
    """The periods that lie wholly between one period after the start and the end."""
    plan = outcome.plan
    from_ns = outcome.began_at + plan.period_ns
    to_ns = outcome.began_at + round(plan.duration_s * SECOND_NS)
    periods = [
        period
        for period, at in sorted(outcome.openings.items())
        if at >= from_ns and at + plan.period_ns <= to_ns
    ]
    largest = np.iinfo(np.int64).max
    return Findings(
        periods=periods,
        served=np.array([outcome.tally.periods[period] for period in periods]),
        reservation=np.array([terms[0] for terms in plan.terms.values()], np.int64),
        limit=np.array(
            [largest if terms[1] is None else terms[1] for terms in plan.terms.values()], np.int64
        ),
        feasible=np.array([find_feasible(outcome, outcome.openings[period]) for period in periods], bool),
    )


def find_feasible(outcome: Outcome, opened_at: int) -> Flags:
    """Which reservations someone could meet who knew beforehand where everyone sends and when.

    A period is cut where demand moves; each server in each part is a place with its capacity, and
    a backlogged tenant can use all of it. What then still falls short is nobody's fault."""
    plan = outcome.plan
    start_s = (opened_at - outcome.began_at) / SECOND_NS
    end_s = start_s + plan.period_s
    flows = [flow for flow in plan.flows if flow.begins_s < end_s and flow.ends_s > start_s]
    inner = {moment for flow in flows for moment in (flow.begins_s, flow.ends_s) if start_s < moment < end_s}
    cuts = np.array([start_s, *sorted(inner), end_s])
    rows = {tenant: row for row, tenant in enumerate(plan.terms)}
    columns = {server: column for column, server in enumerate(plan.servers)}
    demand = np.zeros((len(rows), len(columns), len(cuts) - 1))
    for flow in flows:
        spans = np.clip(np.minimum(cuts[1:], flow.ends_s) - np.maximum(cuts[:-1], flow.begins_s), 0.0, None)
        pace = plan.rate if flow.rate is None else flow.rate
        demand[rows[flow.tenant], columns[flow.server]] += pace * spans
    capacity = np.repeat(plan.rate * np.diff(cuts)[None, :], len(columns), axis=0)
    reservation = np.array([terms[0] for terms in plan.terms.values()], np.int64)
    # In thousandths of a request, so that cutting a period into parts loses nothing to rounding.
    found = allocate(
        np.rint(1_000 * demand.reshape(len(rows), -1)).astype(np.int64),
        np.rint(1_000 * capacity.ravel()).astype(np.int64),
        1_000 * reservation,
    )
    got = found.granted - found.shortfall
    return np.asarray(got >= 1_000 * MET * reservation, bool)


def measure_gap(outcome: Outcome) -> float:
    """Between the end of a period and the opening of the next, as a part of a period (median)."""
    times = [outcome.openings[period] for period in sorted(outcome.openings)]
    between = np.diff(np.array(times)) - outcome.plan.period_ns
    return float(np.median(between)) / outcome.plan.period_ns if len(between) else 0.0
