"""A request that may go to any of several servers of a node: to one that can take it now, or it waits
at all that might, and goes where it is its turn first."""

from __future__ import annotations

from collections.abc import Sequence

from bursar.errors import Refused, Unknown
from bursar.rates.dispatcher import Dispatcher
from bursar.resource import Ticket

QUEUE_MAX = 100_000
"""Requests that may wait for one tenant at one server; the next one is refused at once."""

QUEUES_MAX = 8
"""Servers at which one request waits."""


def decide_among(servers: Sequence[Dispatcher], ticket: Ticket) -> None:
    """Answer it now, or keep it until it is its turn."""
    tenant = ticket.tenant
    if len(servers) > 1:
        servers = sorted(servers, key=lambda server: -server.left(tenant))
    if any(server.grants_now(ticket) for server in servers):
        return
    servers[0].note_arrival(ticket)
    if ticket.wait_ns <= 0 and not servers[0].patience_ns(ticket):
        ticket.give(_find_refusal(servers, ticket))
    elif servers[0].waiting(tenant) >= QUEUE_MAX:
        why = f"{QUEUE_MAX} requests of {tenant} wait at {servers[0].book.name} already"
        ticket.give(Refused(why))
    else:
        _queue(servers, ticket)


def _queue(servers: Sequence[Dispatcher], ticket: Ticket) -> None:
    """It waits where the tenant has most left, and wherever else it has been allowed enough for it: a
    request that is larger than the tenant's part of any server is to have tokens moved to one of them."""
    ticket.place = []
    for server in servers[:QUEUES_MAX]:
        if ticket.answer is None and (server is servers[0] or server.allows(ticket)):
            ticket.place.append(server)
            server.queue(ticket)


def withdraw(ticket: Ticket) -> Refused | Unknown:
    """Nobody waits for it any more. Why it did not go."""
    servers: Sequence[Dispatcher] = ticket.place
    for server in servers:
        server.drop(ticket)
    return _find_refusal(servers, ticket)


def _find_refusal(servers: Sequence[Dispatcher], ticket: Ticket) -> Refused | Unknown:
    """From the server that could take it first."""
    found = [server.explain_refusal(ticket) for server in servers]
    return min(found, key=_tell_delay)


def _tell_delay(answer: Refused | Unknown) -> float:
    retry_after = answer.retry_after if isinstance(answer, Refused) else None
    return float("inf") if retry_after is None else retry_after
