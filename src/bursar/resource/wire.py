"""What clients and the daemon say to each other.

Each acquisition has a number of the client's own, never used again in its life. Asking twice with
one number is asking once, so a client that lost its connection asks again without fear; giving
back names the number, so giving back twice is giving back once. A lot is named by the number of the
acquisition that brought it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.fleet.layout import NodeRecord
from bursar.policy.values import WithoutBursar
from bursar.resource.decider import Explanation, Offers
from bursar.resource.statistics import Statistics
from bursar.world import Message

TOPIC = "bursar/client"
RECALL_TOPIC = "bursar/recall"


class Described(msgspec.Struct, frozen=True):
    """What a client must know of a resource."""

    kind: str
    offers: Offers
    without_bursar: WithoutBursar
    period_ns: int
    drift_ppm: int
    verbs: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True):
    """A lot is over: tokens and requests granted from it, those that the client refused by itself
    meanwhile, and the tokens that are left of it. What comes back later (a grant that was settled
    for less) is told again. `serial` makes telling twice telling once."""

    serial: int
    lot: int
    granted: int
    requests: int
    unspent: int
    refused: int = 0
    refusals: int = 0


class Open(Message, frozen=True):
    token: str | None = None


class Take(Message, frozen=True):
    """`names` are what a claim claims; `ahead`: a lot is welcome; `told`: lots of this client that
    are over."""

    number: int
    resource: str
    tenant: str
    amount: int
    wait_ns: int
    key: str | None = None
    names: tuple[str, ...] = ()
    priority: int = 0
    ahead: bool = False
    told: tuple[Told, ...] = ()
    hold_ns: int = 0


UNDONE = -1
"""In place of how many tokens were not used: nobody was told of the grant, so that nobody uses it."""


class GiveBack(Message, frozen=True):
    """Pairs of number and how many of its tokens were not used (or UNDONE); and lots that are over."""

    grants: tuple[tuple[int, int], ...]
    told: tuple[Told, ...] = ()


class Settle(Message, frozen=True):
    """`number` is that of the acquisition, if it was this client's."""

    resource: str
    id: str
    used: int | None
    number: int = 0


class Release(Message, frozen=True):
    """A claim is let go of: the grant of that id and attempt. `number` as in Settle."""

    resource: str
    id: str
    attempt: int
    number: int = 0


class Grow(Message, frozen=True):
    """See that the grant has so many tokens. `number` as in Settle; answered by how many it has."""

    resource: str
    id: str
    size: int
    number: int = 0


class More(Message, frozen=True):
    """Claim these names for the grant too. `number` is that of its acquisition; answered by Given."""

    resource: str
    number: int
    names: tuple[str, ...]
    wait_ns: int


class Extend(Message, frozen=True):
    """The grant expires so long from now on. `number` as in Settle."""

    resource: str
    id: str
    hold_ns: int
    number: int = 0


class Explain(Message, frozen=True):
    resource: str
    tenant: str


class Count(Message, frozen=True):
    """`most`, `find`: which tenants' rows (`bursar.resource.excerpts`); 0 for those of all."""

    resource: str
    most: int = 0
    find: tuple[str, ...] = ()


class Do(Message, frozen=True):
    """A verb of the kind's own."""

    resource: str
    verb: str
    arguments: dict[str, Any]


class Alive(Message, frozen=True):
    """The client still holds what it holds."""


class Fleet(Message, frozen=True):
    """Which nodes are up?"""


Requests = (
    Open | Take | GiveBack | Settle | Release | Grow | More | Extend | Explain | Count | Do | Alive | Fleet
)


class Opened(Message, frozen=True):
    resources: Mapping[str, Described]


class Given(Message, frozen=True):
    """A grant. `good_ns`: how long its lot is good, counted from the daemon's answer."""

    amount: int
    period: int = 0
    ahead: int = 0
    good_ns: int = 0
    id: str = ""
    fence: Mapping[str, int] | None = None
    fallback: str | None = None
    replayed: bool = False
    used: int | None = None
    limit: int | None = None
    remaining: int | None = None
    reset_ns: int | None = None
    attempt: int = 0


class Refusal(Message, frozen=True):
    why: str
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = None
    reason: str = "limit"


class Uncertain(Message, frozen=True):
    why: str
    fallback: str


class Misused(Message, frozen=True):
    """The request makes no sense; asking again brings the same."""

    why: str


class Denied(Message, frozen=True):
    """Whoever asks has no right to that."""

    why: str


class NotOpened(Message, frozen=True):
    """The session is not open (the daemon may have restarted), or not any more (a token was revoked):
    open it, then ask again."""


class Done(Message, frozen=True):
    """It was done; `value` is what a verb returned."""

    value: Any = None


class Explained(Message, frozen=True):
    explanation: Explanation


class Counted(Message, frozen=True):
    statistics: Statistics


class FleetTold(Message, frozen=True):
    """`name` is the node that answers, `nodes` are those that are up, itself among them, by name."""

    name: str
    nodes: Mapping[str, NodeRecord]


Answers = Opened | Given | Done | Explained | Counted | FleetTold
Replies = Answers | Refusal | Uncertain | Misused | Denied | NotOpened


class Recall(Message, frozen=True):
    """From the daemon to a client: this lot is over, say what is left of it."""

    lot: int


class Recalled(Message, frozen=True):
    told: Told | None
