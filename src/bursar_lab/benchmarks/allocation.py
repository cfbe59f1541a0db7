"""bursar's allocation beside two maximum-flow solvers and the paper's algorithm as written.

All solve the same problems in turn, in one process, on one core: OR-tools' SimpleMaxFlow and
scipy's maximum_flow with the building of their graphs, bursar with the checking of its input; from
the same CSR array to a CSR array of tokens. Each answer's Phi is compared. What counts is the
ratio: the faster of the two solvers over bursar, medians over all rounds.

Milliseconds are of processor time: none of these uses a second thread, and what else the machine
does then disturbs less. Only where two threads are compared with one, it is time on the clock.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bursar.allocation.reservations import allocate
from bursar_lab.experiments.instances import Instance, draw_instance
from bursar_lab.experiments.maxflow import solve_with_ortools, solve_with_scipy
from bursar_lab.experiments.reference import allocate_as_written

HARD_RATIO_MIN = 1 / 1.25
CHANGED_PARTS = (0.01, 0.1, 0.4)
_LARGE_BLOCK_BYTES = 30_000_000

Solver = Callable[[Instance], int]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Problems of one kind: `settings` for `draw_instance`, one problem a seed, each solved
    `rounds` times by every solver in turn. The targets, where there are any."""

    name: str
    settings: dict[str, Any]
    seeds: int
    rounds: int
    milliseconds_max: float | None = None
    ratio_min: float | None = None


def run(quick: bool) -> dict[str, Any]:
    """Measure; return the rows as `table`, and in `ok` whether every target was met."""
    _warm_up()
    rows = []
    for case in [*_sizes(quick), *_hard_grid(quick)]:
        print(f"  {case.name}", file=sys.stderr, flush=True)
        rows.append(_measure(case))
    rows += _measure_extras(quick)
    missed = [row["case"] for row in rows if row["target"].startswith("missed")]
    return {"table": rows, "ok": not missed, "missed": missed}


def _sizes(quick: bool) -> Iterator[Case]:
    seeds, rounds = (3, 5) if quick else (20, 5)
    yield Case("64 x 10,000, r 1.0 m 1.1", {}, seeds, rounds, 1.2, 5.0)
    yield Case("64 x 10,000, r 1.0 m 1.5", {"multiple": 1.5}, seeds, rounds)
    yield Case("64 x 10,000, r 0.9 m 1.1", {"reserved": 0.9}, seeds, rounds)
    if not quick:
        yield Case("64 x 100,000, r 1.0 m 1.1", {"tenants": 100_000}, 5, 3, None, 12.0)
        yield Case(
            "1000 x 1,000,000, r 1.0 m 1.1", {"servers": 1000, "tenants": 1_000_000}, 1, 3, 150.0, 15.0
        )


def _hard_grid(quick: bool) -> Iterator[Case]:
    """Few active servers, hot servers, uneven capacity, many servers."""
    tight, loose = {"reserved": 1.0, "multiple": 1.1}, {"reserved": 0.8, "multiple": 2.0}
    between = {"reserved": 1.0, "multiple": 1.5}
    cases = product((64, 1000), (2, 8), (0.0, 0.8), (0.0, 0.7), (tight, between, loose))
    for number, (servers, active, heat, unevenness, load) in enumerate(cases):
        if quick and number % 6:
            continue
        settings = {"servers": servers, "active": active, "heat": heat, "unevenness": unevenness, **load}
        name = f"{servers} x 10,000, {active} active, r {load['reserved']} m {load['multiple']}"
        name += (", hot" if heat else "") + (", uneven" if unevenness else "")
        yield Case(name, settings, 1, 5 if quick else 15, None, HARD_RATIO_MIN)


def _solve(instance: Instance) -> int:
    return allocate(instance.demand, instance.capacity, instance.reservation).effective


def _solve_with_ortools(instance: Instance) -> int:
    return solve_with_ortools(instance.demand, instance.capacity, instance.reservation).effective


def _solve_with_scipy(instance: Instance) -> int:
    return solve_with_scipy(instance.demand, instance.capacity, instance.reservation).effective


SOLVERS: dict[str, Solver] = {
    "bursar": _solve,
    "OR-tools": _solve_with_ortools,
    "scipy": _solve_with_scipy,
}


def _warm_up() -> None:
    """Compile before anything is timed, and bring the process into the state of one that has run
    for long: once a large block was freed, the C library keeps memory instead of returning it to
    the kernel after each call, for all solvers alike."""
    np.empty(_LARGE_BLOCK_BYTES, np.uint8)
    instance = draw_instance(0, tenants=2000)
    first = allocate(instance.demand, instance.capacity, instance.reservation)
    allocate(instance.demand, instance.capacity, instance.reservation, previous=first, threads=2)
    _solve_with_ortools(instance)
    _solve_with_scipy(instance)


def _measure(case: Case) -> Row:
    times: dict[str, list[float]] = {name: [] for name in SOLVERS}
    for seed in range(case.seeds):
        gc.collect()
        instance = draw_instance(seed, **case.settings)
        for _ in range(case.rounds):
            _time_each(instance, times)
    return _describe(case, {name: statistics.median(taken) for name, taken in times.items()})


def _time_each(instance: Instance, times: dict[str, list[float]]) -> None:
    answers = {}
    for name, solve in SOLVERS.items():
        gc.disable()
        start_ns = time.thread_time_ns()
        answers[name] = solve(instance)
        times[name].append((time.thread_time_ns() - start_ns) / 1e6)
        gc.enable()
    if len(set(answers.values())) != 1:
        raise AssertionError(f"the solvers disagree on Phi: {answers}")


def _describe(case: Case, medians: dict[str, float]) -> Row:
    ratio = min(medians["OR-tools"], medians["scipy"]) / medians["bursar"]
    targets = []
    if case.milliseconds_max is not None:
        targets.append((f"at most {case.milliseconds_max} ms", medians["bursar"] <= case.milliseconds_max))
    if case.ratio_min is not None:
        targets.append((f"ratio at least {case.ratio_min:g}", ratio >= case.ratio_min))
    return {
        "case": case.name,
        **{f"{name} ms": round(taken, 3) for name, taken in medians.items()},
        "ratio": round(ratio, 2),
        "target": _judge(targets),
    }


def _judge(targets: list[tuple[str, bool]]) -> str:
    if not targets:
        return ""
    met = all(reached for _, reached in targets)
    return ("met: " if met else "missed: ") + ", ".join(text for text, _ in targets)


# --- warm start, top M, two threads, the dense map ---------------------------------------------


def _measure_extras(quick: bool) -> list[Row]:
    """Beside a cold, exact start on one thread; `ratio` is that over this."""
    rounds = 7 if quick else 25
    small, large = draw_instance(1), draw_instance(1, tenants=20_000 if quick else 100_000)
    rows = [_measure_warm(multiple, part, rounds) for multiple in (1.1, 1.5) for part in CHANGED_PARTS]
    for top in (500, 2000):
        rows.append(_compare(f"64 x 10,000, top {top}", small, {"top": top}, rounds))
    rows.append(_compare("64 x 10,000, two threads", small, {"threads": 2}, rounds))
    name = f"64 x {large.reservation.size:,}, two threads"
    rows.append(_compare(name, large, {"threads": 2}, rounds))
    rows.append(_measure_dense(small, 1 if quick else 3))
    return rows


def _measure_warm(multiple: float, part: float, rounds: int) -> Row:
    rng = np.random.default_rng(3)
    before = draw_instance(1, multiple=multiple)
    previous = allocate(before.demand, before.capacity, before.reservation)
    demand = before.demand.copy()
    cells = demand.data.reshape(before.reservation.size, -1)
    changed = np.flatnonzero(rng.random(cells.shape[0]) < part)
    cells[changed] = rng.permuted(cells[changed], axis=1)
    after = Instance(csr_array(demand), before.capacity, before.reservation)
    name = f"64 x 10,000, r 1.0 m {multiple}, warm start, {part:.0%} of tenants changed"
    return _compare(name, after, {"previous": previous}, rounds)


def _compare(name: str, instance: Instance, options: dict[str, Any], rounds: int) -> Row:
    parts = (instance.demand, instance.capacity, instance.reservation)
    times: dict[str, list[float]] = {"cold": [], "this": []}
    missing = 0
    now_ns = time.perf_counter_ns if "threads" in options else time.thread_time_ns
    for _ in range(rounds):
        start_ns = now_ns()
        cold = allocate(*parts)
        middle_ns = now_ns()
        result = allocate(*parts, **options)
        times["this"].append((now_ns() - middle_ns) / 1e6)
        times["cold"].append((middle_ns - start_ns) / 1e6)
        missing = cold.effective - result.effective
    cold_ms, this_ms = (statistics.median(taken) for taken in times.values())
    if "top" in options:
        name += f" ({missing:,} tokens below the maximum)"
    return {"case": name, "bursar ms": round(this_ms, 3), "ratio": round(cold_ms / this_ms, 2), "target": ""}


def _measure_dense(instance: Instance, rounds: int) -> Row:
    demand = instance.demand.toarray()
    taken = []
    for _ in range(rounds):
        start_ns = time.thread_time_ns()
        allocate_as_written(demand, instance.capacity, instance.reservation)
        taken.append((time.thread_time_ns() - start_ns) / 1e6)
    dense_ms = statistics.median(taken)
    start_ns = time.thread_time_ns()
    _solve(instance)
    ours_ms = (time.thread_time_ns() - start_ns) / 1e6
    return {
        "case": f"64 x 10,000, the paper's dense map in NumPy: {dense_ms:,.0f} ms",
        "bursar ms": round(ours_ms, 3),
        "ratio": round(dense_ms / ours_ms, 1),
        "target": "",
    }
