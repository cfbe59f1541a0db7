"""What servers see, tenant by tenant: a table of few filled cells, by rows."""

from __future__ import annotations

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
    expected   the demand until the end of the period, of a tenant that is not backlogged
    stalled    nothing of its queue went for an interval
    """

    starts: Whole
    first: Flags
    tenant: Whole
    server: Whole
    dispatched: Whole
    arrived: Whole
    expected: Whole
    backlogged: Whole
    stalled: Flags
    front: Whole
    front_ns: Whole


def list_cells(picture: Picture) -> Cells:
    """Of the named that have terms. Of what was dispatched in this period, a report from the one before tells
    nothing."""
    known = picture.named & (picture.limits != NO_TERMS)
    seen = [view.seen.keep(known[view.seen.numbers]) for view in picture.servers]
    sizes = [each.numbers.size for each in seen]
    tables = [_look(view, each, picture) for view, each in zip(picture.servers, seen, strict=True)]
    server = np.repeat(np.arange(len(seen)), sizes)
    table = np.concatenate([*tables, _add_missing(picture, known, seen)], axis=1)
    server = np.concatenate([server, table[1, server.size :]])
    order = np.lexsort((server, table[0])) if table.shape[1] else np.zeros(0, np.int64)
    tenant, _, dispatched, arrived, expected, backlogged, front, front_ns = table[:, order]
    starts = np.searchsorted(tenant, np.arange(picture.limits.size + 1))
    first = np.ones(tenant.size, np.bool_)
    first[1:] = tenant[1:] != tenant[:-1]
    stalled = front_ns >= picture.interval_ns
    return Cells(
        starts,
        first,
        tenant,
        server[order],
        dispatched,
        arrived,
        expected,
        backlogged,
        stalled,
        front,
        front_ns,
    )


def _look(view: ServerView, seen: Seen, picture: Picture) -> Whole:
    """In the order of `list_cells`."""
    present = view.report.period == picture.period
    expected = np.minimum(
        seen.pending + extrapolate_all(seen.arrived, view.seen_ns, picture.time_left_ns), VALUE_MAX
    )
    nothing = np.zeros(seen.numbers.size, np.int64)
    dispatched = seen.dispatched if present else nothing
    return np.stack(
        [
            seen.numbers,
            nothing,
            dispatched,
            seen.arrived,
            expected,
            seen.backlogged,
            seen.front,
            seen.front_ns,
        ]
    )


def _add_missing(picture: Picture, known: Flags, seen: list[Seen]) -> Whole:
    """Where there is nothing to see, of tenants that may not use every server: all that they may use."""
    position = {view.name: server for server, view in enumerate(picture.servers)}
    listed = [set(each.numbers.tolist()) for each in seen] if picture.bound else []
    missing = [
        (number, server)
        for number, names in picture.bound.items()
        if known[number]
        for server in (position[name] for name in names if name in position)
        if number not in listed[server]
    ]
    table = np.zeros((8, len(missing)), np.int64)
    table[:2] = np.array(missing, np.int64).reshape(-1, 2).T
    return table


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
