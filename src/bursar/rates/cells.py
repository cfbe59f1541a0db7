"""What servers see, tenant by tenant: a table of few filled cells, by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.allocation.matrix import VALUE_MAX
from bursar.estimate import extrapolate
from bursar.rates.columns import Seen
from bursar.rates.roll import NO_TERMS
from bursar.rates.views import Picture, ServerView

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Cells(NamedTuple):
    """A cell is a tenant at a server where anything was seen of it, or where it is bound to. They stand in
    order: tenant by tenant, and of each by server.

    starts     of each tenant, its first cell; and how many there are
    first      whether the cell is its tenant's first
    order      of each cell, its place in the order server by server
    numbers    the tenants, in that order
    expected   the demand until the end of the period, of a tenant that is not backlogged
    stalled    nothing of its queue went for an interval
    """

    starts: Whole
    first: Flags
    order: Whole
    numbers: Whole
    tenant: Whole
    server: Whole
    dispatched: Whole
    arrived: Whole
    expected: Whole
    backlogged: Whole
    stalled: Flags
    front: Whole
    front_ns: Whole


def list_seen(picture: Picture) -> list[Whole]:
    """By server, of the named that have terms. Of what was dispatched in this period, a report from the one
    before tells nothing."""
    known = picture.named & (picture.limits != NO_TERMS)
    return [_look(view, known, picture) for view in picture.servers]


def arrange(tables: list[Whole], picture: Picture) -> Cells:
    """What was seen, in order."""
    table = np.concatenate(tables, axis=1)
    servers = np.repeat(np.arange(len(tables)), [each.shape[1] for each in tables])
    order = sort_numbers(table[0])
    tenant, dispatched, arrived, expected, backlogged, front, front_ns = table.take(order, axis=1)
    count = picture.limits.size
    starts = np.concatenate([[0], np.cumsum(np.bincount(tenant, minlength=count))])
    first = np.ones(tenant.size, np.bool_)
    first[1:] = tenant[1:] != tenant[:-1]
    stalled = front_ns >= picture.interval_ns
    columns = (servers[order], dispatched, arrived, expected, backlogged, stalled, front, front_ns)
    return Cells(starts, first, order, table[0], tenant, *columns)


def sort_numbers(numbers: Whole) -> Whole:
    """Their order, of equal ones as they are: 16 bits at a time, which takes one pass and no comparisons."""
    order: Whole = np.argsort(numbers.astype(np.uint16), kind="stable")
    if int(numbers.max(initial=0)) >= 2**16:
        order = order[np.argsort((numbers >> 16)[order].astype(np.uint16), kind="stable")]
    return order


def _look(view: ServerView, known: Flags, picture: Picture) -> Whole:
    """In the order of `arrange`."""
    kept = view.seen.numbers < known.size  # others were heard of since
    kept[kept] = known[view.seen.numbers[kept]]
    seen = view.seen if kept.all() else view.seen.keep(kept)
    arriving = extrapolate_all(seen.arrived, view.seen_ns, picture.time_left_ns)
    expected = np.minimum(seen.pending + arriving, VALUE_MAX)
    present = view.report.period == picture.period
    dispatched = seen.dispatched if present else np.zeros_like(expected)
    table = (seen.numbers, dispatched, seen.arrived, expected, seen.backlogged, seen.front, seen.front_ns)
    missing = _find_missing(view, seen, known, picture) if picture.bound else ()
    if not missing:
        return np.stack(table)
    more = np.zeros((len(table), len(missing)), np.int64)
    more[0] = missing
    return np.concatenate([np.stack(table), more], axis=1)


def _find_missing(view: ServerView, seen: Seen, known: Flags, picture: Picture) -> Sequence[int]:
    """Who may not use every server has a cell at each that it may, though there be nothing to see."""
    listed = set(seen.numbers.tolist())
    return [
        number
        for number, servers in picture.bound.items()
        if known[number] and view.name in servers and number not in listed
    ]


def extrapolate_all(counts: Whole, seen_ns: int, left_ns: int) -> Whole:
    """`extrapolate`, of a column."""
    if seen_ns <= 0 or left_ns <= 0:
        return np.zeros_like(counts)
    if int(counts.max(initial=0)) > (2**62 - seen_ns) // (2 * left_ns):  # more than 64 bits hold
        found = [min(extrapolate(count, seen_ns, left_ns), VALUE_MAX) for count in counts.tolist()]
        return np.array(found, np.int64)
    return (2 * counts * left_ns + seen_ns) // (2 * seen_ns)


def add_rows(cells: Cells, values: Whole) -> Whole:
    """The sum of each tenant's cells."""
    up_to = np.concatenate([[0], np.cumsum(values)])
    found: Whole = up_to[cells.starts[1:]] - up_to[cells.starts[:-1]]
    return found
