"""Experiment 3 (section IV-E): four tenants, four servers, demand that stays as it is."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec

from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import Outcome, run_plan
from bursar_lab.experiments.rates_live.measures import Findings, measure, measure_gap
from bursar_lab.experiments.rates_live.plan import Flow, Plan

PAPER_RATE = 50_000
RATE = 500.0
EXPECTED = (3, 7, 13, 25)
TARGET = 0.995
COMMUNICATION_MAX = 0.02
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
    """Round robin alone, then with reservations, then with limits as well: at default settings, and beside
    that without pacing, as the paper had it."""
    duration_s, records = (6.0, 1_000) if quick else (30.0, 10_000)
    reserved = make_plan(RATE, duration_s, limited=False, controlled=True, records=records)
    limited = make_plan(RATE, duration_s, limited=True, controlled=True, records=records)
    runs = {
        "round robin": run_plan(msgspec.structs.replace(reserved, controlled=False)),
        "reservations": run_plan(reserved),
        "reservations and limits": run_plan(limited),
        "limits, unpaced": run_plan(msgspec.structs.replace(limited, paced=False)),
    }
    found = {name: measure(outcome) for name, outcome in runs.items()}
    shown = {name: (outcome, found[name].periods[1:2]) for name, outcome in runs.items()}
    picture = figures.draw_periods(out / "rates-3-service.png", shown, columns=2)
    ratio = find_ratio(found["round robin"])
    off = max(abs(ratio[k] / EXPECTED[k] - 1.0) for k in range(4))
    promised = {name: each for name, each in found.items() if name != "round robin"}
    met = {name: each.met_part for name, each in promised.items()}
    over = {name: each.over_limit for name, each in promised.items()}
    return {
        "scale": RATE / PAPER_RATE,
        "server_rate": RATE,
        "cpu_used": {name: outcome.used for name, outcome in runs.items()},
        "periods": {name: len(each.periods) for name, each in found.items()},
        "failed": {name: dict(outcome.tally.failed) for name, outcome in runs.items()},
        "ratio": ratio,
        "ratio_off": off,
        "met": met,
        "over_limit": over,
        "communication": {name: outcome.communication for name, outcome in runs.items()},
        "gap": measure_gap(runs["reservations"]),
        "counted_by_memcached": {name: outcome.backend_counted for name, outcome in runs.items()},
        "served": {name: each.served.mean(axis=0).tolist() for name, each in found.items()},
        "figures": [picture],
        "table": _make_table(runs, found, ratio),
        "ok": off <= 0.10
        and min(met.values()) >= TARGET
        and not any(over.values())
        and runs["reservations and limits"].communication <= COMMUNICATION_MAX,
    }


def find_ratio(found: Findings) -> list[float]:
    """The tenants' mean service, scaled to the sum of 3 : 7 : 13 : 25."""
    mean = found.served.mean(axis=0)
    return [float(value) for value in mean * sum(EXPECTED) / mean.sum()]


def _make_table(
    runs: dict[str, Outcome], found: dict[str, Findings], ratio: list[float]
) -> list[dict[str, str]]:
    reservation = runs["reservations"].plan.terms["t1"][0]
    limit = runs["reservations and limits"].plan.terms["t1"][1]
    rows = [
        ("rate of a server (requests a second)", "50,000", f"{RATE:.0f} (given)"),
        ("cores used of all, worst run", "-", f"{max(o.used for o in runs.values()):.0%}"),
        ("reservation, limit", "30,000, 60,000", f"{reservation}, {limit}"),
        ("round robin, ratio", "3 : 7 : 13 : 25", " : ".join(f"{value:.2f}" for value in ratio)),
        ("round robin, mean service", "12,500 29,166 54,166 104,166", _tell_means(found["round robin"])),
    ]
    for name, each in found.items():
        if name != "round robin":
            rows += [
                (f"{name}: mean service", "(figure)", _tell_means(each)),
                (f"{name}: tenant-periods met", "all", f"{each.met_part:.2%} of {each.met.size}"),
                (f"{name}: requests over a limit", "0", str(each.over_limit)),
                (f"{name}: communication", "0.9 %", f"{runs[name].communication:.2%}"),
            ]
    return [{"": name, "paper": paper, "bursar": value} for name, paper, value in rows]


def _tell_means(found: Findings) -> str:
    return ", ".join(f"{value:.0f}" for value in found.served.mean(axis=0))
