"""What an allocation costs the controller: figures 5 to 7 (sections IV-C and IV-D).

Two programs are measured side by side: the paper's algorithm as it is written, in NumPy
(`rates.reference`), and bursar's own (`bursar.allocation`). The paper's times are from C with
OpenMP on a 20-thread machine.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bursar.allocation.reservations import allocate
from bursar_lab.experiments.instances import Instance, Whole, draw_instance
from bursar_lab.experiments.maxflow import solve_with_ortools, solve_with_scipy
from bursar_lab.experiments.rates import figures
from bursar_lab.experiments.reference import Shifter

Solve = Callable[[Instance], Any]
Point = dict[str, Any]

_ROUNDS = 9
_SLOW_ROUNDS = 3
_MULTIPLES = (1.1, 1.2, 1.3, 1.5, 2.0)
_RESERVED = (1.0, 0.9)
_FULL = {"servers": 64, "tenants": 10_000}
_SMALL = {"servers": 12, "tenants": 300}


def parallel(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 5: time of an allocation by threads, reserved part r and demand multiple m."""
    size = _SMALL if quick else _FULL
    multiples = _MULTIPLES[:2] if quick else _MULTIPLES
    threads = sorted({1, 2, os.cpu_count() or 1})
    fast = {f"bursar, {_count(n)}": _allocate_with(threads=n) for n in threads}
    slow = {f"the paper's algorithm, {_count(n)}": _shift_with(threads=n) for n in threads}
    points: list[Point] = []
    for reserved in _RESERVED:
        for multiple in multiples:
            instance = draw_instance(1, reserved=reserved, multiple=multiple, **size)
            ms = {**time_all(fast, instance, _ROUNDS), **time_all(slow, instance, _SLOW_ROUNDS)}
            points.append({"reserved": reserved, "multiple": multiple, "ms": ms})
    names = [_draw_parallel(out, points, reserved) for reserved in _RESERVED]
    alone, together = ([p["ms"][name] for p in points] for name in (next(iter(slow)), list(slow)[-1]))
    speedup = max(a / b for a, b in zip(alone, together, strict=True))
    return {
        **size,
        "points": points,
        "speedup_of_the_papers_algorithm": {
            "paper": "up to 5 with 12 threads",
            "here": f"up to {speedup:.1f} with {_count(threads[-1])}",
        },
        "figures": names,
        "table": [{"r": p["reserved"], "m": p["multiple"], **_write_times(p["ms"])} for p in points],
    }


def approximation(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 6: shifting only the top M tenants of each server, for several skews of the
    reservations; what is removed is counted against what an exact allocation removes."""
    size = _SMALL if quick else _FULL
    tops = (10, 50) if quick else (100, 200, 500, 1000, 2000, 5000)
    exponents = (0.0, 0.5) if quick else (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    removed = {s: _find_removed(draw_instance(1, exponent=s, **size), tops) for s in exponents}
    ms = _time_tops(draw_instance(1, **size), tops)
    names = _draw_approximation(out, tops, removed, ms)
    heads = [f"M = {top}" for top in tops] + ["all"]
    said = [{500: "over 70 %", 2000: "100 %"}.get(top, "") for top in tops] + ["100 %"]
    rows = {f"removed, s = {s}": [f"{part:.1%}" for part in [*parts, 1.0]] for s, parts in removed.items()}
    rows["removed, says the paper"] = said
    rows |= {f"time, {name}, s = 0.5": [f"{value:.2f} ms" for value in values] for name, values in ms.items()}
    return {
        **size,
        "tops": tops,
        "removed": removed,
        "ms": ms,
        "figures": names,
        "table": [{"": name, **dict(zip(heads, row, strict=True))} for name, row in rows.items()],
    }


def bqueue(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    """Figure 7: the same problems as a maximum flow on the graph of tenants and servers."""
    sizes = (100, 200) if quick else (100, 200, 400, 600, 800, 1000, 10_000)
    servers = 12 if quick else 64
    fast: dict[str, Solve] = {
        "bursar": _allocate_with(),
        "maximum flow, OR-tools": lambda p: solve_with_ortools(p.demand, p.capacity, p.reservation),
        "maximum flow, scipy": lambda p: solve_with_scipy(p.demand, p.capacity, p.reservation),
    }
    slow = {"the paper's algorithm": _shift_with()}
    points: list[Point] = []
    for tenants in sizes:
        instance = draw_instance(1, servers=servers, tenants=tenants)
        ms = {**time_all(fast, instance, _ROUNDS), **time_all(slow, instance, _SLOW_ROUNDS)}
        points.append({"tenants": tenants, "ms": ms})
    lines = {name: (sizes, [p["ms"][name] for p in points]) for name in (*fast, *slow)}
    title = f"One allocation, {servers} servers, r = 1.0, m = 1.1"
    name = figures.draw_lines(
        out / "rates-bqueue.png", lines, x="tenants", y="time (ms)", title=title, log_x=True, log_y=True
    )
    said = {10_000: "2 to 3 minutes"}
    rows = [
        {
            "tenants": p["tenants"],
            **_write_times(p["ms"]),
            "bQueue, says the paper": said.get(p["tenants"], ""),
        }
        for p in points
    ]
    return {"points": points, "figures": [name], "table": rows}


def time_all(solvers: dict[str, Solve], instance: Instance, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turns so that a busy moment hurts all alike; one
    round more comes before, to compile and to warm up."""
    times: dict[str, list[float]] = {name: [] for name in solvers}
    for k in range(rounds + 1):
        for name, solve in solvers.items():
            began = time.perf_counter()
            solve(instance)
            if k > 0:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: float(np.median(values)) for name, values in times.items()}


def count_weak_excess(instance: Instance) -> int:
    """Tokens above capacity after the proportional split: what is placed where there is room
    for everything, and so nothing is shifted."""
    roomy = np.full_like(instance.capacity, instance.reservation.sum())
    load = allocate(instance.demand, roomy, instance.reservation).tokens.sum(axis=0)
    return int(np.maximum(load - instance.capacity, 0).sum())


def _find_removed(instance: Instance, tops: Iterable[int]) -> list[float]:
    before = count_weak_excess(instance)
    left = [int(_allocate_with(top=top)(instance).overloaded.sum()) for top in (*tops, None)]
    return [(before - excess) / max(before - left[-1], 1) for excess in left[:-1]]


def _time_tops(instance: Instance, tops: Iterable[int]) -> dict[str, list[float]]:
    """By program, for each M and at last without it."""
    threads = os.cpu_count() or 1
    ours, theirs = "bursar", f"the paper's algorithm, {_count(threads)}"
    ms: dict[str, list[float]] = {ours: [], theirs: []}
    for top in (*tops, None):
        ms[ours] += time_all({"": _allocate_with(top=top)}, instance, _ROUNDS).values()
        ms[theirs] += time_all({"": _shift_with(threads, top)}, instance, _SLOW_ROUNDS).values()
    return ms


def _allocate_with(**options: Any) -> Solve:
    return lambda p: allocate(p.demand, p.capacity, p.reservation, **options)


def _shift_with(threads: int = 1, top: int | None = None) -> Solve:
    def solve(p: Instance) -> Whole:
        with Shifter(p.demand.toarray(), p.capacity, p.reservation, threads=threads, top=top) as shifter:
            shifter.shift()
            return shifter.tokens

    return solve


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _write_times(ms: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.2f} ms" for name, value in ms.items()}


def _draw_parallel(out: pathlib.Path, points: list[Point], reserved: float) -> str:
    mine = [p for p in points if p["reserved"] == reserved]
    multiples = [p["multiple"] for p in mine]
    lines = {name: (multiples, [p["ms"][name] for p in mine]) for name in mine[0]["ms"]}
    path = out / f"rates-parallel-{reserved:g}.png"
    title = f"One allocation, r = {reserved:g}"
    return figures.draw_lines(
        path, lines, x="demand over reservation (m)", y="time (ms)", title=title, log_y=True
    )


def _draw_approximation(
    out: pathlib.Path, tops: tuple[int, ...], removed: dict[float, list[float]], ms: dict[str, list[float]]
) -> list[str]:
    label = "top tenants of each server (M)"
    shares = {f"s = {s:g}": (tops, [100 * part for part in parts]) for s, parts in removed.items()}
    times = {name: (tops, values[:-1]) for name, values in ms.items()}
    times |= {f"{name}, exact": (tops, [values[-1]] * len(tops)) for name, values in ms.items()}
    titles = ("Weak excess removed, of what can be", "One approximate allocation, r = 1.0, m = 1.1")
    paths = (out / "rates-approximation-removed.png", out / "rates-approximation-time.png")
    return [
        figures.draw_lines(paths[0], shares, x=label, y="removed (%)", title=titles[0], log_x=True),
        figures.draw_lines(paths[1], times, x=label, y="time (ms)", title=titles[1], log_x=True, log_y=True),
    ]
