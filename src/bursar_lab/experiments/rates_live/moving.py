"""A tenant that goes from daemon to daemon faster than periods pass, beside one that takes all it gets: the
paper's needles, which a placement by past demand always meets too late."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec

from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import run_plan
from bursar_lab.experiments.rates_live.measures import measure
from bursar_lab.experiments.rates_live.plan import Flow, Plan

SERVERS = ("s1", "s2", "s3", "s4")
RATE = 400.0
PROMISED = 300
MOVES_S = 0.7
LEAST = 285


def make_plan(duration_s: float) -> Plan:
    """`mover` is promised, and limited to, 300 a second; `greedy` has neither, and asks everywhere."""
    flows = [Flow("greedy", server, 0.0, duration_s + 5) for server in SERVERS]
    for number in range(round((duration_s + 5) / MOVES_S)):
        at_s = number * MOVES_S
        flows.append(Flow("mover", SERVERS[number % len(SERVERS)], at_s, at_s + MOVES_S))
    return Plan(
        servers=SERVERS,
        rate=RATE,
        period_s=1.0,
        intervals=5,
        terms={"mover": (PROMISED, PROMISED), "greedy": (0, None)},
        flows=tuple(flows),
        duration_s=duration_s,
        outstanding=20,
        records=500,
    )


def moving(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    plan = make_plan(12.0 if quick else 60.0)
    runs = {"defaults": run_plan(plan), "unpaced": run_plan(msgspec.structs.replace(plan, paced=False))}
    rows: list[dict[str, Any]] = []
    least: dict[str, int] = {}
    for name, outcome in runs.items():
        found = measure(outcome)
        served = found.served[:, 0]
        least[name] = int(served.min())
        rows.append(
            {
                "settings": name,
                "periods": len(found.periods),
                "mover, least": least[name],
                "mover, mean": round(float(served.mean()), 1),
                "mover, most": int(served.max()),
                "over the limit": found.over_limit,
                "cores used": f"{outcome.used:.0%}",
            }
        )
    shown = {name: (outcome, measure(outcome).periods[:4]) for name, outcome in runs.items()}
    over = sum(row["over the limit"] for row in rows)
    bars: list[dict[str, Any]] = [
        {
            "bar": f"told in every period, at least {LEAST}",
            "found": least["defaults"],
            "met": least["defaults"] >= LEAST,
        },
        {"bar": "over the limit, none", "found": over, "met": over == 0},
    ]
    return {
        "table": rows,
        "served": {name: measure(outcome).served[:, 0].tolist() for name, outcome in runs.items()},
        "figures": [figures.draw_periods(out / "rates-moving.png", shown, columns=1)],
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }
