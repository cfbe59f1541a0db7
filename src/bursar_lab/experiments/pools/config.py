"""What one process of a live run is told, and what it tells afterwards."""

from __future__ import annotations

from typing import Literal

import msgspec

from bursar.world import SECOND_NS

POOL = "records"
IDLE_S = 0.002
"""A rest: longer than the half millisecond of idleness below which Linux brings no other process to the
processor that was left."""

BACKLOG = 1 << 26
"""Requests that a client with unlimited demand says are waiting."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does.

    demand  a period's; None: as much as it gets
    card    the words of the node's card; None: what the processors can do is the node
    own     I/Os a second that the client's own card passes
    even    requests come at an even pace, not all at the start of a period
    pairs   so many pairs of measurements with and without tokens
    audit   what is spent is also counted in shared words, which outlive a client that is killed
    """

    role: Literal["monitor", "server", "client", "pairs"]
    store: str
    words: str
    socket: str | None = None
    tenant: str = ""
    seconds: float = 5.0
    period_ns: int = SECOND_NS
    tokens: bool = True
    many: bool = True
    paced: bool = True
    demand: int | None = None
    even: bool = False
    card: str | None = None
    own: int = 0
    pairs: int = 0
    batch: int = 1000
    reservations: dict[str, int] = {}
    capacity: int = 0
    client_capacity: int | None = None
    sigma: int = 0
    estimate: Literal["fixed", "printed", "adaptive"] = "fixed"
    convert: bool = True
    audit: bool = False
    seed: int = 0


class Counts(msgspec.Struct):
    """done: I/Os by period, or behind a card by the millisecond in which they were done; ratios: of
    each pair, with tokens over without; processor_s: what it took of the processors. A monitor: when
    each period began, what was its estimate, and what was issued and used."""

    done: dict[int, int] = {}
    ratios: list[float] = []
    began: dict[int, int] = {}
    capacity: dict[int, int] = {}
    issued: dict[int, int] = {}
    used: dict[int, int] = {}
    processor_s: float = 0.0


def audit_word(period: int) -> str:
    return f"audit/{period}"
