"""Experiment 5 (section IV-E): block reads from a file, two hundred tenants of different sizes."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import msgspec
import numpy as np

from bursar_lab.experiments.instances import draw_reservations
from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import run_plan
from bursar_lab.experiments.rates_live.dynamic import make_table
from bursar_lab.experiments.rates_live.measures import measure, measure_communication, measure_gap
from bursar_lab.experiments.rates_live.plan import Flow, Plan

PAPER_RATE = 1_000
SERVERS = tuple(f"s{k}" for k in range(1, 9))
TENANTS = 200
RESERVED = 0.8
DEMAND_OVER_RESERVATION = 1.5
LIMIT_OVER_RESERVATION = 1.5
EXPONENT = 0.5
CHANGES = 2
OUTSTANDING = 32
TARGET = 0.995
SEED = 5


def make_plan(
    rate: float, period_s: float, periods: int, *, tenants: int = TENANTS, file_bytes: int = 1 << 30
) -> Plan:
    """80 % reserved by a Zipf distribution, limits 1.5 times the reservation; each tenant asks for
    1.5 times its reservation, spread over the servers by a Zipf distribution, and spreads it anew
    twice a period."""
    rng = np.random.default_rng(SEED)
    capacity = rate * period_s * len(SERVERS)
    reservations = draw_reservations(rng, tenants, round(RESERVED * capacity), EXPONENT)
    names = [f"t{k:03}" for k in range(1, tenants + 1)]
    duration_s = (periods + 1) * period_s * 1.01 + 1.0
    paces = {
        name: DEMAND_OVER_RESERVATION * int(reservation) / period_s
        for name, reservation in zip(names, reservations, strict=True)
    }
    return Plan(
        servers=SERVERS,
        rate=rate,
        period_s=period_s,
        intervals=5,
        terms={
            name: (int(reservation), int(LIMIT_OVER_RESERVATION * reservation))
            for name, reservation in zip(names, reservations, strict=True)
        },
        flows=_draw_flows(paces, duration_s + period_s, period_s / CHANGES),
        duration_s=duration_s,
        backend="file",
        outstanding=OUTSTANDING,
        file_bytes=file_bytes,
    )


def _draw_flows(paces: dict[str, float], ends_s: float, every_s: float) -> tuple[Flow, ...]:
    chance = random.Random(SEED)
    weights = [(k + 1) ** -EXPONENT for k in range(len(SERVERS))]
    flows = []
    for tenant, pace in paces.items():
        changes = sorted(chance.uniform(0.0, ends_s) for _ in range(round(ends_s / every_s)))
        for begins_s, stops_s in zip([0.0, *changes], [*changes, ends_s], strict=True):
            order = chance.sample(SERVERS, len(SERVERS))
            flows += [
                Flow(tenant, server, begins_s, stops_s, pace * weight / sum(weights))
                for server, weight in zip(order, weights, strict=True)
            ]
    return tuple(flows)


def five(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    plan = make_plan(200.0, 4.0, 2, tenants=40, file_bytes=1 << 24) if quick else make_plan(520.0, 20.0, 4)
    free = msgspec.structs.replace(plan, controlled=False, duration_s=(2 if quick else 2.1) * plan.period_s)
    data = out / "rates-5.data"
    try:
        runs = {"round robin": run_plan(free, file=data), "controlled": run_plan(plan, file=data)}
    finally:
        data.unlink(missing_ok=True)
    found = {title: measure(outcome) for title, outcome in runs.items()}
    controlled = found["controlled"]
    talking = measure_communication(runs["controlled"])
    pictures = [
        figures.draw_reservations(out / "rates-5-reservations.png", runs["controlled"]),
        figures.draw_intervals(out / "rates-5-intervals.png", runs["controlled"], controlled.periods[:2]),
    ]
    table = make_table(plan, runs, found, talking, None)
    table[1]["paper"] = "1,000"
    table[3]["paper"] = "5 s, -"
    table[6]["paper"] = "99.5 %"
    return {
        "scale": plan.rate / PAPER_RATE,
        "server_rate": plan.rate,
        "seed": SEED,
        "cpu_used": {title: outcome.used for title, outcome in runs.items()},
        "periods": {title: len(each.periods) for title, each in found.items()},
        "met": {title: each.met_part for title, each in found.items()},
        "within_limit": {title: each.within_limit_part for title, each in found.items()},
        "over_limit": {title: each.over_limit for title, each in found.items()},
        "infeasible": controlled.infeasible,
        "missed_though_feasible": controlled.missed_feasible,
        "misses": controlled.misses,
        "dropped": sum(report.dropped for report in runs["controlled"].reports),
        "communication": float(np.median(talking)) if talking else None,
        "gap": measure_gap(runs["controlled"]),
        "figures": pictures,
        "table": table,
        "ok": controlled.met_part >= TARGET and controlled.over_limit == 0,
    }
