"""Experiment 3 (section IV-E): four tenants, four servers, demand that stays as it is."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec
import numpy as np

from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import Outcome, run_plan
from bursar_lab.experiments.rates_live.measures import (
    Findings,
    measure,
    measure_communication,
    measure_gap,
)
from bursar_lab.experiments.rates_live.plan import Flow, Plan

PAPER_RATE = 50_000
RATE = 500.0
EXPECTED = (3, 7, 13, 25)
SERVERS = ("s1", "s2", "s3", "s4")


def make_plan(rate: float, duration_s: float, *, limited: bool, controlled: bool, records: int) -> Plan:
    """Tenant k is backlogged on the first k servers. As in the paper: 30,000 reserved of 50,000 a
    server, a limit of 200,000 (all servers together) or of 60,000; all scaled by the rate."""
    scale = rate / PAPER_RATE
    limit = round((60_000 if limited else 200_000) * scale)
    tenants = [f"t{k}" for k in range(1, 5)]
    return Plan(
        servers=SERVERS,
        rate=rate,
        period_s=1.0,
        intervals=5,
        terms={tenant: (round(30_000 * scale), limit) for tenant in tenants},
        flows=tuple(
            Flow(tenant, server, 0.0, duration_s + 60)
            for k, tenant in enumerate(tenants)
            for server in SERVERS[: k + 1]
        ),
        duration_s=duration_s,
        controlled=controlled,
        records=records,
    )


def three(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Round robin alone, then with reservations, then with limits as well."""
    duration_s = 6.0 if quick else 30.0
    plain = make_plan(RATE, duration_s, limited=False, controlled=False, records=1_000 if quick else 10_000)
    reserved = msgspec.structs.replace(plain, controlled=True)
    limited = msgspec.structs.replace(
        reserved, terms=make_plan(RATE, 1.0, limited=True, controlled=True, records=1).terms
    )
    runs = {
        "round robin": run_plan(plain),
        "reservations": run_plan(reserved),
        "reservations and limits": run_plan(limited),
    }
    found = {name: measure(outcome) for name, outcome in runs.items()}
    shown = {name: (outcome, found[name].periods[1:2]) for name, outcome in runs.items()}
    picture = figures.draw_periods(out / "rates-3-service.png", shown)
    ratio = find_ratio(found["round robin"])
    off = max(abs(ratio[k] / EXPECTED[k] - 1.0) for k in range(4))
    met = {name: found[name].met_part for name in ("reservations", "reservations and limits")}
    over = found["reservations and limits"].over_limit
    talking = [part for outcome in runs.values() for part in measure_communication(outcome)]
    return {
        "scale": RATE / PAPER_RATE,
        "server_rate": RATE,
        "cpu_used": {name: outcome.used for name, outcome in runs.items()},
        "periods": {name: len(each.periods) for name, each in found.items()},
        "ratio": ratio,
        "ratio_off": off,
        "met": met,
        "over_limit": over,
        "communication": float(np.median(talking)),
        "gap": measure_gap(runs["reservations"]),
        "counted_by_memcached": {name: outcome.backend_counted for name, outcome in runs.items()},
        "served": {name: each.served.mean(axis=0).tolist() for name, each in found.items()},
        "figures": [picture],
        "table": _make_table(runs, found, ratio, talking),
        "ok": off <= 0.10 and min(met.values()) == 1.0 and over == 0,
    }


def find_ratio(found: Findings) -> list[float]:
    """The tenants' mean service, scaled to the sum of 3 : 7 : 13 : 25."""
    mean = found.served.mean(axis=0)
    return [float(value) for value in mean * sum(EXPECTED) / mean.sum()]


def _make_table(
    runs: dict[str, Outcome], found: dict[str, Findings], ratio: list[float], talking: list[float]
) -> list[dict[str, str]]:
    def means(name: str) -> str:
        return ", ".join(f"{value:.0f}" for value in found[name].served.mean(axis=0))

    def part(name: str) -> str:
        each = found[name]
        return f"{each.met_part:.1%} of {each.met.size}"

    reservation = runs["reservations"].plan.terms["t1"][0]
    limit = runs["reservations and limits"].plan.terms["t1"][1]
    rows = (
        ("rate of a server (requests a second)", "50,000", f"{RATE:.0f} (fixed)"),
        ("cores used of all, worst run", "-", f"{max(o.used for o in runs.values()):.0%}"),
        ("reservation, limit", "30,000, 60,000", f"{reservation}, {limit}"),
        ("round robin, ratio", "3 : 7 : 13 : 25", " : ".join(f"{value:.2f}" for value in ratio)),
        ("round robin, mean service", "12,500 29,166 54,166 104,166", means("round robin")),
        ("with reservations, mean service", "(figure)", means("reservations")),
        ("with reservations, tenant-periods met", "all", part("reservations")),
        ("with limits, mean service", "(figure)", means("reservations and limits")),
        ("with limits, tenant-periods met", "all", part("reservations and limits")),
        ("requests over a limit", "0", str(found["reservations and limits"].over_limit)),
        ("communication, part of a period (median)", "0.9 %", f"{np.median(talking):.2%}"),
    )
    return [{"": name, "paper": paper, "bursar": value} for name, paper, value in rows]
