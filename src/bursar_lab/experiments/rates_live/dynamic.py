"""Experiment 4 (section IV-E): demand moves from servers to servers, on real memcached."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import msgspec

from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import Outcome, run_plan
from bursar_lab.experiments.rates_live.measures import Findings, measure, measure_gap
from bursar_lab.experiments.rates_live.plan import Plan, draw_moves

SERVERS = tuple(f"s{k}" for k in range(1, 9))
RESERVED = 0.75
LIMIT_OVER_RESERVATION = 5 / 3
CHANGES_A_PERIOD = 5 / 4
"""The paper: five changes of each tenant's demand in four periods."""

TARGET = 0.995
SEED = 4


def make_plan(
    tenants: int,
    rate: float,
    period_s: float,
    periods: int,
    *,
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
        intervals=5,
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
    """Ten tenants, 60 periods."""
    plan = make_plan(10, 250.0, 1.0, 6 if quick else 60, records=500 if quick else 10_000)
    return _compare(out, "rates-4", plan, paper=None, communication_max=0.02)


def four_many(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """A hundred tenants, where the paper's text has two hundred: eight servers of two cores do not have room
    for more of them at reservations of whole requests."""
    plan = make_plan(100, 250.0, 1.0, 4 if quick else 40, records=500)
    return _compare(out, "rates-4-many", plan, paper=(0.685, 0.835, 0.996), communication_max=0.03)


def _compare(
    out: pathlib.Path,
    name: str,
    plan: Plan,
    *,
    paper: tuple[float, float, float] | None,
    communication_max: float,
) -> dict[str, Any]:
    runs = run_all(plan, free_s=6.0)
    found = {title: measure(outcome) for title, outcome in runs.items()}
    pictures = []
    if paper is None:
        shown = {title: (outcome, found[title].periods[:4]) for title, outcome in runs.items()}
        pictures = [figures.draw_periods(out / f"{name}-service.png", shown, columns=1)]
    return {
        **describe(plan, runs, found),
        "seed": SEED,
        "figures": pictures,
        "table": make_table(plan, runs, found, paper),
        "ok": are_met(found, TARGET) and runs["defaults"].communication <= communication_max,
    }


def run_all(plan: Plan, *, free_s: float, file: pathlib.Path | None = None) -> dict[str, Outcome]:
    """Nobody promised anything; the policy at default settings; and without pacing, as the paper had it."""
    free = msgspec.structs.replace(plan, controlled=False, duration_s=free_s)
    return {
        "round robin": run_plan(free, file=file),
        "defaults": run_plan(plan, file=file),
        "unpaced": run_plan(msgspec.structs.replace(plan, paced=False), file=file),
    }


def are_met(found: dict[str, Findings], target: float) -> bool:
    controlled = [each for title, each in found.items() if title != "round robin"]
    return all(each.met_part >= target and each.over_limit == 0 for each in controlled)


def describe(plan: Plan, runs: dict[str, Outcome], found: dict[str, Findings]) -> dict[str, Any]:
    return {
        "server_rate": plan.rate,
        "cpu_used": {title: outcome.used for title, outcome in runs.items()},
        "periods": {title: len(each.periods) for title, each in found.items()},
        "failed": {title: dict(outcome.tally.failed) for title, outcome in runs.items()},
        "met": {title: each.met_part for title, each in found.items()},
        "within_limit": {title: each.within_limit_part for title, each in found.items()},
        "over_limit": {title: each.over_limit for title, each in found.items()},
        "infeasible": {title: each.infeasible for title, each in found.items()},
        "missed_though_feasible": {title: each.missed_feasible for title, each in found.items()},
        "misses": found["defaults"].misses,
        "communication": {title: outcome.communication for title, outcome in runs.items()},
        "round_ms": {title: _round_ms(outcome) for title, outcome in runs.items()},
        "gap": measure_gap(runs["defaults"]),
        "counted_by_memcached": {title: outcome.backend_counted for title, outcome in runs.items()},
    }


def _round_ms(outcome: Outcome) -> float:
    return 1_000 * outcome.talk.talking_s / max(1, outcome.talk.rounds)


def make_table(
    plan: Plan,
    runs: dict[str, Outcome],
    found: dict[str, Findings],
    paper: tuple[float, float, float] | None,
) -> list[dict[str, str]]:
    free = found["round robin"]
    used = max(outcome.used for outcome in runs.values())
    said = [f"{value:.1%}" for value in paper] if paper else ["(figure)", "(figure)", "all"]
    smallest = min(terms[0] for terms in plan.terms.values())
    rows = [
        ("servers, tenants", "8, 200" if paper else "8, 10", f"{len(plan.servers)}, {len(plan.terms)}"),
        ("rate of a server (requests a second)", "50,000", f"{plan.rate:.0f} (given)"),
        ("cores used of all, worst run", "-", f"{used:.0%}"),
        ("period, intervals, smallest reservation", "1 s, 5, -", f"{plan.period_s:g} s, 5, {smallest}"),
        ("round robin: reservations met", said[0], f"{free.met_part:.1%} of {free.met.size}"),
        ("round robin: limits kept", said[1], f"{free.within_limit_part:.1%}"),
    ]
    for title in ("defaults", "unpaced"):
        each, outcome = found[title], runs[title]
        rows += [
            (f"{title}: reservations met", said[2], f"{each.met_part:.2%} of {each.met.size}"),
            (f"{title}: of those missed, nobody could have met", "-", str(each.infeasible)),
            (f"{title}: requests over a limit", "0", str(each.over_limit)),
            (f"{title}: communication, of one round", "0.9 %", _tell_talk(outcome)),
        ]
    rows.append(("between two periods (median)", "-", f"{measure_gap(runs['defaults']):.2%}"))
    return [{"": name, "paper": value, "bursar": ours} for name, value, ours in rows]


def _tell_talk(outcome: Outcome) -> str:
    return f"{outcome.communication:.2%}, {_round_ms(outcome):.1f} ms"
