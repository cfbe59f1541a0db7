"""The paper's four sets of experiments (section III) in virtual time, with the paper's values.

The node is modelled (`node`), the tokens are the real engines and monitor. Counts are thousands of
I/Os in a period of one second.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity, PrintedCapacity
from bursar_lab.experiments.pools.bars import Bar, Findings, at_least, below, check, conclude
from bursar_lab.experiments.pools.figures import draw_clients, draw_lines, draw_totals
from bursar_lab.experiments.pools.node import Node, Pattern, Run, Setup

CAPACITY = 1_570_000
CLIENT = 400_000
TWO_SIDED = 427_000
TWO_SIDED_CLIENT = 327_000
CLIENTS = 10
ZIPF = 0.6
PERIODS = 30
SIGMA = CAPACITY // 50
"""The paper gives no deviation; two per cent."""

DRAWN_MAX = 0.15
"""Larger drops are in the table alone."""


def uniform(part: float) -> list[int]:
    return [int(part * CAPACITY / CLIENTS)] * CLIENTS


def zipf(part: float) -> list[int]:
    """Five groups of two clients, by a Zipf law with exponent 0.6."""
    weights = np.repeat([1 / (group + 1) ** ZIPF for group in range(5)], 2)
    return [int(share) for share in part * CAPACITY * weights / weights.sum()]


def spike(large: int, small: int) -> list[int]:
    return [large] * 3 + [small] * 7


DISTRIBUTIONS = {"Uniform": uniform, "Zipf": zipf}


def simulate(
    reservations: Sequence[int],
    demand: Sequence[int | None],
    periods: int,
    *,
    estimate: Capacity | None = None,
    capacity: float = CAPACITY,
    client: float = CLIENT,
    changed_at_s: float = 1e9,
    changed_to: float = 0.0,
    **options: Any,
) -> Run:
    """One run; without an estimate, bare."""

    def capacity_at(at_s: float) -> float:
        return capacity if at_s < changed_at_s else changed_to

    bare = estimate is None
    setup = Setup(periods, capacity_at, client, reservations, demand, estimate=estimate, bare=bare, **options)
    return Node(setup).run()


def kilo(values: Any) -> list[float]:
    return [round(float(value) / 1000, 1) for value in values]


def met(run: Run, reservations: Sequence[int], skip: int = 1) -> float:
    """Part of client-periods in which the reservation was met."""
    return round(float((run.done[skip:] >= np.array(reservations)).mean()), 4)


def periods_of(quick: bool) -> int:
    return 4 if quick else PERIODS


# -- set 1: the bare system


def one_a(out: pathlib.Path, quick: bool) -> Findings:
    """Figure 6: each client alone, one-sided and two-sided."""
    table, bars = [], {"one-sided": [], "two-sided": []}  # type: ignore[var-annotated]
    for k in range(CLIENTS):
        alone = [None if other == k else 0 for other in range(CLIENTS)]
        one = simulate([0] * CLIENTS, alone, 2).throughput()
        two = simulate([0] * CLIENTS, alone, 2, capacity=TWO_SIDED, client=TWO_SIDED_CLIENT).throughput()
        bars["one-sided"].append(one / 1000)
        bars["two-sided"].append(two / 1000)
        table.append(
            {"client": f"C{k + 1}", "one-sided": one / 1000, "two-sided": two / 1000, "paper": "400 / 327"}
        )
    figure = draw_clients(out / "pools-figure-6.png", {"a client alone": bars})
    return conclude({"table": table, "figures": [figure]})


def one_b(out: pathlib.Path, quick: bool) -> Findings:
    """Figure 7: throughput by the number of active clients."""
    table = []
    for active in range(1, CLIENTS + 1):
        demand = [None if k < active else 0 for k in range(CLIENTS)]
        one = simulate([0] * CLIENTS, demand, 2).throughput() / 1000
        two = (
            simulate([0] * CLIENTS, demand, 2, capacity=TWO_SIDED, client=TWO_SIDED_CLIENT).throughput()
            / 1000
        )
        table.append({"clients": active, "one-sided": one, "two-sided": two})
    lines = {
        kind: ([row["clients"] for row in table], [row[kind] for row in table])
        for kind in ("one-sided", "two-sided")
    }
    figure = draw_lines(
        out / "pools-figure-7.png", {"the data node": lines}, x="active clients", y="K I/Os a second"
    )
    table.append({"clients": 10, "one-sided": 1570.0, "two-sided": 430.0, "whose": "paper"})  # type: ignore[dict-item]
    ratio = table[9]["one-sided"] / table[9]["two-sided"]
    return conclude(
        {"table": table, "figures": [figure]}, at_least("one-sided over two-sided, 10 clients", ratio, 3)
    )


def one_c(out: pathlib.Path, quick: bool) -> Findings:
    """Figure 8: distributions of demand and patterns of requests, without tokens."""
    large, small = 340_000, 80_000
    cases: list[tuple[str, list[int], Pattern, float, float]] = [
        ("uniform, burst", [158_000] * 10, "burst", 1570, 157),
        ("spike, burst", spike(large, small), "burst", 1380, 278),
        ("spike, constant", spike(large, small), "constant", 1564, 332),
    ]
    table, panels = [], {}
    for name, demand, pattern, paper, paper_first in cases:
        run = simulate([0] * CLIENTS, demand, periods_of(quick), pattern=pattern)
        mean = run.done[1:].mean(axis=0)
        panels[name] = {"demand": kilo(demand), "done": kilo(mean)}
        table.append(
            {
                "case": name,
                "total": mean.sum() / 1000,
                "paper's": paper,
                "C1": mean[0] / 1000,
                "paper's C1": paper_first,
            }
        )
    figure = draw_clients(out / "pools-figure-8.png", panels)
    totals = [float(row["total"]) for row in table]
    return conclude(
        {"table": table, "figures": [figure]},
        below("Spike in bursts over Uniform", totals[1] / totals[0], 0.92),
        at_least("Spike at a constant rate over Uniform", totals[2] / totals[0], 0.98),
    )


# -- set 2: tokens


def two_a(out: pathlib.Path, quick: bool) -> Findings:
    """Figure 9: all have demand; 90 % reserved."""
    table: list[dict[str, Any]] = []
    panels = {}
    for name, distribute in DISTRIBUTIONS.items():
        reservations = distribute(0.9)
        demand = [tokens + CAPACITY // 10 for tokens in reservations]
        runs = {
            "bare": simulate(reservations, demand, periods_of(quick)),
            "burst": simulate(reservations, demand, periods_of(quick), estimate=FixedCapacity(CAPACITY)),
            "paced": simulate(
                reservations, demand, periods_of(quick), estimate=FixedCapacity(CAPACITY), paced=True
            ),
        }
        panels[name] = {
            "reservation": kilo(reservations),
            **{key: kilo(run.done[1:].mean(axis=0)) for key, run in runs.items()},
        }
        for key, run in runs.items():
            first = float(run.done[1:, 0].mean()) / reservations[0]
            table.append(
                {
                    "reservations": name,
                    "run": key,
                    "total": run.throughput() / 1000,
                    "met": met(run, reservations),
                    "C1 / reservation": first,
                    "paper": "met, but bare Zipf C1 0.67",
                }
            )
    figure = draw_clients(out / "pools-figure-9.png", panels)
    rows = {(row["reservations"], row["run"]): row for row in table}
    paced = [rows[name, "paced"] for name in panels]
    part = min(row["total"] / rows[row["reservations"], "bare"]["total"] for row in paced)
    return conclude(
        {"table": table, "figures": [figure]},
        at_least("client-periods met, paced engines", min(row["met"] for row in paced), 1.0),
        below("client-periods met, bare, Zipf", rows["Zipf", "bare"]["met"], 1.0),
        at_least("throughput over bare, paced engines", part, 0.97),
    )


def two_b(out: pathlib.Path, quick: bool) -> Findings:
    """Figures 10 and 11: C1 and C2 want half of what they reserved."""
    table: list[dict[str, Any]] = []
    panels, totals = {}, {}
    for name, distribute in DISTRIBUTIONS.items():
        reservations = distribute(0.9)
        demand = [tokens + CAPACITY // 10 for tokens in reservations]
        demand[:2] = [reservations[0] // 2, reservations[1] // 2]
        count = periods_of(quick)
        runs = {
            "bare": simulate(reservations, demand, count),
            "no conversion": simulate(
                reservations, demand, count, estimate=FixedCapacity(CAPACITY), convert=False
            ),
            "conversion": simulate(reservations, demand, count, estimate=FixedCapacity(CAPACITY)),
            "printed formula": simulate(
                reservations, demand, count, estimate=FixedCapacity(CAPACITY), printed=True
            ),
        }
        panels[name] = {
            "reservation": kilo(reservations),
            **{key: kilo(run.done[1:].mean(axis=0)) for key, run in runs.items()},
        }
        totals[name] = {key: run.throughput() / 1000 for key, run in runs.items()}
        bare = totals[name]["bare"]
        for key, value in totals[name].items():
            table.append({"reservations": name, "run": key, "total": value, "of bare": value / bare})
    figures = [
        draw_clients(out / "pools-figure-10.png", panels),
        draw_totals(out / "pools-figure-11.png", totals, "K I/Os a period"),
    ]
    converted = min(each["conversion"] / each["bare"] for each in totals.values())
    basic = max(each["no conversion"] / each["conversion"] for each in totals.values())
    return conclude(
        {"table": table, "figures": figures},
        at_least("conversion over bare", converted, 0.95),
        below("no conversion over conversion", basic, 0.95),
    )


def two_c(out: pathlib.Path, quick: bool) -> Findings:
    """Figure 12: throughput by how much is reserved."""
    parts = (0.5, 0.7, 0.9) if quick else (0.5, 0.6, 0.7, 0.8, 0.9)
    lines: dict[str, tuple[list[float], list[float]]] = {}
    table: list[dict[str, Any]] = []
    for name, distribute in DISTRIBUTIONS.items():
        for engines in ("burst", "paced"):
            xs, ys = [], []
            for part in parts:
                reservations = distribute(part)
                demand = [tokens + int((1 - part) * CAPACITY) for tokens in reservations]
                estimate = FixedCapacity(CAPACITY)
                run = simulate(
                    reservations, demand, periods_of(quick), estimate=estimate, paced=engines == "paced"
                )
                xs.append(100 * part)
                ys.append(run.throughput() / 1000)
                table.append(
                    {
                        "reservations": name,
                        "engines": engines,
                        "reserved": f"{part:.0%}",
                        "total": ys[-1],
                        "met": met(run, reservations),
                    }
                )
            lines[f"{name}, {engines}"] = (xs, ys)
    figure = draw_lines(
        out / "pools-figure-12.png",
        {"throughput with tokens": lines},
        x="reserved (% of capacity)",
        y="K I/Os a period",
    )
    paced = [row for row in table if row["engines"] == "paced"]
    least = min(row["total"] for row in paced) * 1000 / CAPACITY
    return conclude(
        {"table": table, "figures": [figure]},
        at_least("client-periods met, paced engines", min(row["met"] for row in paced), 1.0),
        at_least("throughput over the capacity, paced engines", least, 0.97),
    )


# -- set 3: patterns of requests


def three(out: pathlib.Path, quick: bool) -> Findings:
    """Figures 13 to 15: Spike reservations, burst and constant requests, burst and paced engines."""
    reservations = spike(285_000, 79_000)
    burst = [tokens + CAPACITY // 10 for tokens in reservations]
    constant = [tokens * CAPACITY // sum(reservations) for tokens in reservations]
    count = periods_of(quick)
    runs = {
        "burst": simulate(reservations, burst, count, estimate=FixedCapacity(CAPACITY)),
        "burst, paced engines": simulate(
            reservations, burst, count, estimate=FixedCapacity(CAPACITY), paced=True
        ),
        "constant": simulate(
            reservations, constant, count, pattern="constant", estimate=FixedCapacity(CAPACITY)
        ),
    }
    papers = {"burst": 0.871, "constant": 0.993}
    table, totals, latencies = [], {}, {}
    for name, run in runs.items():
        waits = np.array(run.latencies) * 1000
        latencies[name] = {
            "mean": float(waits.mean()),
            "99 %": float(np.percentile(waits, 99)),
            "99.9 %": float(np.percentile(waits, 99.9)),
        }
        totals[name] = {"K I/Os": run.throughput() / 1000}
        table.append(
            {
                "requests": name,
                "of capacity": run.throughput() / CAPACITY,
                "paper's": papers.get(name, "-"),
                "C1 / reservation": float(run.done[1:, 0].mean()) / reservations[0],
                **{f"{key} ms": value for key, value in latencies[name].items()},
            }
        )
    bars = {
        "reservation": kilo(reservations),
        **{name: kilo(run.done[1:].mean(axis=0)) for name, run in runs.items()},
    }
    figures = [
        draw_clients(out / "pools-figure-13.png", {"Spike reservations": bars}),
        draw_totals(out / "pools-figure-14.png", totals, "K I/Os a period"),
        draw_totals(out / "pools-figure-15.png", latencies, "latency (ms)", log=True),
    ]
    shares = {name: float(run.done[1:, 0].mean()) / reservations[0] for name, run in runs.items()}
    return conclude(
        {"table": table, "figures": figures},
        below("C1 over its reservation, burst", shares["burst"], 1.0),
        at_least("C1 over its reservation, constant", shares["constant"], 1.0),
        at_least("client-periods met, paced engines", met(runs["burst, paced engines"], reservations), 1.0),
    )


# -- set 4: estimation of the capacity


def four(out: pathlib.Path, quick: bool) -> Findings:
    """Figures 16 to 19: congestion that comes, and that goes, at 80 % reserved."""
    count, at = (16, 6) if quick else (PERIODS, 15)
    table: list[dict[str, Any]] = []
    figures = []
    for number, (direction, drops) in enumerate({"comes": (0.05, 0.15, 0.19), "goes": (0.15,)}.items()):
        panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        firsts: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        for name, distribute in DISTRIBUTIONS.items():
            for drop in drops:
                shown = (panels, firsts) if drop <= DRAWN_MAX else ({}, {})
                _follow(name, distribute(0.8), drop, direction, count, at, table, *shown)
        base = 16 + 2 * number
        figures.append(draw_lines(out / f"pools-figure-{base}.png", panels, x="period", y="K I/Os a period"))
        figures.append(
            draw_lines(out / f"pools-figure-{base + 1}.png", firsts, x="period", y="K I/Os of C1 a period")
        )
    return conclude({"table": table, "figures": figures}, *_judge_four(table))


def _follow(
    name: str,
    reservations: list[int],
    drop: float,
    direction: str,
    count: int,
    at: int,
    table: list[dict[str, Any]],
    panels: dict[str, Any],
    firsts: dict[str, Any],
) -> None:
    congested = (1 - drop) * CAPACITY
    before, after = (CAPACITY, congested) if direction == "comes" else (congested, CAPACITY)
    estimates: dict[str, Capacity] = {
        "algorithm 1": PrintedCapacity(int(before), SIGMA),
        "bursar's": AdaptiveCapacity(int(before), SIGMA),
    }
    title = f"{name}, {drop:.0%} {direction}"
    periods = [float(k) for k in range(count)]
    panels[title] = {"_capacity": (periods, [(before if k < at else after) / 1000 for k in range(count)])}
    firsts[title] = {"_reservation": (periods, [reservations[0] / 1000] * count)}
    for who, estimate in estimates.items():
        demand: list[int | None] = [None] * CLIENTS
        run = simulate(
            reservations,
            demand,
            count,
            estimate=estimate,
            capacity=before,
            changed_at_s=float(at),
            changed_to=after,
            paced=True,
        )
        panels[title][who] = (periods, [value / 1000 for value in run.estimates])
        firsts[title][who] = (periods, kilo(run.done[:, 0]))
        table.append(
            {
                "reservations": name,
                "congestion": f"{drop:.0%} {direction}",
                "estimate": who,
                "periods to 2 %": periods_to(run.estimates, after, at),
                "then met": met(run, reservations, at + 6),
                "at the end": run.estimates[-1] / after,
            }
        )


def periods_to(estimates: Sequence[int], capacity: float, at: int) -> int | str:
    """Periods after the change until the estimate is within 2 % of the new capacity."""
    for k, value in enumerate(estimates[at:]):
        if abs(value / capacity - 1) <= 0.02:
            return k
    return "never"


def within(table: Sequence[dict[str, Any]], periods: int, who: str, congestion: Sequence[str]) -> Bar:
    """Whether this estimate took at most so many periods in these cases."""
    rows = [row for row in table if row["estimate"] == who and row["congestion"] in congestion]
    took = [row["periods to 2 %"] for row in rows]
    name = f"{who}, {', '.join(congestion)}: periods to within 2 % (at most {periods})"
    return check(name, str(took), all(each != "never" and each <= periods for each in took))


def _judge_four(table: Sequence[dict[str, Any]]) -> list[Bar]:
    """What the estimates must show; 3 deviations are 6 %, and 20 % are not reserved."""
    # After 19 % nearly all of the node is reserved, and whatever the estimate tries out is missed.
    own = [
        row["then met"]
        for row in table
        if row["estimate"] == "bursar's" and not row["congestion"].startswith("19")
    ]
    return [
        within(table, 6, "algorithm 1", ("5% comes",)),
        within(table, 3, "bursar's", ("5% comes", "15% comes", "19% comes")),
        within(table, 15, "bursar's", ("15% goes",)),
        at_least("client-periods met with bursar's from the 6th period on, up to 15 %", min(own), 0.99),
    ]
