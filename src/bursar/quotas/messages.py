"""What the nodes of a quota say to each other.

Every message is about one account and carries, besides what it says, the sender's unacknowledged
transfers to the target and how far the target's own have been made durable. So a re-allocation
needs no messages of its own to move units, and any message repairs what a lost one left open.
"""

from __future__ import annotations

import msgspec

from bursar.world import Message

Pair = tuple[str, str, int, int]
"""(from, to, last transfer sent, last received) of a channel; -1 where that end has not spoken."""


class Note(Message, frozen=True):
    """source, target   ledgers, not machines: a message to a ledger that is no more is ignored
    units            (number, amount) of every transfer that is not acknowledged
    ack              the last transfer from `target` that is durable at `source`"""

    account: str
    source: str
    target: str
    units: tuple[tuple[int, int], ...]
    ack: int


class Credit(Note, frozen=True):
    """Transfers and acknowledgements, nothing else."""


class Collect(Note, frozen=True):
    """Parent to child (algorithm 1): what can your subtree spare?

    wave        the coordinator's number for this aggregation
    full        everything, the threshold too, and a statement of it: the root wants to decide
    pool        the surplus that the coordinators above have already (the stop test, line 39)
    threshold   the thresholds that go with it
    mints       how many entries of the account's list the coordinator knows
    """

    wave: int
    full: bool
    pool: int
    threshold: int
    mints: int


class Statement(msgspec.Struct, frozen=True):
    """A subtree that handed over everything, and the state in which it did.

    members     ledgers that answered
    loose       channels whose two ends did not agree within the subtree
    held        units in open holds and lots: they may come back
    ahead       units in lots: nothing is decided before they are back or spent
    mints       the fewest entries of the account's list that any of them has taken in
    """

    members: tuple[str, ...]
    loose: tuple[Pair, ...]
    held: int
    ahead: int
    mints: int


class Offer(Note, frozen=True):
    """Child to parent: what the subtree can spare is in `units`. Unasked, it is a request.

    wave        of the Collect that it answers; 0 unasked
    number      the child's own, rising: an older one that arrives late says nothing
    threshold   of all nodes that took part (T, eq. 8)
    rate        units a second of all nodes that took part
    kept        units that stay in the subtree
    size        the sum over those nodes of their mean request
    nodes       how many took part
    wants       amounts of requests that wait there, oldest first
    low         below the threshold, or wants: asks for a share
    statement   what a full wave found, else None
    """

    wave: int
    number: int
    threshold: int
    rate: float
    kept: int
    size: int
    nodes: int
    wants: tuple[int, ...]
    low: bool
    statement: Statement | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The root heard everybody.

    left        all that was unspent anywhere, after the requests that it could serve
    served      units for those requests: gone, unless one of them is no longer there
    memory_ns   how long it is to be believed. 0: nothing was held, on its way to a request, or
                perhaps on its way from a fenced ledger, so only a top-up brings more
    mints       how many entries of the account's list everybody had taken in
    """

    left: int
    served: int
    memory_ns: int
    mints: int


class Share(Note, frozen=True):
    """Parent to child (algorithm 2): your share is in `units`; the re-allocation is over.

    offer         the number of the offer that it answers
    lifetime_ns   how long the units of the whole will last at the present rate; 0 if unknown
    scarce        so little is left that it stays at the root: ask for each request
    verdict       what the root decided, if it did
    """

    offer: int
    lifetime_ns: int
    scarce: bool
    verdict: Verdict | None = None


class Busy(Note, frozen=True):
    """Child to parent: PARTICIPATING in another re-allocation; ask again (line 24). `gone`: this
    node has another parent now; do not ask again."""

    wave: int
    gone: bool = False


class Parting(Note, frozen=True):
    """Of a node that leaves: all that it had is in `units`; to be acknowledged at once."""


Messages = Credit | Collect | Offer | Share | Busy | Parting
