"""What a pool says of itself: `PoolStatistics`, of which API, metrics and dashboard are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.pools.engine import Engine
from bursar.pools.monitor_book import MonitorBook
from bursar.resource.rows import Rows
from bursar.resource.statistics import counter, gauge, labelled, listed


class PoolTenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's engine in this process, in the present period."""

    period: Annotated[int, gauge("the period that the engine is in")]
    reservation: Annotated[int, gauge("reserved tokens that it claimed in this period")]
    reserve: Annotated[int, gauge("reserved tokens that it still has")]
    hand: Annotated[int, gauge("tokens that it took from the pool and still has")]
    spent: Annotated[int, gauge("tokens spent in this period")]
    ahead: Annotated[int, gauge("tokens charged and out in lots, not known to be spent")]
    given_up: Annotated[int, gauge("reserved tokens that it gave up in this period")]
    denied: Annotated[int, gauge("tokens that it asked the pool for in this period and did not get")]
    claimed: Annotated[bool, gauge("whether it has the reservation of this period")]


class PoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, as this process sees it."""

    leading: Annotated[bool, gauge("whether the monitor of this process leads")]
    period: Annotated[int, gauge("the period that this monitor opened last")]
    capacity: Annotated[int, gauge("tokens that the data node can do in a period, as far as is known")]
    issued: Annotated[int, gauge("the most tokens that may be spent in this period as things stand")]
    used: Annotated[int, gauge("tokens that were spent in the last period")]
    unreachable: Annotated[int, counter("rounds in which the shared words could not be reached")]
    tenants: Annotated[Mapping[str, PoolTenantStatistics], labelled("tenant")]
    overreserving: Annotated[tuple[str, ...], listed("tenants that keep reserving more than they use")] = ()
    problems: Annotated[tuple[str, ...], listed("reservations that do not fit")] = ()


def read_statistics(
    book: MonitorBook, unreachable: int, engines: Mapping[str, Engine], short: Mapping[str, int]
) -> PoolStatistics:
    return PoolStatistics(
        leading=book.leading,
        period=book.period,
        capacity=book.accounts.capacity,
        issued=book.accounts.issued(),
        used=0 if book.outcome is None else book.outcome.used,
        unreachable=unreachable + sum(engine.unreachable for engine in engines.values()),
        tenants=Rows(engines, lambda name: read_tenant(engines[name])),
        overreserving=tuple(book.alerts()),
        problems=tuple(write_short(tenant, tokens) for tenant, tokens in short.items()),
    )


def write_short(tenant: str, tokens: int) -> str:
    return (
        f"the reservation of {tenant} does not fit: it is short of {tokens} a period "
        "(`bursar plan` says what would help)"
    )


def read_tenant(engine: Engine) -> PoolTenantStatistics:
    book = engine.book
    return PoolTenantStatistics(
        period=book.period,
        reservation=book.reservation,
        reserve=book.reserve,
        hand=book.hand,
        spent=book.spent - book.lent - engine.minted,
        ahead=book.lent,
        given_up=book.decayed,
        denied=book.denied,
        claimed=book.claimed,
    )
