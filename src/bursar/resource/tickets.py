"""A request on its way to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from bursar.errors import BursarError


class Granted:
    """A decision for a request, as the kind made it.

    amount     tokens charged for the request itself
    period     the period they were charged to, where the kind has periods; else 0
    ahead      further tokens charged, for requests to come: a lot, good until `until`
    until      this node's clock, when the lot ends
    id         a name for it that outlives this process, where it can be settled later; else ""
    attempt    for a claim: which grant of that id it is; whoever is given it later has a higher one
    fence      for a claim: the phase of each name
    fallback   None, or what the kind did because nobody answered it
    replayed   the key was used before: this is that acquisition, and `used` what was used of it
    limit, remaining, reset_ns   where the tenant stands after it, for people and RateLimit fields
    data       the kind's own
    lot        what its lot is given back by, if not by this
    """

    __slots__ = (
        "ahead",
        "amount",
        "attempt",
        "data",
        "fallback",
        "fence",
        "id",
        "limit",
        "lot",
        "period",
        "remaining",
        "replayed",
        "reset_ns",
        "until",
        "used",
    )

    def __init__(
        self,
        amount: int,
        *,
        period: int = 0,
        ahead: int = 0,
        until: int = 0,
        id: str = "",
        attempt: int = 0,
        fence: Mapping[str, int] | None = None,
        fallback: str | None = None,
        replayed: bool = False,
        used: int | None = None,
        limit: int | None = None,
        remaining: int | None = None,
        reset_ns: int | None = None,
        data: Any = None,
        lot: Granted | None = None,
    ) -> None:
        self.amount = amount
        self.period = period
        self.ahead = ahead
        self.until = until
        self.id = id
        self.attempt = attempt
        self.fence = fence
        self.fallback = fallback
        self.replayed = replayed
        self.used = used
        self.limit = limit
        self.remaining = remaining
        self.reset_ns = reset_ns
        self.data = data
        self.lot = lot


Answer = Granted | BursarError
"""An error is `Refused`, `Unknown` or `UsageError`."""


class Ticket:
    """One request: what is asked, and its answer, given once.

    wait_ns  how long the caller waits
    at_once  it cannot wait for anybody elsewhere, not even a moment (`try_acquire`)
    hold_ns  how long it may go on until it expires, for kinds where it does; 0: as the policy says
    ahead    how many tokens the caller would take for requests to come; 0 for none
    held_by  whose lot that would be: one holder of a tenant has one lot at a time
    place    where it waits: the deciding kind's own
    late     takes the answer once nobody waits for it any more
    by       when it must be answered, if that is sooner than what `wait_ns` allows
    """

    __slots__ = (
        "_future",
        "ahead",
        "amount",
        "answer",
        "at_once",
        "by",
        "held_by",
        "hold_ns",
        "key",
        "late",
        "names",
        "place",
        "priority",
        "tenant",
        "wait_ns",
    )

    def __init__(
        self,
        tenant: str,
        amount: int,
        *,
        key: str | None = None,
        names: tuple[str, ...] = (),
        priority: int = 0,
        wait_ns: int = 0,
        at_once: bool = False,
        ahead: int = 0,
        held_by: str = "",
        hold_ns: int = 0,
    ) -> None:
        self.tenant = tenant
        self.amount = amount
        self.key = key
        self.names = names
        self.priority = priority
        self.wait_ns = wait_ns
        self.at_once = at_once
        self.ahead = ahead
        self.held_by = held_by
        self.hold_ns = hold_ns
        self.by: int | None = None
        self.place: Any = None
        self.answer: Answer | None = None
        self.late: Callable[[Ticket, Answer], None] | None = None
        self._future: asyncio.Future[None] | None = None

    def give(self, answer: Answer) -> None:
        """The answer, once. Whoever waits for it goes on."""
        if self.late is not None:
            self.late(self, answer)
            return
        assert self.answer is None, "a request is answered once"
        self.answer = answer
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> Answer:
        """The answer, when there is one."""
        if self.answer is None:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        assert self.answer is not None
        return self.answer
