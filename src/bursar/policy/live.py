"""Which keys of a resource can change while it runs, and why the others cannot.

One table for the kinds, which take the changes, and for `bursar apply`, which refuses the others
before anything is written.
"""

from __future__ import annotations

from bursar.policy.values import Kind

LIVE: dict[Kind, tuple[str, ...]] = {
    "rate": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "servers",
        "any_server",
        "interval_ns",
        "adaptive_interval",
        "drift_ppm",
        "pacing",
    ),
    "share": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "capacity",
        "interval_ns",
        "half_life_ns",
    ),
    "pool": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "capacity",
        "client_capacity",
        "batch",
        "adaptive_batch",
        "pacing",
    ),
    "quota": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "unit",
        "mode",
        "block",
        "warnings",
        "hold_expiry_ns",
    ),
    "claim": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "aging_ns",
        "dead_holder",
        "attempts",
    ),
}
"""Fields of the kind's policy (`bursar.policy.values`)."""

WHY_NOT: dict[tuple[Kind, str], str] = {
    ("rate", "period_ns"): (
        "a node that takes over the lead waits one period for tokens that it cannot ask after, and journals "
        "are counted in periods, so with another length tokens could be used twice; give the resource "
        "another name"
    ),
    ("share", "costs"): (
        "who owes whom is counted in tokens, and a token would be another thing; give the resource another "
        "name"
    ),
    ("pool", "period_ns"): (
        "every client counts the period by its own clock, and those that heard of it late would use tokens "
        "beyond their end; stop all who use the pool, or give it another name"
    ),
    ("pool", "words"): (
        "while some clients share the old words and some the new ones, both would hand out the whole "
        "capacity; stop all who use the pool, or give it another name"
    ),
    ("quota", "window"): (
        "what was used counts for the window it was used in, and windows of another kind begin with all of "
        "it unused; give the resource another name"
    ),
    ("quota", "zone"): (
        "the window that is running would end at another time than it was begun for, and its account with "
        "it; give the resource another name"
    ),
    ("claim", "paths"): (
        "who holds or waits for a name does so as names were read when it asked, so that the two readings "
        "would not exclude each other; give the resource another name"
    ),
}
"""By kind and field: why it cannot change while it runs, as a sentence for the operator."""

RESTART = "no node can take that over while it runs"
