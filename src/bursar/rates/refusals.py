"""Why a request does not go at a server, and when it would: true numbers, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.errors import Refused, Unknown
from bursar.resource import Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS

if TYPE_CHECKING:
    from bursar.rates.dispatcher import Dispatcher

OPENING_NS = 50 * MILLISECOND_NS
"""Whoever is to come back in the next period is told to come so long after it should have begun, or a
twentieth of a period: an ordinary pause between two is over by then."""

DISK_NS = 50 * MILLISECOND_NS
"""How long it may take until tokens are written to the journal."""

TURN_NS = MILLISECOND_NS
"""How long to wait for those who came first. Nobody knows; if nobody else asks, they are gone by then."""


def explain_refusal(server: Dispatcher, now: int, ticket: Ticket, index: int) -> Refused | Unknown:
    if not server.book.may_dispatch(now):
        return Unknown(f"no controller has granted tokens to {server.book.name} for this period")
    retry_at, why = _find_obstacle(server, now, ticket, index)
    return Refused(
        f"{ticket.tenant} {why}",
        limit=server.promises.terms(index).limit,
        remaining=_count_remaining(server, now, ticket, index),
        retry_after=None if retry_at is None else max(0, retry_at - now) / SECOND_NS,
    )


def _count_remaining(server: Dispatcher, now: int, ticket: Ticket, index: int) -> int:
    """What it could have had now, which is less than it asked for: the sentence says what there is in
    this period."""
    ready = server.book.scheduler.count_ready(index, now)
    return min(ready, ticket.amount - 1) if server.has_room(now) else 0


def _find_obstacle(server: Dispatcher, now: int, ticket: Ticket, index: int) -> tuple[int | None, str]:
    """(when the same request would go if nobody else asked, what stands in its way)."""
    name, unused, remaining = server.book.name, server.unused(index), server.remaining(index)
    due_at = server.book.scheduler.find_due(index, ticket.amount)
    if ticket.amount > unused:
        opens_at = server.ends_at + min(OPENING_NS, server.period_ns // 20)
        return max(opens_at, due_at), _tell_used_up(server, ticket.amount, index)
    left = "has no limit" if remaining is None else f"has {remaining} tokens left"
    if due_at > now:
        return due_at, f"{left}, but pacing spreads them over the period"
    free_at = server.find_free(index)
    if now < free_at:
        return free_at, f"{left}, but {name} is at its capacity"
    if server.services.is_full(now):
        count = server.services.count
        return server.services.find_retry(now), f"{left}, but {name} is busy with {count} requests already"
    if server.waits_for_disk(ticket):
        return now + DISK_NS, f"{left}, but {name} has still to write them to its journal"
    return now + TURN_NS, f"{left}, but others came first"


def _tell_used_up(server: Dispatcher, amount: int, index: int) -> str:
    name, unused, remaining = server.book.name, server.unused(index), server.remaining(index)
    if server.book.alone:
        return f"has {unused} tokens at {name}, which goes on without a controller, and asked for {amount}"
    if remaining is None or remaining >= amount:
        return f"has {unused} tokens at {name} for now, and asked for {amount}"
    limit = server.promises.terms(index).limit
    if remaining == 0 and not server.used(index):
        return f"has none of its {limit} tokens at {name} in this period: other servers have them"
    if remaining == 0:
        return f"has used its {limit} tokens for this period"
    return f"has {remaining} of its {limit} tokens left for this period, and asked for {amount}"
