"""What a share says of itself: `ShareStatistics`, of which API, metrics and dashboard are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.resource.rows import Rows
from bursar.resource.statistics import counter, gauge, labelled, listed
from bursar.shares.book import TargetBook
from bursar.shares.target import Progress
from bursar.world import SECOND_NS


class ShareTenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant: its terms, and its part of the handout in force."""

    weight: Annotated[int, gauge("its weight")]
    record: Annotated[int, gauge("tokens that it has lent in all, below zero if it owes them")]
    demand: Annotated[int, gauge("tokens that it wanted in the last interval")] = 0
    initial: Annotated[int, gauge("tokens of an interval that its weight gives it")] = 0
    redistributed: Annotated[int, gauge("the same after lending and borrowing")] = 0
    tokens: Annotated[int, gauge("the same after debts were paid: what it gets")] = 0
    rate: Annotated[int, gauge("tokens a second that it gets; 0 while it asks for nothing")] = 0


class ShareStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One target."""

    capacity: Annotated[int, gauge("tokens a second that the target can do")]
    interval_s: Annotated[float, gauge("how often tokens are handed out anew", "seconds")]
    intervals: Annotated[int, counter("intervals closed")]
    skipped: Annotated[int, counter("intervals skipped because demand could not be read")]
    handed_out: Annotated[int, counter("tokens handed out in all intervals")]
    tokens: Annotated[int, gauge("tokens of the interval under way")]
    tenants: Annotated[Mapping[str, ShareTenantStatistics], labelled("tenant")]
    problems: Annotated[tuple[str, ...], listed("what was wrong with the demand that was read")] = ()


def read_statistics(book: TargetBook, progress: Progress) -> ShareStatistics:
    return ShareStatistics(
        capacity=book.capacity.per(SECOND_NS),
        interval_s=book.interval_ns / SECOND_NS,
        intervals=progress.intervals,
        skipped=progress.skipped,
        handed_out=progress.tokens,
        tokens=book.handout.tokens,
        tenants=Rows(book.listed, lambda name: _read_tenant(book, name)),
        problems=tuple(progress.problems),
    )


def _read_tenant(book: TargetBook, tenant: str) -> ShareTenantStatistics:
    """Raises KeyError if the tenant has gone since its row was to be read."""
    terms = book.terms(tenant)
    if terms is None:
        raise KeyError(tenant)
    weight, record = terms.weight, book.record(tenant)
    line = book.handout.lines.get(tenant)
    if line is None:
        return ShareTenantStatistics(weight=weight, record=record)
    return ShareTenantStatistics(
        weight=weight,
        record=record,
        demand=line.demand,
        initial=line.initial,
        redistributed=line.redistributed,
        tokens=line.final,
        rate=line.rate,
    )
