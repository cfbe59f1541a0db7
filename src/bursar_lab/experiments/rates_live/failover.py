"""kill -9 under load: first the leading controller, then a server, which later comes back."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live import figures
from bursar_lab.experiments.rates_live.cluster import Cluster, Outcome, run_plan
from bursar_lab.experiments.rates_live.measures import MET
from bursar_lab.experiments.rates_live.plan import Flow, Plan

SESSION_TIMEOUT_S = 2.0
LATE_S = 0.25
"""What a busy machine may add to any bound."""

SERVERS = ("s1", "s2", "s3")
CONTROLLER_KILLED_S = 4.2
SERVER_KILLED_S = 11.0
VICTIM = "s3"


def make_plan(duration_s: float = 16.0, rate: float = 400.0) -> Plan:
    """`alone` has no server but the one that is killed; the others' reservations fit on the two
    that stay."""
    flows = [Flow("alone", VICTIM, 0.0, duration_s + 60)]
    flows += [
        Flow(tenant, server, 0.0, duration_s + 60) for tenant in ("gold", "silver") for server in SERVERS
    ]
    return Plan(
        servers=SERVERS,
        rate=rate,
        period_s=1.0,
        intervals=5,
        terms={
            "gold": (round(rate * 1.0), round(rate * 1.5)),
            "silver": (round(rate * 0.6), round(rate * 0.9)),
            "alone": (round(rate * 0.25), None),
        },
        flows=tuple(flows),
        duration_s=duration_s,
        records=500,
        session_timeout_s=SESSION_TIMEOUT_S,
    )


def kill_both(cluster: Cluster) -> None:
    cluster.wait_until(CONTROLLER_KILLED_S)
    cluster.kill(cluster.find_leader())
    cluster.wait_until(SERVER_KILLED_S)
    cluster.kill(VICTIM)


def failover(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The timeline, what the tenants were served in each period, and the bounds."""
    plan = make_plan()
    outcome = run_plan(plan, controllers=2, during=kill_both)
    return {**judge(outcome), "figures": [draw(out / "rates-failover.png", outcome)]}


def judge(outcome: Outcome) -> dict[str, Any]:
    plan = outcome.plan
    killed_at, lost_at = (at for _, at in outcome.events)
    guarded_ns = plan.period_ns * (1_000_000 + plan.drift_ppm) // (1_000_000 - plan.drift_ppm)
    bound_s = plan.session_timeout_s + guarded_ns / SECOND_NS
    first = min(period for period, at in outcome.openings.items() if at > killed_at + plan.period_ns // 2)
    opened_s = (outcome.openings[first] - killed_at) / SECOND_NS
    after_server = min(period for period, at in outcome.openings.items() if at > lost_at)
    rows, missed = [], 0
    limits_hold = True
    for period, at in sorted(outcome.openings.items()):
        ended = at + plan.period_ns > outcome.ended_at
        served = dict(zip(plan.tenants, map(int, outcome.charged[period]), strict=True))
        for tenant, (reservation, limit) in plan.terms.items():
            limits_hold &= limit is None or served[tenant] <= limit
            settled = first <= period < after_server - 1 or period > after_server
            if settled and not ended and served[tenant] < np.ceil(MET * reservation):
                missed += tenant != "alone" or period < after_server
        rows.append({"period": period, "opened (s)": round((at - outcome.began_at) / SECOND_NS, 2), **served})
    return {
        "bound_s": bound_s,
        "opened_after_kill_s": opened_s,
        "first_period_after_take_over": first,
        "limits_hold": limits_hold,
        "reservations_missed": missed,
        "events": [(text, (at - outcome.began_at) / SECOND_NS) for text, at in outcome.events],
        "epochs": sorted({opening.epoch for opening in outcome.leaders}),
        "cpu_used": outcome.used,
        "table": _print(plan, outcome, rows, opened_s, bound_s, missed, limits_hold),
        "ok": limits_hold and missed == 0 and opened_s <= bound_s + LATE_S,
    }


def _print(
    plan: Plan,
    outcome: Outcome,
    rows: list[dict[str, Any]],
    opened_s: float,
    bound_s: float,
    missed: int,
    limits_hold: bool,
) -> str:
    """The timeline as text: periods, and between them what happened."""
    happened = [((at - outcome.began_at) / SECOND_NS, text) for text, at in outcome.events]
    happened += [
        ((opening.at - outcome.began_at) / SECOND_NS, f"epoch {opening.epoch} leads")
        for opening in outcome.leaders
        if opening == min((o for o in outcome.leaders if o.epoch == opening.epoch), key=lambda o: o.at)
    ]
    lines = [(row["opened (s)"], _line(row, plan)) for row in rows]
    lines += [(at_s, f"{at_s:8.2f} s  -- {text}") for at_s, text in happened]
    terms = ", ".join(f"{t} {r} to {limit or 'any'}" for t, (r, limit) in plan.terms.items())
    return "\n".join(
        [
            f"promised a period: {terms}; servers of {plan.rate:.0f} a second",
            *(text for _, text in sorted(lines)),
            f"first period after the leader's death: {opened_s:.2f} s (bound {bound_s:.2f} s: "
            "session timeout + T(1 + rho))",
            f"limits by ground truth: {'never passed' if limits_hold else 'PASSED'}; "
            f"reservations missed once taken over: {missed}",
        ]
    )


def _line(row: dict[str, Any], plan: Plan) -> str:
    served = "  ".join(f"{tenant} {row[tenant]:4}" for tenant in plan.tenants)
    return f"{row['opened (s)']:8.2f} s  period {row['period']:3}   {served}"


def draw(path: pathlib.Path, outcome: Outcome) -> str:
    marks = [(text, (at - outcome.began_at) / SECOND_NS) for text, at in outcome.events]
    epochs: dict[int, float] = {}
    for opening in outcome.leaders:
        epochs.setdefault(opening.epoch, (opening.at - outcome.began_at) / SECOND_NS)
    marks += [(f"epoch {epoch} leads", at_s) for epoch, at_s in epochs.items() if at_s > 0]
    return figures.draw_timeline(path, outcome, marks)
