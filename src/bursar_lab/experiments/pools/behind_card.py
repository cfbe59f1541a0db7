"""The paper's sets 2 to 4 with real processes, behind a card that stands in for the node's own.

Ten clients, a tenth of the paper's rates: the card passes 157,000 I/Os a second and a client 40,000, far
below what two processors carry (each table says how much of them was used). So what clients contend for
is the card, whose capacity holds still, as the paper's did. `live` has what happens without one.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bursar_lab.experiments.pools.bars import Findings, at_least, below, conclude
from bursar_lab.experiments.pools.card_node import (
    RATE,
    CardNode,
    Demand,
    Measured,
    measure_profile,
    open_node,
)
from bursar_lab.experiments.pools.figures import draw_clients, draw_lines, draw_totals
from bursar_lab.experiments.pools.place import WARM_UP
from bursar_lab.experiments.pools.simulated import (
    CAPACITY,
    CLIENTS,
    SIGMA,
    kilo,
    periods_to,
    spike,
    within,
    zipf,
)

PROFILE_S = 8.0
CONGESTION = (("5% comes", 1.0, 0.95), ("15% comes", 1.0, 0.85), ("15% goes", 0.85, 1.0))
ESTIMATES = {"algorithm 1": "printed", "bursar's": "adaptive"}


def scaled(reservations: Sequence[int], capacity: int) -> list[int]:
    """The paper's reservations, for this capacity."""
    return [tokens * capacity // CAPACITY for tokens in reservations]


def _lengths(quick: bool, seconds: float) -> tuple[float, float]:
    """Of the profile and of a run."""
    return (3.0, 6.0) if quick else (PROFILE_S, seconds)


def _draw(path: pathlib.Path, title: str, reservations: Sequence[int], runs: Mapping[str, Measured]) -> str:
    """What each client reserved, and what it got in each run."""
    series = {"reservation": kilo(reservations), **{name: kilo(run.means()) for name, run in runs.items()}}
    return draw_clients(path, {title: series})


def two_a(out: pathlib.Path, quick: bool) -> Findings:
    """90 % reserved, Zipf, everyone has demand (figure 9)."""
    profile_s, seconds = _lengths(quick, 30.0)
    with open_node() as node:
        profile = measure_profile(node, profile_s)
        capacity = int(profile.capacity)
        reservations = scaled(zipf(0.9), capacity)
        demand: Demand = [tokens + capacity // 10 for tokens in reservations]
        runs = {
            "bare": node.run_bare(demand, seconds),
            "burst engines": node.run_tokens(reservations, demand, seconds, capacity, paced=False),
            "paced engines": node.run_tokens(reservations, demand, seconds, capacity),
        }
    bare, paced = runs["bare"], runs["paced engines"]
    figure = _draw(out / "pools-live-2a.png", "90 % reserved, Zipf", reservations, runs)
    table = [
        {
            "run": name,
            "total": round(run.total()),
            "of bare": run.total() / bare.total(),
            "met": run.met(reservations),
            "C1 / reservation": float(run.means()[0]) / reservations[0],
            "C1, least": float(run.done[0].min()) / reservations[0],
            "periods": run.done.shape[1],
            "processors used": run.processors,
        }
        for name, run in runs.items()
    ]
    return conclude(
        {
            "table": table,
            "profile": {"client": profile.client, "capacity": profile.capacity, "sigma": profile.sigma},
            "reservations": reservations,
            "figures": [figure],
        },
        at_least("client-periods met, paced engines", paced.met(reservations), 0.99),
        below("C1 over its reservation, bare", float(bare.means()[0]) / reservations[0], 1.0),
        at_least("throughput over bare, paced engines", paced.total() / bare.total(), 0.97),
        at_least("periods after the warm-up", paced.done.shape[1], 1 if quick else 20),
    )


def two_b(out: pathlib.Path, quick: bool) -> Findings:
    """C1 and C2 want half of what they reserved (figures 10 and 11)."""
    profile_s, seconds = _lengths(quick, 24.0)
    with open_node() as node:
        capacity = int(measure_profile(node, profile_s).capacity)
        reservations = scaled(zipf(0.9), capacity)
        demand: list[int | None] = [tokens + capacity // 10 for tokens in reservations]
        demand[:2] = [reservations[0] // 2, reservations[1] // 2]
        runs = {
            "bare": node.run_bare(demand, seconds),
            "conversion": node.run_tokens(reservations, demand, seconds, capacity),
            "no conversion": node.run_tokens(
                reservations, demand, seconds, capacity, monitor={"convert": False}
            ),
        }
    totals = {name: run.total() for name, run in runs.items()}
    table = [
        {
            "run": name,
            "total": round(totals[name]),
            "of bare": totals[name] / totals["bare"],
            "met by those who want it": float((run.done[2:] >= np.array(reservations)[2:, None]).mean()),
            "processors used": run.processors,
        }
        for name, run in runs.items()
    ]
    figures = [
        _draw(out / "pools-live-2b.png", "C1 and C2 want half", reservations, runs),
        draw_totals(out / "pools-live-2b-totals.png", {"all clients": totals}, "I/Os a period"),
    ]
    return conclude(
        {"table": table, "figures": figures},
        at_least("conversion over bare", totals["conversion"] / totals["bare"], 0.95),
        below("no conversion over conversion", totals["no conversion"] / totals["conversion"], 0.95),
    )


def three(out: pathlib.Path, quick: bool) -> Findings:
    """Spike reservations; requests in bursts and at an even pace; burst and paced engines (figure 13)."""
    profile_s, seconds = _lengths(quick, 24.0)
    with open_node() as node:
        capacity = int(measure_profile(node, profile_s).capacity)
        reservations = scaled(spike(285_000, 79_000), capacity)
        burst: Demand = [tokens + capacity // 10 for tokens in reservations]
        even: Demand = [tokens * capacity // sum(reservations) for tokens in reservations]
        runs = {
            "burst": node.run_tokens(reservations, burst, seconds, capacity, paced=False),
            "burst, paced engines": node.run_tokens(reservations, burst, seconds, capacity),
            "constant": node.run_tokens(reservations, even, seconds, capacity, paced=False, even=True),
        }
    papers = {"burst": 0.871, "constant": 0.993}
    table: list[dict[str, Any]] = [
        {
            "requests": name,
            "of capacity": run.total() / capacity,
            "paper's": papers.get(name, "-"),
            "C1 / reservation": float(run.means()[0]) / reservations[0],
            "met": run.met(reservations),
            "processors used": run.processors,
        }
        for name, run in runs.items()
    ]
    figure = _draw(out / "pools-live-3.png", "Spike reservations", reservations, runs)
    paced = runs["burst, paced engines"]
    return conclude(
        {"table": table, "figures": [figure]},
        at_least("client-periods met, paced engines", paced.met(reservations), 0.99),
        at_least("C1 over its reservation, constant", table[2]["C1 / reservation"], 1.0),
    )


def four(out: pathlib.Path, quick: bool) -> Findings:
    """The card slows down, or recovers, in the middle of a run; 80 % reserved, Zipf (set 4)."""
    seconds = 20.0 if quick else 36.0
    table: list[dict[str, Any]] = []
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    with open_node() as node:
        for congestion, before, after in CONGESTION:
            panels[congestion] = {}
            for who, estimate in ESTIMATES.items():
                row, estimates = _follow(node, seconds, before, after, estimate)
                table.append({"congestion": congestion, "estimate": who, **row})
                periods = [float(k) for k in range(len(estimates))]
                panels[congestion][who] = (periods, kilo(estimates))
            changed = int(seconds) // 2 - WARM_UP
            rates = [(before if period < changed else after) * RATE for period in periods]
            panels[congestion]["_capacity"] = (periods, kilo(rates))
    figure = draw_lines(out / "pools-live-4.png", panels, x="period", y="K I/Os a period")
    own = [row["then met"] for row in table if row["estimate"] == "bursar's"]
    return conclude(
        {"table": table, "figures": [figure]},
        within(table, 6, "algorithm 1", ("5% comes",)),
        within(table, 3, "bursar's", ("5% comes", "15% comes")),
        within(table, 15, "bursar's", ("15% goes",)),
        at_least("client-periods met with bursar's from the 6th period on", min(own), 0.99),
    )


def _follow(
    node: CardNode, seconds: float, before: float, after: float, estimate: str
) -> tuple[dict[str, Any], Sequence[int]]:
    """One run; a row of the table, and the estimates."""
    reservations = scaled(zipf(0.8), RATE)
    node.card.set_rate(int(before * RATE))
    run = node.run_tokens(
        reservations,
        [None] * CLIENTS,
        seconds,
        int(before * RATE),
        changed_to=int(after * RATE),
        monitor={"estimate": estimate, "sigma": RATE * SIGMA // CAPACITY},
    )
    changed = int(seconds) // 2 - WARM_UP
    then = run.done[:, changed + 6 :] >= np.array(reservations)[:, None]
    row = {
        "periods to 2 %": periods_to(run.estimates, after * RATE, changed),
        "then met": float(then.mean()),
        "at the end": run.estimates[-1] / (after * RATE),
        "processors used": run.processors,
    }
    return row, run.estimates
