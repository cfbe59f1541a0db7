"""Experiment 4 (section IV-E): demand moves from servers to servers, on real memcached."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import msgspec
import numpy as np

from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import Outcome, run_plan
from bursar_lab.experiments.rates_live.measures import (
    Findings,
    find_talks,
    measure,
    measure_communication,
    measure_gap,
)
from bursar_lab.experiments.rates_live.plan import Plan, draw_moves

PAPER_RATE = 50_000
SERVERS = tuple(f"s{k}" for k in range(1, 9))
RESERVED = 0.75
LIMIT_OVER_RESERVATION = 5 / 3
CHANGES_A_PERIOD = 5 / 4
"""The paper: five changes of each tenant's demand in four periods."""

TARGET = 0.996
COMMUNICATION_MAX = 0.02
SEED = 4


def make_plan(
    tenants: int,
    rate: float,
    period_s: float,
    periods: int,
    *,
    intervals: int = 5,
    records: int = 10_000,
) -> Plan:
    """Three quarters of the capacity reserved, in equal parts; limits 5/3 of that, as in the paper
    (30,000 and 50,000 of 400,000 for each of ten). Two periods more than are measured."""
    reservation = int(RESERVED * rate * len(SERVERS) * period_s / tenants)
    names = [f"t{k:03}" if tenants > 99 else f"t{k}" for k in range(1, tenants + 1)]
    duration_s = (periods + 2) * period_s * 1.01 + 1.0
    return Plan(
        servers=SERVERS,
        rate=rate,
        period_s=period_s,
        intervals=intervals,
        terms={name: (reservation, int(reservation * LIMIT_OVER_RESERVATION)) for name in names},
        flows=draw_moves(
            random.Random(SEED),
            iter(names),
            SERVERS,
            ends_s=duration_s + 2 * period_s,
            every_s=period_s / CHANGES_A_PERIOD,
        ),
        duration_s=duration_s,
        records=records,
    )


def four(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Ten tenants, 60 periods, ten placements in each. A round takes milliseconds however long the
    period is, and the servers share two cores: so the period is 4 s, where the paper's is 1 s."""
    plan = make_plan(10, 250.0, 1.0, 6, records=500) if quick else make_plan(10, 250.0, 4.0, 60, intervals=10)
    return _compare(out, "rates-4", plan, free_periods=3 if quick else 4, paper=None)


def four_many(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Two hundred tenants."""
    plan = make_plan(200, 700.0, 5.0, 2, records=500) if quick else make_plan(200, 700.0, 5.0, 22)
    return _compare(out, "rates-4-many", plan, free_periods=1 if quick else 2, paper=(0.685, 0.835, 0.996))


def _compare(
    out: pathlib.Path,
    name: str,
    plan: Plan,
    *,
    free_periods: int,
    paper: tuple[float, float, float] | None,
) -> dict[str, Any]:
    free = msgspec.structs.replace(plan, controlled=False, duration_s=(free_periods + 2) * plan.period_s)
    runs = {"round robin": run_plan(free), "controlled": run_plan(plan)}
    found = {title: measure(outcome) for title, outcome in runs.items()}
    pictures = []
    if paper is None:
        shown = {title: (outcome, found[title].periods[:4]) for title, outcome in runs.items()}
        pictures = [figures.draw_periods(out / f"{name}-service.png", shown, columns=1)]
    controlled = found["controlled"]
    talking = measure_communication(runs["controlled"])
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
        "communication": float(np.median(talking)),
        "communication_mean": float(np.mean(talking)),
        "round_ms": _round_ms(runs["controlled"]),
        "grants_a_round": _grants_a_round(runs["controlled"]),
        "gap": measure_gap(runs["controlled"]),
        "counted_by_memcached": {title: outcome.backend_counted for title, outcome in runs.items()},
        "figures": pictures,
        "table": make_table(plan, runs, found, talking, paper),
        "ok": controlled.met_part >= TARGET
        and controlled.over_limit == 0
        and bool(np.median(talking) <= COMMUNICATION_MAX),
    }


def _round_ms(outcome: Outcome) -> float:
    """How long the servers and the controller talk in one round (median)."""
    return float(np.median([talk.talking_ns for talk in find_talks(outcome)])) / 1e6


def _grants_a_round(outcome: Outcome) -> float:
    return float(np.mean([talk.grants for talk in find_talks(outcome)]))


def make_table(
    plan: Plan,
    runs: dict[str, Outcome],
    found: dict[str, Findings],
    talking: list[float],
    paper: tuple[float, float, float] | None,
) -> list[dict[str, str]]:
    free, controlled = found["round robin"], found["controlled"]
    used = max(outcome.used for outcome in runs.values())
    said = [f"{value:.1%}" for value in paper] if paper else ["(figure)", "(figure)", "all"]
    smallest = min(terms[0] for terms in plan.terms.values())
    rows = (
        ("servers, tenants", f"8, {len(plan.terms)}", f"{len(plan.servers)}, {len(plan.terms)}"),
        ("rate of a server (requests a second)", "50,000", f"{plan.rate:.0f} (fixed)"),
        ("cores used of all, worst run", "-", f"{used:.0%}"),
        ("period, smallest reservation", "1 s, -", f"{plan.period_s:g} s, {smallest}"),
        ("round robin: reservations met", said[0], f"{free.met_part:.1%} of {free.met.size}"),
        ("round robin: limits kept", said[1], f"{free.within_limit_part:.1%}"),
        ("controlled: reservations met", said[2], f"{controlled.met_part:.2%} of {controlled.met.size}"),
        ("controlled: of those missed, nobody could have met", "-", str(controlled.infeasible)),
        ("controlled: requests over a limit", "0", str(controlled.over_limit)),
        ("periods", "4", str(len(controlled.periods))),
        (
            "communication, part of a period: median, mean",
            "-, 0.9 %",
            f"{np.median(talking):.2%}, {np.mean(talking):.2%}",
        ),
        (
            "of one round (median), grants in it (mean)",
            "-",
            f"{_round_ms(runs['controlled']):.1f} ms, {_grants_a_round(runs['controlled']):.1f}",
        ),
        ("between two periods (median)", "-", f"{measure_gap(runs['controlled']):.2%}"),
    )
    return [{"": name, "paper": value, "bursar": ours} for name, value, ours in rows]
