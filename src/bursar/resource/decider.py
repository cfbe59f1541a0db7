"""What a kind offers the front door: it decides, takes back, explains and counts. Nothing else.

The door (`bursar.resource.door`) does what is the same for every kind: checking, lots, waiting and
its deadlines, shadow, fallback, cancelling, counting. So a kind's part is synchronous: it is handed
tickets, answers each once, now or later, and can be told to stop trying.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from bursar.errors import DeniedError, Refused, Unknown, UsageError
from bursar.resource.lots import Issue
from bursar.resource.strangers import Strangers
from bursar.resource.tickets import Granted, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind can do beyond granting tokens. Asking for what it cannot is a UsageError.

    keys      `key=` makes two acquisitions one
    names     it grants names (`claim`), not a number of tokens
    settles   a grant has a durable id, and may be settled from anywhere until it expires
    lots      tokens may be handed out ahead of use, so `try_acquire` has something to take
    refunds   work that failed before it said what it used has used nothing
    holds     a grant's time may be chosen and put off (`hold=`, `extend`), its use told in parts (`spend`)
    over      where it holds: what becomes of use beyond the grant, by the policy
    """

    keys: bool = False
    names: bool = False
    settles: bool = False
    lots: bool = False
    refunds: bool = False
    holds: bool = False
    over: str = "refuse"


class Seen(msgspec.Struct, frozen=True):
    """What a holder of lots saw since it last said, in tokens: `arrived` were spent from lots,
    `refused` were turned away at the holder itself, and both are demand. `requests` were granted."""

    arrived: int = 0
    refused: int = 0
    requests: int = 0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant gets what it gets: the answer to `bursar why RESOURCE TENANT`.

    `sentences` are for people, in the order in which the decision is made; `figures` are the
    numbers they rest on, by name, for programs."""

    resource: str
    kind: str
    tenant: str
    sentences: tuple[str, ...]
    figures: Mapping[str, int | float | str | bool | None] = {}


Recall = Callable[[Issue], Awaitable[int | None]]

Verb = Callable[..., Awaitable[Any]]
"""What else a kind does (top up, fence, submit a task): plain values in and out, so that it can be
asked for over the wire too."""


WarningTaker = Callable[[str, int], None]
"""Told an account, and how many percent of its limit are used."""


def _nothing() -> None: ...


def _forget_nobody(tenant: str) -> None: ...


class Decider(Protocol):
    """The kind's part of a resource. What has a body here is for the kinds that need no other."""

    kind: str
    name: str
    offers: Offers
    answer_ns: int = 200 * MILLISECOND_NS
    """The longest that deciding may take beyond what the caller waits. A quarter of a second is promised: the
    rest is for the answer to reach whoever asked. (25 ms of it were too little for a busy node's HTTP.)"""

    stop_ns: int = SECOND_NS
    """The longest that stopping may take."""

    verbs: Mapping[str, Verb] = {}
    collect: Callable[[], None] = staticmethod(_nothing)
    """Set by the door. Called by the kind before it looks at demand: what was spent from lots here
    is observed then."""

    forget: Callable[[str], None] = staticmethod(_forget_nobody)
    """Set by the door. Called by the kind when it has forgotten a tenant of a template: so does the door."""

    strangers: Strangers | None = None
    """Who is here under a template; the door asks it before it lets one more in. None: it keeps none."""

    recall: Recall | None = None
    """Set by whoever hands lots to others: ends a lot that is out, and says how many tokens came back;
    None if its holder did not answer."""

    async def start(self) -> None:
        """Begin to decide. Called once."""
        return

    async def stop(self) -> None:
        """Stop deciding and let go of what is held, within `stop_ns`."""
        return

    async def reconfigure(self, policy: Any) -> None:
        """Take a changed policy; raises UsageError for what cannot change while it runs."""
        raise UsageError(f"the kind {self.kind} cannot change while it runs; restart to apply it")

    def is_ready(self) -> bool:
        """Whether an acquire now would be decided (granted or refused, not Unknown)."""
        ...

    def most(self, ticket: Ticket) -> int | None:
        """The most tokens that one request of the tenant could ever be granted; None: any number."""
        ...

    def decide(self, ticket: Ticket) -> None:
        """Answer it now if that can be done at once; otherwise keep it, and answer it when it can be.
        With `ticket.ahead`, by the rules of lots: up to so many more, and only if nobody waits."""
        ...

    def patience_ns(self, ticket: Ticket) -> int:
        """How long deciding may take beyond what the caller waits, at most a quarter of a second: a
        pause of the kind's own, which no caller need know of. 0 where it is decided at once."""
        return 0

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | DeniedError | None:
        """Nobody waits any more. Returns why it was not granted, if that is known now; then the
        ticket is forgotten and must not be answered. None: it is being decided elsewhere, and will be
        answered all the same (the door gives back what comes too late)."""
        ...

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        """So many of its tokens (of the request or of its lot) were not used. The book takes them
        back within their period or interval, undoing count, pace and capacity; later it is nothing."""
        return

    def finish(self, granted: Granted) -> Awaitable[None] | None:
        """The work is over: whatever place it took is free, once what is returned is done. For a
        claim: its names are released. Never called for a grant that came from a lot."""
        return None

    def undo(self, tenant: str, granted: Granted) -> Awaitable[None] | None:
        """Nobody was told of the grant by its own answer: it is as if it had not been made. (Whoever asked
        again with its key may have been told of it meanwhile: then it is theirs, and stays.)"""
        if granted.id and self.offers.settles:
            return self.settle(granted.id, 0)
        self.take_back(tenant, granted, granted.amount)
        return self.finish(granted)

    def lose(self, granted: Granted) -> Awaitable[None] | None:
        """The client of a daemon that held it is gone, and said nothing."""
        return self.finish(granted)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        """What a holder of a lot saw: demand is estimated from this, never from lots. `granted` is
        the one that brought the lot."""
        return

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        """The lot that `granted` brought is over: what was seen since it was last told of, and what
        is left of it, which goes back."""
        self.observe(tenant, granted, seen)
        if unspent:
            self.take_back(tenant, granted, unspent)

    async def settle(self, id: str, used: int | None) -> None:
        """Where `offers.settles`: end the grant of that id, of which `used` were used (None: all of
        it). Settling again with the same number does nothing. Raises UsageError (another number,
        expired, not known), or Unknown if it cannot be learnt now: then settle again later."""
        raise UsageError(f"{self.name} is of kind {self.kind}, whose grants have no ids; a quota's have")

    async def grow(self, id: str, size: int) -> int:
        """Where `offers.holds`: see that the grant of that id has so many tokens; how many it has. Asking
        again for as many does nothing. Raises Refused (there is less left for it), UsageError (it is over),
        Unknown."""
        raise UsageError(f"{self.name} is of kind {self.kind}, whose grants have no ids; a quota's have")

    async def extend(self, id: str, hold_ns: int) -> None:
        """Where `offers.holds`: it expires so long from now on. Raises UsageError (it is over), Unknown."""
        raise UsageError(f"{self.name} is of kind {self.kind}, whose grants have no ids; a quota's have")

    async def more(self, granted: Granted, names: tuple[str, ...], wait_ns: int) -> None:
        """Where `offers.names`: give the grant these names too, all or none; it says so then. Raises Refused,
        Unknown, UsageError."""
        raise UsageError(f"{self.name} is of kind {self.kind}, which has no names; a claim has")

    async def release(self, id: str, attempt: int) -> None:
        """Where `offers.names`: release that grant of that id, if nobody else was given it since. Raises
        Unknown: then release it again later."""
        raise UsageError(f"{self.name} is of kind {self.kind}, which has no names; a claim has")

    async def whose(self, id: str) -> str:
        """Where `offers.settles`: the tenant of the grant of that id. Raises UsageError, Unknown."""
        raise UsageError(f"{self.name} is of kind {self.kind}, whose grants have no ids; a quota's have")

    def shadow_fence(self, ticket: Ticket) -> Mapping[str, int]:
        """Where `offers.names`: a fence for each name that no guard accepts."""
        return {}

    def on_warning(self, taker: WarningTaker) -> None:
        """Tell `taker` when so much of a budget is used, once for all nodes: for kinds with budgets."""
        return

    def explain(self, tenant: str) -> Explanation | Awaitable[Explanation]: ...

    def statistics(self) -> msgspec.Struct | Awaitable[msgspec.Struct]:
        """A frozen snapshot; each of its fields says whether it is a counter, a gauge or a label
        (`bursar.resource.statistics`)."""
        ...
