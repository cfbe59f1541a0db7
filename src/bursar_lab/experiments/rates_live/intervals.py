"""Fixed intervals beside intervals that adapt (the paper's future work, section VI)."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import msgspec

from bursar_lab.experiments.rates_live.cluster import Outcome, run_plan
from bursar_lab.experiments.rates_live.dynamic import LIMIT_OVER_RESERVATION
from bursar_lab.experiments.rates_live.measures import measure
from bursar_lab.experiments.rates_live.plan import Flow, Plan, draw_moves

SERVERS = tuple(f"s{k}" for k in range(1, 5))
TENANTS = tuple(f"t{k}" for k in range(1, 9))
SEED = 6


def make_plan(rate: float, periods: int) -> Plan:
    """Demand rests, then every tenant moves about once a period for an eighth of the run, then it
    rests again."""
    reservation = int(0.7 * rate * len(SERVERS) / len(TENANTS))
    duration_s = periods * 1.01 + 2.0
    from_s, to_s = duration_s * 7 / 16, duration_s * 9 / 16
    chance = random.Random(SEED)
    moving = draw_moves(chance, iter(TENANTS), SERVERS, ends_s=to_s - from_s, every_s=1.0)
    flows = [
        msgspec.structs.replace(flow, begins_s=flow.begins_s + from_s, ends_s=flow.ends_s + from_s)
        for flow in moving
    ]
    for begins_s, ends_s in ((0.0, from_s), (to_s, duration_s + 5.0)):
        for tenant in TENANTS:
            flows += [Flow(tenant, server, begins_s, ends_s) for server in chance.sample(SERVERS, 2)]
    return Plan(
        servers=SERVERS,
        rate=rate,
        period_s=1.0,
        intervals=5,
        terms={tenant: (reservation, int(LIMIT_OVER_RESERVATION * reservation)) for tenant in TENANTS},
        flows=tuple(flows),
        duration_s=duration_s,
        records=500,
        seed=SEED,
    )


def intervals(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    plan = make_plan(400.0, 8 if quick else 40)
    runs = {
        "fixed, a fifth of the period": run_plan(plan),
        "adaptive": run_plan(msgspec.structs.replace(plan, adaptive=True)),
    }
    rows = [_describe(name, outcome) for name, outcome in runs.items()]
    fixed, adaptive = rows
    return {
        "server_rate": plan.rate,
        "seed": SEED,
        "runs": rows,
        "messages_saved": 1.0 - adaptive["messages a period"] / fixed["messages a period"],
        "table": rows,
    }


def _describe(name: str, outcome: Outcome) -> dict[str, Any]:
    found = measure(outcome)
    periods = max(1, len(outcome.openings))
    return {
        "intervals": name,
        "rounds a period": outcome.talk.rounds / periods,
        "messages a period": outcome.talk.messages / periods,
        "reservations met": f"{found.met_part:.2%} of {found.met.size}",
        "nobody could have met": found.infeasible,
        "over a limit": found.over_limit,
    }
