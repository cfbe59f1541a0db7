"""A policy's text, as far as the promises need it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from bursar_lab.storm.checker.quantities import SECOND_NS, read_count, read_duration_ns, read_rate

MILLISECOND_NS = SECOND_NS // 1000
DEFAULT_PERIOD_NS = SECOND_NS
DEFAULT_SHARE_INTERVAL_NS = 100 * MILLISECOND_NS
REFUSING = ("quota", "claim")
"""Kinds that never lend what is not charged."""


@dataclass(frozen=True)
class Terms:
    """One tenant's. A rate's and a pool's are in tokens a second, a quota's limit is a count; None: no
    limit."""

    limit: Fraction | None = None
    reservation: Fraction = Fraction(0)
    servers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resource:
    kind: str
    period_ns: int
    capacity: Fraction | None
    """A share's and a pool's, in tokens a second; None: estimated."""
    servers: Mapping[str, Fraction | None]
    window: str
    paths: bool
    shadow: bool
    without_bursar: str
    safe: Fraction | None
    tenants: Mapping[str, Terms]
    """Templates are among them, under their own names."""
    counted: Mapping[str, int] = field(default_factory=dict)

    def template(self, tenant: str) -> Terms | None:
        """Those of the nearest template, for a tenant that is not listed."""
        above = tenant
        while "/" in above:
            above = above.rpartition("/")[0]
            if f"{above}/*" in self.tenants:
                return self.tenants[f"{above}/*"]
        return self.tenants.get("*")


@dataclass(frozen=True)
class Policy:
    resources: Mapping[str, Resource]


def read_policy(text: str) -> Policy:
    """Raises ValueError (TOML, quantities) for a text that no run could have applied."""
    table = tomllib.loads(text).get("resource", {})
    return Policy({name: _read_resource(entry) for name, entry in table.items()})


def read_terms(kind: str, entry: Mapping[str, Any]) -> Terms:
    read = read_count if kind == "quota" else read_rate
    return Terms(
        limit=read(entry["limit"]) if "limit" in entry else None,
        reservation=read_rate(entry["reservation"]) if "reservation" in entry else Fraction(0),
        servers=tuple(entry.get("servers", ())),
    )


def _read_resource(entry: Mapping[str, Any]) -> Resource:
    kind = entry["kind"]
    lent = entry.get("without_bursar", "refuse" if kind in REFUSING else "keep")
    own = "interval" if kind == "share" else "period"
    default_ns = DEFAULT_SHARE_INTERVAL_NS if kind == "share" else DEFAULT_PERIOD_NS
    return Resource(
        kind=kind,
        period_ns=read_duration_ns(entry[own]) if own in entry else default_ns,
        capacity=_read_capacity(entry.get("capacity", "auto")),
        servers={name: _read_server(value) for name, value in entry.get("servers", {}).items()},
        window=entry.get("window", "none"),
        paths=entry.get("paths", False),
        shadow=entry.get("shadow", False),
        without_bursar="safe" if isinstance(lent, dict) else lent,
        safe=read_rate(lent["safe"]) if isinstance(lent, dict) else None,
        tenants={name: read_terms(kind, terms) for name, terms in entry.get("tenant", {}).items()},
        counted=entry.get("counted", {}),
    )


def _read_server(value: object) -> Fraction | None:
    return _read_capacity(value.get("capacity", "auto") if isinstance(value, dict) else value)


def _read_capacity(value: object) -> Fraction | None:
    return None if value == "auto" else read_rate(value)
