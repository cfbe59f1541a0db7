"""What bounds a peer."""

from __future__ import annotations

from dataclasses import dataclass

from bursar.world import SECOND_NS


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of this node one peer, or all of them, may occupy."""

    connections_max: int = 1_000
    connections_per_peer_max: int = 4
    queue_max_bytes: int = 1024 * 1024
    unread_max_bytes: int = 16 * 1024 * 1024
    requests_max: int = 10_000
    hello_timeout_ns: int = 5 * SECOND_NS
    stall_timeout_ns: int = 10 * SECOND_NS
