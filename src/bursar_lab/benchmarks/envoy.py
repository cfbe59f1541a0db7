"""One assignment round for very many tenants: what it takes, and what it keeps in memory.

A round is all that three Envoys' reports cost: reading their messages, the book, deciding, and
writing the answers, as bytes on both ends; in one process, without a network.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from bursar.integrations.envoy.fleet import FleetBook
from bursar.integrations.envoy.split import Terms
from bursar.integrations.envoy.wire import read_report, write_orders
from bursar.world import SECOND_NS

ENVOYS = 3
REPORT_NS = 5 * SECOND_NS
BOUND_S = 5.0
"""Envoys report every five seconds: a round must be over by then."""


def read_memory_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_report(names: list[str], counts: Any, elapsed_s: int) -> bytes:
    report = rlqs_pb2.RateLimitQuotaUsageReports(domain="api")
    for name, count in zip(names, counts.tolist(), strict=True):
        usage = report.bucket_quota_usages.add()
        usage.bucket_id.bucket["tenant"] = name
        usage.time_elapsed.seconds = elapsed_s
        usage.num_requests_allowed = count
    return bytes(report.SerializeToString())


def run(quick: bool) -> dict[str, Any]:
    tenants = 10_000 if quick else 100_000
    rng = np.random.default_rng(7)
    names = [f"tenant-{number}" for number in range(tenants)]
    limit = np.full(tenants, 1000, np.int64)
    terms = Terms(limit // 10, limit, np.ones_like(limit), int(limit.sum()) // 2)
    before = read_memory_bytes()
    book = FleetBook(names, terms, 0, fresh=True)
    slots = [book.join(0) for _ in range(ENVOYS)]
    took: dict[str, list[float]] = {}
    now = 0
    for number in range(4 if quick else 6):
        now += REPORT_NS
        reports = [make_report(names, rng.integers(0, 300, tenants), 5 if number else 0) for _ in slots]
        for name, seconds in _time_round(book, now, slots, reports).items():
            took.setdefault(name, []).append(seconds)
        del reports
    held_mib = (read_memory_bytes() - before) / 2**20
    table: list[dict[str, Any]] = [
        {"step": name, "seconds": round(float(np.median(values[1:])), 3)} for name, values in took.items()
    ]
    whole = sum(float(np.median(values[1:])) for values in took.values())
    table.append({"step": "the whole round", "seconds": round(whole, 3)})
    return {
        "table": table,
        "ok": whole < BOUND_S,
        "tenants": tenants,
        "envoys": ENVOYS,
        "memory MiB": round(held_mib, 1),
        "memory bytes a bucket": round(held_mib * 2**20 / (tenants * ENVOYS)),
    }


def _time_round(book: FleetBook, now: int, slots: list[int | None], reports: list[bytes]) -> dict[str, float]:
    marks = [time.perf_counter()]
    lines = []
    for report in reports:
        message = rlqs_pb2.RateLimitQuotaUsageReports.FromString(report)
        lines.append(read_report(message, book.rows))
    marks.append(time.perf_counter())
    for slot, line in zip(slots, lines, strict=True):
        assert slot is not None, "there is room for three"
        book.report(now, slot, line.rows, line.elapsed_s, line.allowed, line.denied)
    marks.append(time.perf_counter())
    orders = book.decide(now)
    marks.append(time.perf_counter())
    for order in orders:
        rates = {
            book.tenants[row]: rate
            for row, rate in zip(order.rows.tolist(), order.rates.tolist(), strict=True)
        }
        write_orders(rates, 8, 0.2)
    marks.append(time.perf_counter())
    steps = ("read reports", "take in", "decide", "write assignments")
    return {name: marks[k + 1] - marks[k] for k, name in enumerate(steps)}
