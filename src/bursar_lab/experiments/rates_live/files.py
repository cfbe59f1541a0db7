"""Experiment 5 (section IV-E): block reads from a file, two hundred tenants of different sizes."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np

from bursar_lab.experiments.instances import draw_reservations
from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.dynamic import are_met, describe, make_table, run_all
from bursar_lab.experiments.rates_live.measures import measure
from bursar_lab.experiments.rates_live.plan import Flow, Plan

SERVERS = tuple(f"s{k}" for k in range(1, 9))
TENANTS = 200
RESERVED = 0.8
DEMAND_OVER_RESERVATION = 1.5
LIMIT_OVER_RESERVATION = 1.5
EXPONENT = 0.5
CHANGES = 2
OUTSTANDING = 32
TARGET = 0.995
COMMUNICATION_MAX = 0.02
SEED = 5


def make_plan(
    rate: float,
    period_s: float,
    periods: int,
    *,
    tenants: int = TENANTS,
    file_bytes: int = 1 << 30,
    servers: tuple[str, ...] = SERVERS,
) -> Plan:
    """80 % reserved by a Zipf distribution, limits 1.5 times the reservation; each tenant asks for
    1.5 times its reservation, spread over the servers by a Zipf distribution, and spreads it anew
    twice a period."""
    rng = np.random.default_rng(SEED)
    capacity = rate * period_s * len(servers)
    reservations = draw_reservations(rng, tenants, round(RESERVED * capacity), EXPONENT)
    names = [f"t{k:03}" for k in range(1, tenants + 1)]
    duration_s = (periods + 1) * period_s * 1.01 + 1.0
    paces = {
        name: DEMAND_OVER_RESERVATION * int(reservation) / period_s
        for name, reservation in zip(names, reservations, strict=True)
    }
    return Plan(
        servers=servers,
        rate=rate,
        period_s=period_s,
        intervals=5,
        terms={
            name: (int(reservation), int(LIMIT_OVER_RESERVATION * reservation))
            for name, reservation in zip(names, reservations, strict=True)
        },
        flows=_draw_flows(paces, servers, duration_s + period_s, period_s / CHANGES),
        duration_s=duration_s,
        backend="file",
        outstanding=OUTSTANDING,
        file_bytes=file_bytes,
    )


def _draw_flows(
    paces: dict[str, float], servers: tuple[str, ...], ends_s: float, every_s: float
) -> tuple[Flow, ...]:
    chance = random.Random(SEED)
    weights = [(k + 1) ** -EXPONENT for k in range(len(servers))]
    flows = []
    for tenant, pace in paces.items():
        changes = sorted(chance.uniform(0.0, ends_s) for _ in range(round(ends_s / every_s)))
        for begins_s, stops_s in zip([0.0, *changes], [*changes, ends_s], strict=True):
            order = chance.sample(servers, len(servers))
            flows += [
                Flow(tenant, server, begins_s, stops_s, pace * weight / sum(weights))
                for server, weight in zip(order, weights, strict=True)
            ]
    return tuple(flows)


def five(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    plan = make_plan(200.0, 4.0, 2, tenants=40, file_bytes=1 << 24) if quick else make_plan(250.0, 5.0, 12)
    data = out / "rates-5.data"
    try:
        runs = run_all(plan, free_s=2.1 * plan.period_s, file=data)
    finally:
        data.unlink(missing_ok=True)
    found = {title: measure(outcome) for title, outcome in runs.items()}
    shown, periods = runs["defaults"], found["defaults"].periods[:2]
    pictures = [
        figures.draw_reservations(out / "rates-5-reservations.png", shown),
        figures.draw_intervals(out / "rates-5-intervals.png", shown, periods),
    ]
    table = make_table(plan, runs, found, None)
    table[0]["paper"], table[1]["paper"], table[3]["paper"] = "8, 200", "1,000", "5 s, 5, -"
    return {
        **describe(plan, runs, found),
        "seed": SEED,
        "figures": pictures,
        "table": table,
        "ok": are_met(found, TARGET) and runs["defaults"].communication <= COMMUNICATION_MAX,
    }
