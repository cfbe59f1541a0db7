"""What bounds those who connect: how many, how much each may occupy, and what the system has for them."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from bursar.runtime import logs
from bursar.world import MILLISECOND_NS, SECOND_NS

CONNECTIONS = 4_000
"""Unless the policy says otherwise."""

CONNECTIONS_MIN = 20
NEW_MAX = 256
FILES_KEPT_MAX = 256
"""Files for all else: journals, the store, other listeners, connections to nodes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of this node one peer, or all of them, may occupy.

    connections_max     of all. Three quarters are for clients, a fifth for those who have not said who they
                        are, who may also wait in the places that clients do not need; the rest is the
                        nodes' own, and no client can take it
    quiet_ns, greeting_ns   where places are scarce, one who has not said a byte, or not said who it is,
                        for so long makes way for the next (sooner where few of those who came of late
                        did say it); all are cut off after hello_timeout_ns
    client_idle_ns      where clients have all their places, one that has said nothing for so long makes way
                        for the next; it connects again when it has something to say
    """

    connections_max: int = CONNECTIONS
    connections_per_peer_max: int = 4
    queue_max_bytes: int = 1024 * 1024
    unread_max_bytes: int = 16 * 1024 * 1024
    requests_max: int = 10_000
    hello_timeout_ns: int = 5 * SECOND_NS
    stall_timeout_ns: int = 10 * SECOND_NS
    quiet_ns: int = 100 * MILLISECOND_NS
    greeting_ns: int = SECOND_NS
    client_idle_ns: int = 10 * SECOND_NS

    @property
    def clients_max(self) -> int:
        return self.connections_max * 3 // 4

    @property
    def new_max(self) -> int:
        """Those who have not said who they are, where clients have all their places."""
        return max(2, min(NEW_MAX, self.connections_max // 5))

    @property
    def unproved_max(self) -> int:
        """Clients, and those who have not said who they are."""
        return self.clients_max + self.new_max

    @property
    def new_per_address_max(self) -> int:
        return max(1, self.unproved_max * 3 // 4)


def raise_file_limit() -> None:
    """Let this process open as many files as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fit_connections(wanted: int, *, files_each: int = 1) -> int:
    """As many as were asked for, or as the open files of this process allow: then that is said."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    possible = max(CONNECTIONS_MIN, (files - min(FILES_KEPT_MAX, files // 8)) // files_each)
    if possible < wanted:
        logs.warning(
            "connections.lowered",
            wanted=wanted,
            taken=possible,
            open_files=files,
            remedy=f"raise the limit of open files (ulimit -n) to {wanted * files_each + FILES_KEPT_MAX}",
        )
    return min(wanted, possible)
