"""What a share costs: the allocation beside a plain loop and the paper's figure, and the filter.

All in one run on the same random tenants. The plain loop is the reference that the tests check the
allocation against; it is in the source tree, not in the installed package, and left out where it
is missing."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bursar.shares.book import TargetBook
from bursar.shares.borrowing import allocate
from bursar.shares.filter import Filter
from bursar.shares.handout import TenantTerms
from bursar.shares.rules import Rule
from bursar.shares.target import FilterRules
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

COUNTS = (10, 100, 1_000, 10_000)
PAPER_US = 30.0
GOAL_US = 1.0
FRAMEWORK_MS = 25.0
"""The paper's overhead of one interval, whatever the number of tenants."""

GOAL_FROM = 1_000
INTERVAL_GOAL_MS = 15.0
"""What a whole interval may take, of as many tenants as there are here at most."""

TOKENS_EACH = 50
SEED = 7


def run(quick: bool) -> dict[str, Any]:
    """Microseconds a tenant, at several numbers of tenants; microseconds a request in the filter."""
    rounds = 5 if quick else 30
    rows = [measure_tenants(count, rounds) for count in COUNTS]
    rows_filter = [measure_filter(count, 1 if quick else 3) for count in COUNTS]
    slowest = max(row["allocation"] for row in rows if row["tenants"] >= GOAL_FROM)
    interval_ms = rows[-1]["interval"] * rows[-1]["tenants"] / 1000
    return {
        "unit": "microseconds a tenant (filter: a request)",
        "rows": rows,
        "filter": rows_filter,
        "slowest_us": slowest,
        "interval_ms": interval_ms,
        "ok": slowest <= GOAL_US and interval_ms <= INTERVAL_GOAL_MS,
        "table": "\n".join([*_write(rows, rows_filter), "", _verdict(slowest, interval_ms)]),
    }


def overhead(out: Path, quick: bool) -> dict[str, Any]:
    """The experiment of section IV-G: the same measurement, drawn beside the paper's figures."""
    found = run(quick)
    rows = found["rows"]
    whole_ms = max(row["interval"] * row["tenants"] / 1000 for row in rows if row["tenants"] <= GOAL_FROM)
    said = f"a whole interval for {GOAL_FROM:,} tenants: {whole_ms:.1f} ms (the paper's: {FRAMEWORK_MS:g})"
    return {
        **found,
        "figures": [draw(out / "shares-overhead.png", rows)],
        "table": f"{found['table']}\n{said}",
        "paper": "less than 30 us a tenant, 25 ms an interval",
    }


def draw(path: Path, rows: list[dict[str, Any]]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    counts = [row["tenants"] for row in rows]
    labels = {
        "allocation": "allocation",
        "interval": "whole interval",
        "plain": "plain loop",
        "paper": "the paper's allocation",
    }
    for key, label in labels.items():
        if all(row[key] is not None for row in rows):
            axis.plot(counts, [row[key] for row in rows], marker="o", markersize=4, label=label)
    axis.set(xscale="log", yscale="log", xlabel="active tenants", ylabel="microseconds a tenant")
    axis.set_title("IV-G: cost of an allocation", fontsize=11)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path.name


def _write(rows: list[dict[str, Any]], rows_filter: list[dict[str, float]]) -> list[str]:
    lines = ["microseconds a tenant, best of several rounds:"]
    lines.append(
        f"{'tenants':>8}{'allocation':>12}{'interval':>12}{'plain loop':>12}{'paper':>12}{'ratio':>12}"
    )
    for row in rows:
        plain = row["plain"]
        shown, ratio = ("-", "-") if plain is None else (f"{plain:.2f}", f"{plain / row['allocation']:.1f}")
        lines.append(
            f"{row['tenants']:>8}{row['allocation']:>12.3f}{row['interval']:>12.2f}{shown:>12}"
            f"{PAPER_US:>12.0f}{ratio:>12}"
        )
    lines += ["", "the filter, microseconds for a submit and a take:"]
    lines += [f"{row['classes']:>8} classes{row['request']:>10.2f}" for row in rows_filter]
    return lines


def _verdict(slowest: float, interval_ms: float) -> str:
    return (
        f"from {GOAL_FROM:,} tenants on the allocation takes at most {slowest:.2f} us a tenant "
        f"(goal {GOAL_US:g}; the paper's {PAPER_US:g}); ratio: the plain loop's time over it. "
        f"An interval is the whole of it, statistics, allocation and rates: {interval_ms:.1f} ms with "
        f"{COUNTS[-1]:,} tenants that all ask and all wait (goal {INTERVAL_GOAL_MS:g})."
    )


def measure_tenants(count: int, rounds: int) -> dict[str, Any]:
    columns = draw_tenants(count)
    tokens = TOKENS_EACH * count
    ours = _best(lambda: allocate(tokens, *columns), rounds)
    reference = load_reference()
    plain = None
    if reference is not None:
        rows = [reference.Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        plain = _best(lambda: reference.allocate(tokens, rows), 1 if count > 1000 else 3)
    return {
        "tenants": count,
        "allocation": ours / count,
        "interval": measure_interval(count, rounds) / count,
        "plain": None if plain is None else plain / count,
        "paper": PAPER_US,
    }


def draw_tenants(count: int) -> list[Any]:
    """Weight, demand, record, previous allocation, remainder: some lend, some owe."""
    chance = np.random.default_rng(SEED)
    record = chance.integers(-1000, 1000, count)
    record[0] -= record.sum()
    return [
        chance.integers(1, 10, count).astype(float),
        chance.integers(1, 4 * TOKENS_EACH, count),
        record,
        chance.integers(1, 2 * TOKENS_EACH, count),
        np.zeros(count),
    ]


def measure_interval(count: int, rounds: int) -> float:
    """Microseconds for a whole interval: the filter's statistics, the book, the filter's rules."""
    names = [f"t{number}" for number in range(count)]
    book = TargetBook(dict.fromkeys(names, TenantTerms()), Rate.of(500 * count), 100 * MILLISECOND_NS)
    crowd: Filter[int] = Filter()
    rules = FilterRules(crowd)
    chance = np.random.default_rng(SEED)
    now = 0
    best = float("inf")
    for _ in range(max(2, rounds // 3)):
        for name, cost in zip(names, chance.integers(1, 200, count).tolist(), strict=True):
            crowd.submit(name, cost, 0, now)
        now += book.interval_ns
        began = time.perf_counter()
        rules.apply(book.close(crowd.collect()), now)
        best = min(best, time.perf_counter() - began)
        while crowd.take(now) is not None:
            pass
    return best * 1e6


def measure_filter(classes: int, rounds: int) -> dict[str, float]:
    crowd: Filter[int] = Filter()
    for number in range(classes):
        crowd.start(Rule(f"r{number}", 1 + number % 7, f"t{number}"), 0)
    names = [f"t{number}" for number in range(classes)]

    def once() -> None:
        for name in names:
            crowd.submit(name, 1, 0, 0)
        for _ in names:
            crowd.take(0)

    return {"classes": classes, "request": _best(once, max(3, rounds)) / classes}


def _best(work: Callable[[], object], rounds: int) -> float:
    """Microseconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def load_reference() -> ModuleType | None:
    """The plain loop of the tests, where the source tree is at hand."""
    path = Path(__file__).parents[3] / "tests" / "shares" / "shares_reference.py"
    spec = importlib.util.spec_from_file_location("bursar_shares_reference", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
