"""What clients and the daemon say to each other.

Each acquisition has a number of the client's own, never used again in its life. Asking twice with
one number is asking once, so a client that lost its connection asks again without fear; giving
back names the number, so giving back twice is giving back once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.policy.values import WithoutBursar
from bursar.resource import Explanation
from bursar.world import Message

TOPIC = "bursar/client"
FAILED = -1
"""In place of what was used: the work ended with an error and did not say. The kind decides."""


class Described(msgspec.Struct, frozen=True):
    """What a client must know of a resource: what to do when the daemon cannot be reached, and how
    many tokens it may hold ahead of use, for how long."""

    kind: str
    without_bursar: WithoutBursar
    prefetch_tokens: int = 0
    prefetch_ns: int = 0


class Open(Message, frozen=True):
    token: str | None = None


class Take(Message, frozen=True):
    """`names` are what a claim claims; other kinds have none."""

    number: int
    resource: str
    tenant: str
    amount: int
    wait_ns: int
    key: str | None = None
    names: tuple[str, ...] = ()


class GiveBack(Message, frozen=True):
    """Pairs of number and what was used of it; None where the client did not say."""

    grants: tuple[tuple[int, int | None], ...]


class Explain(Message, frozen=True):
    resource: str
    tenant: str


class Statistics(Message, frozen=True):
    resource: str


Requests = Open | Take | GiveBack | Explain | Statistics


class Opened(Message, frozen=True):
    resources: Mapping[str, Described]


class Granted(Message, frozen=True):
    amount: int
    fence: Mapping[str, int] = {}
    fallback: str | None = None


class Refusal(Message, frozen=True):
    why: str
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = None


class Uncertain(Message, frozen=True):
    why: str
    fallback: str


class Misused(Message, frozen=True):
    """The request makes no sense; asking again brings the same."""

    why: str


class NotOpened(Message, frozen=True):
    """The session is not open (the daemon may have restarted): open it, then ask again."""


class Returned(Message, frozen=True):
    count: int


class Explained(Message, frozen=True):
    explanation: Explanation


class Counted(Message, frozen=True):
    statistics: Mapping[str, Any]


TakeReplies = Granted | Refusal | Uncertain | Misused | NotOpened
Replies = Opened | Granted | Refusal | Uncertain | Misused | NotOpened | Returned | Explained | Counted
