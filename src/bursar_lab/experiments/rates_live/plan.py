"""What a live run does: who is promised what, who sends where and when, on which servers; and the policy
that says so to `bursar serve`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from bursar.world import SECOND_NS

RESOURCE = "live"
OUTSTANDING = 5
SLICE_NS = 20_000_000
"""Service is recorded in slices of this length, for the figures."""


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """A tenant sends to a server for a while: `rate` requests a second at an even pace, or, where
    that is None, whenever fewer than `outstanding` are unanswered (continuously backlogged)."""

    tenant: str
    server: str
    begins_s: float
    ends_s: float
    rate: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times count from the moment at which tenants begin to send; reservations and
    limits are requests a period. `paced` and the fixed interval are the defaults."""

    servers: tuple[str, ...]
    rate: float
    period_s: float
    intervals: int
    terms: Mapping[str, tuple[int, int | None]]
    flows: tuple[Flow, ...]
    duration_s: float
    controlled: bool = True
    paced: bool = True
    adaptive: bool = False
    backend: Literal["memcached", "file"] = "memcached"
    outstanding: int = OUTSTANDING
    workload: str = "A"
    records: int = 10_000
    record_bytes: int = 4096
    file_bytes: int = 1 << 30
    seed: int = 1

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self.terms)

    @property
    def period_ns(self) -> int:
        return round(self.period_s * SECOND_NS)

    @property
    def interval_ns(self) -> int:
        return self.period_ns // self.intervals

    @property
    def slices(self) -> int:
        """Rows of the record of slices: the run, and as much again as it may take to end."""
        return round((self.duration_s + 2 * self.period_s) * SECOND_NS) // SLICE_NS + 1

    @property
    def capacity(self) -> int:
        """Requests a period, of all servers."""
        return round(self.rate * self.period_s * len(self.servers))

    def write_policy(self) -> str:
        """Without control nobody is promised anything: the servers take turns."""
        lines = [
            f"[resource.{RESOURCE}]",
            'kind = "rate"',
            f'period = "{self.period_s:g}s"',
            f'interval = "{"auto" if self.adaptive else f"{self.interval_ns // 1_000_000}ms"}"',
            f"pacing = {str(self.paced).lower()}",
            "servers = {" + ", ".join(f'{name} = "{self.rate:g}/s"' for name in self.servers) + "}",
            f"[resource.{RESOURCE}.tenant]",
        ]
        return "\n".join([*lines, *(self._write_terms(tenant) for tenant in self.terms)]) + "\n"

    def _write_terms(self, tenant: str) -> str:
        reservation, limit = self.terms[tenant] if self.controlled else (0, None)
        per = f"{self.period_s:g}s"
        terms = [f'reservation = "{reservation}/{per}"'] if reservation else []
        terms += [f'limit = "{limit}/{per}"'] if limit is not None else []
        return f"{tenant} = {{ {', '.join(terms)} }}"

    def flows_to(self, server: str) -> dict[str, list[Flow]]:
        """By tenant, in order of time."""
        found: dict[str, list[Flow]] = {}
        for flow in sorted(self.flows, key=lambda flow: flow.begins_s):
            if flow.server == server:
                found.setdefault(flow.tenant, []).append(flow)
        return found


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a client process is told. `tenants`: who sends from it; `urls`: the daemons, by server;
    `targets`: the memcacheds behind them, or the file."""

    name: str
    plan: Plan
    tenants: tuple[str, ...]
    urls: Mapping[str, str]
    targets: Mapping[str, str]


def draw_moves(
    chance: random.Random, tenants: Iterator[str], servers: tuple[str, ...], *, ends_s: float, every_s: float
) -> tuple[Flow, ...]:
    """Experiment 4's demand: each tenant is backlogged on 2 to 6 servers, and chooses others at
    random moments, `every_s` apart on average (as many changes as that gives, evenly drawn)."""
    flows = []
    for tenant in tenants:
        changes = sorted(chance.uniform(0.0, ends_s) for _ in range(round(ends_s / every_s)))
        for begins_s, stops_s in zip([0.0, *changes], [*changes, ends_s], strict=True):
            active = chance.sample(servers, min(chance.randint(2, 6), len(servers)))
            flows += [Flow(tenant, server, begins_s, stops_s) for server in active]
    return tuple(flows)
