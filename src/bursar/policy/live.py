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
        "nodes",
    ),
    "quota": (
        "tenants",
        "templates",
        "max_tenants",
        "shadow",
        "without_bursar",
        "zone",
        "unit",
        "mode",
        "block",
        "warnings",
        "hold_expiry_ns",
        "over",
        "history_ns",
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
        "history_ns",
        "dead_history_ns",
        "counted",
    ),
}
"""Fields of the kind's policy (`bursar.policy.values`)."""

WHY_NOT: dict[tuple[Kind, str], str] = {
    ("rate", "period_ns"): (
        "a node that takes over the lead waits one period for tokens that it cannot ask after, and journals "
        "are counted in periods, so with another length tokens could be used twice; give the resource "
        "another name"
    ),
    ("rate", "zones"): (
        "each zone has its own part of every limit, counted by how many there are, and one that heard of the "
        "change late would count by the old number; give the resource another name"
    ),
    ("share", "costs"): (
        "who owes whom is counted in tokens, and a token would be another thing; give the resource another "
        "name"
    ),
    ("share", "enforce"): (
        "limits that were set in one place would be nobody's when they are set in another; give the "
        "resource another name"
    ),
    ("share", "device"): ("who owes whom is counted in what one disk did; give the resource another name"),
    ("share", "job_nodes"): ("what serves a target asks the source that it was begun with"),
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
    ("claim", "tracker"): (
        "tasks that were posted to the old service would be asked for at the new one; stop the daemons, and "
        "start them with the changed policy"
    ),
    ("claim", "order"): (
        "who waits stands in a queue that was made in the old order; give the resource another name, or "
        "start its nodes anew"
    ),
    ("claim", "paths"): (
        "who holds or waits for a name does so as names were read when it asked, so that the two readings "
        "would not exclude each other; give the resource another name"
    ),
}
"""By kind and field: why it cannot change while it runs, as a sentence for the operator."""

RESTART = "no node can take that over while it runs"
