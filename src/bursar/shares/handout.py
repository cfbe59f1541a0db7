"""What one interval hands out, and the terms it goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

BACKLOGGED_PART = 0.95
"""A tenant that used this part of its tokens is taken to want more."""


class TenantTerms(msgspec.Struct, frozen=True):
    """What the policy says of a tenant: `bursar.policy.ShareTenant` has these fields."""

    weight: int = 1
    borrow: int | None = None
    lend: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One tenant's part of a handout, in tokens. `rate` is what a second of it is held to: the final
    tokens', or the initial ones' of a tenant whose demand is but estimated and lower (`close_served`)."""

    demand: int
    initial: int
    redistributed: int
    final: int
    record: int
    rate: int
    weight: int


@dataclass(frozen=True, slots=True)
class Handout:
    """What one interval hands out. `lines` holds the active tenants only; `problems` says what
    was wrong with the statistics and was left out."""

    number: int
    tokens: int
    lines: Mapping[str, Line] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
