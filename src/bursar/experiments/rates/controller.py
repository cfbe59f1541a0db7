"""What an allocation costs the controller: figures 5 to 7 (sections IV-C and IV-D).

Two programs are measured side by side: the paper's algorithm as it is written, in NumPy
(`rates.reference`), and bursar's own (`rates.allocation`). The paper's times are from C with
OpenMP on a 20-thread machine.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bursar.experiments.instances import Instance, Whole, draw_instance
from bursar.experiments.maxflow import solve_with_ortools, solve_with_scipy
from bursar.experiments.rates import figures
from bursar.rates.allocation import allocate
from bursar.rates.reference import Shifter, split_in_proportion

Solve = Callable[[Instance], Any]
Point = dict[str, Any]

_ROUNDS = 9
_MULTIPLES = (1.1, 1.2, 1.3, 1.5, 2.0)


def parallel(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 5: time of an allocation by threads, reserved part r and demand multiple m."""
    tenants = 500 if quick else 10_000
    threads = sorted({1, 2, os.cpu_count() or 1})
    points: list[Point] = []
    for reserved in (1.0, 0.9):
        for multiple in _MULTIPLES[:2] if quick else _MULTIPLES:
            instance = draw_instance(1, tenants=tenants, reserved=reserved, multiple=multiple)
            solvers = {f"bursar, {n} threads": _allocate_with(threads=n) for n in threads}
            slow = {f"the paper's algorithm, {n} threads": _shift_with(threads=n) for n in threads}
            times = {**time_all(solvers, instance, _ROUNDS), **time_all(slow, instance, 1)}
            points.append({"reserved": reserved, "multiple": multiple, "ms": times})
    names = [_draw_parallel(out, points, reserved) for reserved in (1.0, 0.9)]
    head = ["r", "m", *points[0]["ms"]]
    rows = [
        [f"{p['reserved']}", f"{p['multiple']}", *(f"{ms:.2f} ms" for ms in p["ms"].values())] for p in points
    ]
    speedup = [p["ms"][f"the paper's algorithm, {threads[0]} threads"] /
               p["ms"][f"the paper's algorithm, {threads[-1]} threads"] for p in points]  # fmt: skip
    summary = ["speedup of the paper's algorithm", "up to 5 with 12 threads (paper)",
               f"up to {max(speedup):.1f} with {threads[-1]} threads"]  # fmt: skip
    return {"tenants": tenants, "points": points, "figures": names, "table": [head, *rows, summary]}


def approximation(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 6: shifting only the top M tenants of each server, for several skews of the
    reservations; what is removed is counted against what an exact allocation removes."""
    tenants = 500 if quick else 10_000
    tops = (10, 50) if quick else (100, 200, 500, 1000, 2000, 5000)
    exponents = (0.0, 0.5) if quick else (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    points: list[Point] = []
    for exponent in exponents:
        instance = draw_instance(1, tenants=tenants, exponent=exponent)
        before = count_weak_excess(instance)
        removable = before - int(_allocate_with()(instance).overloaded.sum())
        for top in tops:
            removed = before - int(_allocate_with(top=top)(instance).overloaded.sum())
            ms = time_all({"bursar": _allocate_with(top=top)}, instance, _ROUNDS)["bursar"]
            points.append({"exponent": exponent, "top": top, "removable": removable,
                           "removed": removed / max(removable, 1), "ms": ms})  # fmt: skip
    exact = draw_instance(1, tenants=tenants)
    exact_ms = time_all({"bursar": _allocate_with()}, exact, _ROUNDS)["bursar"]
    reference = _time_reference_tops(exact, tops)
    names = _draw_approximation(out, points, tops, reference)
    head = ["removed of the removable weak excess", *(f"M = {top}" for top in tops)]
    rows = [[f"s = {s}", *(f"{p['removed']:.1%}" for p in points if p["exponent"] == s)] for s in exponents]
    paper = ["the paper says", *("" for _ in tops)]
    for k, top in enumerate(tops):
        paper[k + 1] = {500: "over 70 %", 2000: "all"}.get(top, "")
    times = [
        [f"time of {name}", *(f"{value:.2f} ms" for value in values)] for name, values in reference.items()
    ]
    return {"tenants": tenants, "points": points, "exact_ms": exact_ms, "reference_ms": reference,
            "figures": names, "table": [head, *rows, paper, *times]}  # fmt: skip


def bqueue(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 7: the same problems as a maximum flow on the graph of tenants and servers."""
    sizes = (100, 200) if quick else (100, 200, 400, 600, 800, 1000, 10_000)
    points: list[Point] = []
    for tenants in sizes:
        instance = draw_instance(1, tenants=tenants)
        fast = {
            "bursar": _allocate_with(),
            "maximum flow, OR-tools": lambda p: solve_with_ortools(p.demand, p.capacity, p.reservation),
            "maximum flow, scipy": lambda p: solve_with_scipy(p.demand, p.capacity, p.reservation),
        }
        times = time_all(fast, instance, _ROUNDS)
        times |= time_all({"the paper's algorithm": _shift_with()}, instance, 1)
        points.append({"tenants": tenants, "ms": times})
    lines = {
        name: ([p["tenants"] for p in points], [p["ms"][name] for p in points]) for name in points[0]["ms"]
    }
    name = figures.draw_lines(out / "rates-bqueue.png", lines, x="tenants", y="time (ms)", log_x=True,
                              log_y=True, title="One allocation, 64 servers, r = 1.0, m = 1.1")  # fmt: skip
    head = ["tenants", *points[0]["ms"], "bQueue in the paper"]
    rows = [
        [f"{p['tenants']:,}", *(f"{ms:.2f} ms" for ms in p["ms"].values()),
         "2 to 3 minutes" if p["tenants"] == 10_000 else "grows quadratically"]
        for p in points
    ]  # fmt: skip
    return {"points": points, "figures": [name], "table": [head, *rows]}


def time_all(solvers: dict[str, Solve], instance: Instance, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turns so that a busy moment hurts all alike; one
    round before to compile and to warm up, where there is more than one."""
    times: dict[str, list[float]] = {name: [] for name in solvers}
    for k in range(rounds + (rounds > 1)):
        for name, solve in solvers.items():
            began = time.perf_counter()
            solve(instance)
            if k > 0 or rounds == 1:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: float(np.median(values)) for name, values in times.items()}


def count_weak_excess(instance: Instance) -> int:
    """Tokens above capacity after the proportional split, before anything is shifted."""
    load = split_in_proportion(instance.demand.toarray(), instance.reservation).sum(axis=0)
    return int(np.maximum(load - instance.capacity, 0).sum())


def _allocate_with(**options: Any) -> Solve:
    return lambda p: allocate(p.demand, p.capacity, p.reservation, **options)


def _shift_with(threads: int = 1, top: int | None = None) -> Solve:
    def solve(p: Instance) -> Whole:
        with Shifter(p.demand.toarray(), p.capacity, p.reservation, threads=threads, top=top) as shifter:
            shifter.shift()
            return shifter.tokens

    return solve


def _time_reference_tops(instance: Instance, tops: tuple[int, ...]) -> dict[str, list[float]]:
    threads = os.cpu_count() or 1
    found: dict[str, list[float]] = {
        "bursar, exponent 0.5": [],
        f"the paper's algorithm, {threads} threads": [],
    }
    for top in tops:
        ours = time_all({"": _allocate_with(top=top)}, instance, _ROUNDS)[""]
        theirs = time_all({"": _shift_with(threads, top)}, instance, 1)[""]
        for values, ms in zip(found.values(), (ours, theirs), strict=True):
            values.append(ms)
    return found


def _draw_parallel(out: pathlib.Path, points: list[Point], reserved: float) -> str:
    mine = [p for p in points if p["reserved"] == reserved]
    lines = {name: ([p["multiple"] for p in mine], [p["ms"][name] for p in mine]) for name in mine[0]["ms"]}
    path = out / f"rates-parallel-{reserved:g}.png"
    title = f"One allocation, r = {reserved:g}"
    return figures.draw_lines(
        path, lines, x="demand over reservation (m)", y="time (ms)", title=title, log_y=True
    )


def _draw_approximation(
    out: pathlib.Path, points: list[Point], tops: tuple[int, ...], reference: dict[str, list[float]]
) -> list[str]:
    removed = {}
    for exponent in sorted({p["exponent"] for p in points}):
        shares = [100 * p["removed"] for p in points if p["exponent"] == exponent]
        removed[f"s = {exponent:g}"] = (tops, shares)
    times = {name: (tops, values) for name, values in reference.items()}
    label = "top tenants of each server (M)"
    return [
        figures.draw_lines(out / "rates-approximation-removed.png", removed, x=label, log_x=True,
                           y="removed (%)", title="Weak excess removed, of what can be"),
        figures.draw_lines(out / "rates-approximation-time.png", times, x=label, log_x=True, log_y=True,
                           y="time (ms)", title="One approximate allocation, r = 1.0, m = 1.1"),
    ]  # fmt: skip
