"""What very many tenants cost a node: reading three Envoys' reports, the ledger, and writing the answers, as
bytes on both ends; in one process, without a network, and without charging (a charge is one acquisition of
the kind's, for each tenant that is in use).
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from bursar.integrations.envoy.cells import Line, Terms
from bursar.integrations.envoy.ledger import Ledger
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
    before = read_memory_bytes()
    ledger = Ledger(lambda tenant: Terms(1000.0, 50.0), keeps=False, quiet_ns=0)
    lines = [Line(slot, 0) for slot in range(ENVOYS)]
    took: dict[str, list[float]] = {}
    now = 0
    for number in range(4 if quick else 6):
        now += REPORT_NS
        reports = [make_report(names, rng.integers(0, 300, tenants), 5 if number else 0) for _ in lines]
        for name, seconds in _time_round(ledger, now, lines, reports).items():
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


def _time_round(ledger: Ledger, now: int, lines: list[Line], reports: list[bytes]) -> dict[str, float]:
    marks = [time.perf_counter()]
    read = [read_report(rlqs_pb2.RateLimitQuotaUsageReports.FromString(report))[0] for report in reports]
    marks.append(time.perf_counter())
    orders: list[dict[str, tuple[int, int]]] = []
    for line, found in zip(lines, read, strict=True):
        line.heard_at, told_all = now, {}
        for tenant, elapsed_s, allowed, denied, _ in found:
            account = ledger.report(now, line, tenant, elapsed_s, allowed, denied)
            assert account is not None, "each has terms"
            told, _tokens = ledger.plan(now, account, renew=line.slot)
            ledger.send(now, account, told, 8 * SECOND_NS)
            for each in told:
                told_all[tenant] = each.rate, each.burst
        orders.append(told_all)
    marks.append(time.perf_counter())
    for order in orders:
        write_orders(order, 8)
    marks.append(time.perf_counter())
    steps = ("read reports", "take in and plan", "write assignments")
    return {name: marks[k + 1] - marks[k] for k, name in enumerate(steps)}
