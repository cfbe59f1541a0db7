"""Which keys of a resource can change while it runs, and why the others cannot.

One table for the kinds, which take the changes, and for `bursar apply`, which refuses the others
before anything is written.
"""

from __future__ import annotations

from bursar.policy.values import Kind

LIVE: dict[Kind, tuple[str, ...]] = {
    "rate": ("tenants", "templates", "max_tenants", "shadow", "without_bursar"),
    "share": ("tenants", "templates", "max_tenants", "shadow", "without_bursar", "capacity"),
    "pool": ("tenants", "templates", "max_tenants", "shadow", "without_bursar"),
    "quota": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "unit",
        "warnings",
        "hold_expiry_ns",
    ),
    "claim": ("tenants", "templates", "max_tenants", "shadow", "without_bursar", "aging_ns", "dead_holder"),
}
"""Fields of the kind's policy (`bursar.policy.values`)."""

WHY_NOT: dict[tuple[Kind, str], str] = {}
"""By kind and field: why it cannot change while it runs, as a sentence for the operator."""

RESTART = "no node can take that over while it runs"
