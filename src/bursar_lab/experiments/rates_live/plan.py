"""What a live run does: who is promised what, who sends where and when, on which servers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from bursar.rates.terms import Terms
from bursar.world import SECOND_NS

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
    limits are requests a period."""

    servers: tuple[str, ...]
    rate: float
    period_s: float
    intervals: int
    terms: Mapping[str, tuple[int, int | None]]
    flows: tuple[Flow, ...]
    duration_s: float
    controlled: bool = True
    adaptive: bool = False
    backend: Literal["memcached", "file"] = "memcached"
    outstanding: int = OUTSTANDING
    workload: str = "A"
    records: int = 10_000
    record_bytes: int = 4096
    file_bytes: int = 1 << 30
    session_timeout_s: float = 10.0
    drift_ppm: int = 1_000
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
    def periods(self) -> int:
        """Rows of the record of periods; they are numbered from 1."""
        return round(self.duration_s / self.period_s) + 20

    @property
    def capacity(self) -> int:
        """Requests a period, of all servers."""
        return round(self.rate * self.period_s * len(self.servers))

    def make_terms(self) -> dict[str, Terms]:
        return {name: Terms(reservation, limit) for name, (reservation, limit) in self.terms.items()}

    def flows_to(self, server: str) -> dict[str, list[Flow]]:
        """By tenant, in order of time."""
        found: dict[str, list[Flow]] = {}
        for flow in sorted(self.flows, key=lambda flow: flow.begins_s):
            if flow.server == server:
                found.setdefault(flow.tenant, []).append(flow)
        return found


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
