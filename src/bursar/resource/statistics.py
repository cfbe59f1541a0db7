"""What is counted, and how a snapshot says what its numbers are.

A kind's statistics are one frozen struct. Every field of it is annotated with what it is, so that
the API, the metrics, the dashboard and `--json` are all made from the same struct:

    class RateStatistics(msgspec.Struct, frozen=True, kw_only=True):
        leading: Annotated[bool, gauge("whether this node places tokens")]
        messages: Annotated[int, counter("messages sent to servers")]
        servers: Annotated[Mapping[str, ServerStatistics], labelled("server")]

Counters only rise while the node lives; everything that may fall is a gauge; texts are labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from bursar.resource.alerts import Alert


def counter(what: str, unit: str = "") -> msgspec.Meta:
    """A number that only rises. `unit` is a base unit ("seconds", "bytes") where it has one."""
    return msgspec.Meta(description=what, extra={"metric": "counter", "unit": unit})


def gauge(what: str, unit: str = "") -> msgspec.Meta:
    """A number (or a truth value) that goes up and down."""
    return msgspec.Meta(description=what, extra={"metric": "gauge", "unit": unit})


def label(what: str) -> msgspec.Meta:
    """A text: a label of the resource's info metric."""
    return msgspec.Meta(description=what, extra={"metric": "label"})


def labelled(name: str) -> msgspec.Meta:
    """A mapping whose keys are values of that label: structs by tenant, by server."""
    return msgspec.Meta(extra={"metric": "labelled", "label": name})


def histogram(what: str, unit: str = "") -> msgspec.Meta:
    """A `Waited`: how often, by how long."""
    return msgspec.Meta(description=what, extra={"metric": "histogram", "unit": unit})


def listed(what: str) -> msgspec.Meta:
    """For people only: no metric is made of it."""
    return msgspec.Meta(description=what, extra={"metric": "none"})


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What the front door counted for one tenant since this node started: tokens, and requests."""

    granted: Annotated[int, counter("tokens granted")] = 0
    granted_requests: Annotated[int, counter("requests granted")] = 0
    refused: Annotated[int, counter("tokens refused")] = 0
    refused_requests: Annotated[int, counter("requests refused")] = 0
    unknown: Annotated[int, counter("tokens asked for of which nothing could be learnt in time")] = 0
    unknown_requests: Annotated[int, counter("requests of which nothing could be learnt in time")] = 0
    would_refuse: Annotated[int, counter("tokens that shadow mode let through")] = 0
    would_refuse_requests: Annotated[int, counter("requests that shadow mode let through")] = 0
    fallback: Annotated[int, counter("tokens granted by without_bursar")] = 0
    fallback_requests: Annotated[int, counter("requests granted by without_bursar")] = 0
    returned: Annotated[int, counter("tokens given back unused")] = 0


WAIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests that had to wait did so: `counts[i]` of them at most `bounds_s[i]`, the last
    ones longer. Requests that were decided at once are in the first."""

    bounds_s: tuple[float, ...] = WAIT_BOUNDS_S
    counts: tuple[int, ...] = (0,) * (len(WAIT_BOUNDS_S) + 1)
    sum_s: float = 0.0


class WaitCounter:
    """Counts waits."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(WAIT_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, wait_s: float, requests: int = 1) -> None:
        self._counts[bisect_left(WAIT_BOUNDS_S, wait_s)] += requests
        self._sum_s += wait_s * requests

    def read(self) -> Waited:
        return Waited(counts=tuple(self._counts), sum_s=self._sum_s)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What all tenants together have, where there are not rows of all of them."""

    tenants: int
    granted: int
    refused: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """A resource: what the door counted, and what its kind says (`part`)."""

    resource: Annotated[str, label("the resource")]
    kind: Annotated[str, label("its kind")]
    shadow: Annotated[bool, gauge("whether it only counts and refuses nobody")]
    without_bursar: Annotated[str, label("what callers do while bursar cannot be reached")]
    ready: Annotated[bool, gauge("whether an acquire would be decided now")]
    waiting: Annotated[int, gauge("requests that wait")]
    ahead: Annotated[int, gauge("tokens out in lots, charged and not known to be spent")]
    tenants: Annotated[Mapping[str, Tally], labelled("tenant")]
    waited: Annotated[Waited, histogram("how long requests waited", "seconds")]
    part: Any
    alerts: Annotated[tuple[Alert, ...], listed("what was told lately, newest last")] = ()
    totals: Annotated[Totals | None, listed("of all tenants, where rows were left out")] = None
