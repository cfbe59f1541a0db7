"""What someone should look at, as a sentence with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Severity = Literal["error", "warning"]

ALERTS_KEPT = 50
"""Alerts that a resource remembers."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """`what` says what is so, `remedy` what to do.

    name      which event it is: "audit", "budget", "reservation", "fallback", "shadow"; "" for what is shown
              while it is so, and told to nobody
    tenant    whose it is, where it is one tenant's
    which     which of several, for the same tenant: a server, a percentage
    fields    the numbers it rests on
    count     how often it happened since it was last told
    at_s      when it was told, in seconds since 1970
    """

    name: str = ""
    severity: Severity
    resource: str = ""
    tenant: str = ""
    what: str
    remedy: str
    which: str = ""
    fields: Mapping[str, int | float | str] = {}
    count: int = 1
    at_s: float = 0.0

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What it is about: two alerts about the same are one that happened twice."""
        return self.name, self.resource, self.tenant, self.which
