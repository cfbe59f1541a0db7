"""Who asks for what: read from a CSV file, or drawn."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bursar.errors import UsageError
from bursar.policy.values import RatePolicy, suggest
from bursar.simulate.workload import Real, Whole
from bursar.world import SECOND_NS

ACTIVE_MAX = 8
ZIPF = 0.5
YCSB_KEYS, YCSB_EXPONENT = 1_000, 0.99
BURST_PART = 0.5
CSV_MAX_BYTES = 256 * 1024 * 1024
COLUMNS = ("tenant", "server", "rate")
MIXES = ("mixed", "zipf", "ycsb", "bursts", "even")


@dataclass(frozen=True)
class Flows:
    """Requests at an even pace: flow f asks for `tenant[f]` at `server[f]`, `pace[f]` a second,
    from `start[f]` to `end[f]` (seconds of the period)."""

    tenant: Whole
    server: Whole
    pace: Real
    start: Real
    end: Real

    @classmethod
    def join(cls, parts: Iterable[Flows]) -> Flows:
        found = list(parts)
        return cls(*(np.concatenate([getattr(part, name) for part in found]) for name in cls.__annotations__))

    def select(self, which: Any) -> Flows:
        return Flows(*(getattr(self, name)[which] for name in self.__annotations__))

    def demand(self, tenants: int, period_s: float) -> Whole:
        """Requests of each tenant in the period."""
        sent = self.pace * (np.minimum(self.end, period_s) - np.maximum(self.start, 0.0)).clip(0)
        return np.rint(np.bincount(self.tenant, weights=sent, minlength=tenants)).astype(np.int64)


def draw_flows(policy: RatePolicy, mix: str, multiple: float, seed: int) -> Flows:
    """Demand of `multiple` times what each tenant is promised, spread over its servers by the mix.

    zipf    over at most eight servers, by a Zipf distribution
    ycsb    a thousand keys on all servers, popular by a Zipf distribution of 0.99
    bursts  as zipf, but all of it in one half of the period, at a moment of its own
    even    over all servers alike
    mixed   each tenant one of the others
    """
    if mix not in MIXES:
        raise UsageError(f"there is no mix {mix!r}{suggest(mix, MIXES)}")
    rng = np.random.default_rng(seed)
    totals = want(policy, multiple)
    period_s = policy.period_ns / SECOND_NS
    names = list(policy.servers)
    column = {name: number for number, name in enumerate(names)}
    everywhere = np.arange(len(names))
    kinds = list(_SPREADS)
    parts = []
    for number, (tenant, total) in enumerate(zip(policy.tenants.values(), totals, strict=True)):
        kind = kinds[number % len(kinds)] if mix == "mixed" else mix
        here = everywhere if tenant.servers is None else np.array([column[name] for name in tenant.servers])
        servers, weights = _SPREADS[kind](rng, here)
        parts.append(_make_flows(rng, number, servers, weights * total, kind == "bursts", period_s))
    return Flows.join(parts)


def _make_flows(
    rng: np.random.Generator, tenant: int, servers: Whole, pace: Real, bursts: bool, period_s: float
) -> Flows:
    size = servers.size
    begin, length = (rng.uniform(0, 1 - BURST_PART), BURST_PART) if bursts else (0.0, 1.0)
    # Steady flows begin a period earlier: there is something to estimate the first placement from.
    start = np.full(size, begin * period_s if bursts else -period_s)
    end = np.full(size, (begin + length) * period_s)
    return Flows(np.full(size, tenant, np.int64), servers, pace / length, start, end)


def want(policy: RatePolicy, multiple: float) -> Real:
    """Requests a second that each tenant would like: its reservation, or its limit, or, with
    neither, an equal part of what nobody reserved; times the multiple."""
    reserved = np.array([float(tenant.reservation.per_second) for tenant in policy.tenants.values()])
    capacity = sum(float(s.capacity.per_second) for s in policy.servers.values() if s.capacity is not None)
    free = max(0.0, capacity - float(reserved.sum())) / max(1, int((reserved == 0).sum()))
    base = [
        own or (free if tenant.limit is None else min(free, float(tenant.limit.per_second)))
        for own, tenant in zip(reserved, policy.tenants.values(), strict=True)
    ]
    return np.array(base) * multiple


Spread = Callable[[np.random.Generator, Whole], tuple[Whole, Real]]


def _spread_zipf(rng: np.random.Generator, servers: Whole) -> tuple[Whole, Real]:
    chosen = rng.permutation(servers)[:ACTIVE_MAX]
    weights = np.arange(1, chosen.size + 1, dtype=np.float64) ** -ZIPF
    return chosen, weights / weights.sum()


_KEY_WEIGHTS = np.arange(1, YCSB_KEYS + 1, dtype=np.float64) ** -YCSB_EXPONENT


def _spread_ycsb(rng: np.random.Generator, servers: Whole) -> tuple[Whole, Real]:
    place = rng.integers(0, servers.size, YCSB_KEYS)
    weights = np.bincount(place, weights=_KEY_WEIGHTS, minlength=servers.size)
    return servers, weights / weights.sum()


def _spread_even(rng: np.random.Generator, servers: Whole) -> tuple[Whole, Real]:
    return servers, np.full(servers.size, 1.0 / servers.size)


_SPREADS: dict[str, Spread] = {
    "zipf": _spread_zipf,
    "ycsb": _spread_ycsb,
    "bursts": _spread_zipf,
    "even": _spread_even,
}


# --- given ---------------------------------------------------------------------------------------


def read_flows(path: Path, policy: RatePolicy) -> Flows:
    """From a CSV file with the columns tenant, server, rate (requests a second) and, if it is not
    the whole period, start and end (seconds)."""
    try:
        if path.stat().st_size > CSV_MAX_BYTES:
            raise UsageError(f"{path} is larger than {CSV_MAX_BYTES >> 20} MiB; give a part of it")
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_read_row(row, path, line, policy) for line, row in _read_lines(file, path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise UsageError(f"{path} has no demand in it; write lines of tenant,server,rate")
    tenant, server, pace, start, end = (np.array(column) for column in zip(*rows, strict=True))
    return Flows(tenant.astype(np.int64), server.astype(np.int64), pace, start, end)


def _read_lines(file: Any, path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(file)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} has no column {missing[0]}; its first line is tenant,server,rate")
    return enumerate(reader, start=2)


def _read_row(
    row: dict[str, str], path: Path, line: int, policy: RatePolicy
) -> tuple[int, int, float, float, float]:
    period_s = policy.period_ns / SECOND_NS
    where = f"{path}, line {line}"
    tenant = _find(row["tenant"], list(policy.tenants), f"{where}: there is no tenant")
    server = _find(row["server"], list(policy.servers), f"{where}: there is no server")
    pace = _read_number(row["rate"], f"{where}, rate")
    start = _read_number(row.get("start") or "", f"{where}, start", -period_s)
    end = _read_number(row.get("end") or "", f"{where}, end", period_s)
    if pace <= 0 or end <= start or start >= period_s:
        raise UsageError(f"{where}: a rate above zero, from a start to a later end within {period_s:g} s")
    return tenant, server, pace, start, min(end, period_s)


def _find(name: str, names: list[str], what: str) -> int:
    if name not in names:
        raise UsageError(f'{what} "{name}"{suggest(name, names)}')
    return names.index(name)


def _read_number(text: str, where: str, default: float | None = None) -> float:
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise UsageError(f"{where}: {text!r} is not a number")
    return value


def add_server(flows: Flows, servers: int, may_move: Any) -> Flows:
    """As if there were one more server, to which everyone whose data may move sends its even part."""
    part = 1.0 / (servers + 1)
    moves = may_move[flows.tenant]
    stays = Flows(
        flows.tenant,
        flows.server,
        np.where(moves, flows.pace * (1 - part), flows.pace),
        flows.start,
        flows.end,
    )
    moved = flows.select(moves)
    there = Flows(
        moved.tenant,
        np.full(moved.server.size, servers, np.int64),
        moved.pace * part,
        moved.start,
        moved.end,
    )
    return Flows.join([stays, there])
