"""The RateLimit fields of an answer: structured fields of the IETF draft ratelimit-headers.

`RateLimit-Policy` says what may be used in a window, `RateLimit` what is left of it and when it begins
anew. Written here for the API and for what the middleware adds to others' answers.
"""

from __future__ import annotations

import math

from bursar.errors import Refused
from bursar.policy.values import PoolPolicy, QuotaPolicy, RatePolicy
from bursar.resource.door import Resource
from bursar.resource.far import FarDecider
from bursar.resource.grants import Grant
from bursar.world import SECOND_NS

Fields = list[tuple[bytes, bytes]]

INTEGER_MAX = 10**15 - 1
"""The largest integer of a structured field."""

WINDOWS_NS = {"hour": 3600 * SECOND_NS, "day": 86_400 * SECOND_NS, "week": 7 * 86_400 * SECOND_NS}


class Writer:
    """Writes the fields of one resource. `window_s` is what its limits are counted over, where that
    is not what the resource itself says."""

    def __init__(self, name: str, window_s: int | None = None) -> None:
        self._name = quote(name)
        self._given_ns = None if window_s is None else window_s * SECOND_NS
        self._window_ns = self._given_ns

    def learn(self, resource: Resource) -> None:
        """A daemon's policy can be another one after a restart, so this is asked each time."""
        self._window_ns = self._given_ns or find_window_ns(resource)

    def write(self, limit: int | None, remaining: int | None, reset_after: float | None) -> Fields:
        """What is not known is left out: a field without its number would say nothing."""
        fields: Fields = []
        if limit is not None:
            fields.append((b"ratelimit-policy", self._write_policy(limit).encode("ascii")))
        if remaining is not None:
            reset = "" if reset_after is None else f";t={whole_seconds(reset_after)}"
            text = f"{self._name};r={min(max(0, remaining), INTEGER_MAX)}{reset}"
            fields.append((b"ratelimit", text.encode("ascii")))
        return fields

    def _write_policy(self, limit: int) -> str:
        window_ns = self._window_ns
        if window_ns is None:
            return f"{self._name};q={min(limit, INTEGER_MAX)}"
        # The field counts whole seconds, so a limit over 200 ms is shown as that over a second.
        window_s = -(-window_ns // SECOND_NS)
        return f"{self._name};q={min(limit * window_s * SECOND_NS // window_ns, INTEGER_MAX)};w={window_s}"

    def write_grant(self, grant: Grant) -> Fields:
        return self.write(grant.limit, grant.remaining, grant.reset_after)

    def write_refusal(self, refused: Refused) -> Fields:
        """No Retry-After where no time can be promised."""
        fields = self.write(refused.limit, refused.remaining, refused.retry_after)
        if refused.retry_after is not None:
            fields.append((b"retry-after", str(whole_seconds(refused.retry_after)).encode("ascii")))
        return fields


def find_window_ns(resource: Resource) -> int | None:
    """What the limits of a resource are counted over, as far as is known here: a daemon tells its
    clients of periods, not of windows. Months differ, and a share has no limits."""
    match resource.policy:
        case RatePolicy() | PoolPolicy() as policy:
            return policy.period_ns
        case QuotaPolicy() as policy:
            even = policy.zone == "UTC" or policy.window == "hour"  # elsewhere some days have 23 hours
            return WINDOWS_NS.get(policy.window) if even else None
    if isinstance(resource.decider, FarDecider) and resource.kind in ("rate", "pool"):
        return resource.decider.fallback.period_ns
    return None


def quote(name: str) -> str:
    """A string of a structured field, which is printable ASCII."""
    plain = "".join(c if " " <= c <= "~" else "_" for c in name)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))
