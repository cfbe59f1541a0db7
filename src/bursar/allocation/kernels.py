"""The compiled parts of the allocation: the split, direct shifts, longer shift paths.

All of them work on the rows of a sparse matrix (tenant i holds the cells from indptr[i] up to
indptr[i + 1]; a cell has a server, a demand and tokens) and on one number a server, `excess`: the
tokens placed on it less its capacity. Above zero it is overloaded, below zero underloaded.

A token moves within its row, from a cell that holds it to a cell with spare demand. A shift path
therefore alternates server, row, server, and the paper's map of movable tokens for each pair of
servers is never needed.

`indptr` is uint64 and `indices` uint32: signed ones make Numba test each index for a negative
value, which costs nearly as much as the work itself. Numba infers all other types from the
arrays it is given; `reservations` is the only caller, and gives int64 (amounts) and uint8 (marks).
"""

# mypy: disable-error-code="no-untyped-def,assignment,arg-type"

from __future__ import annotations

import numpy as np
from numba import njit

VALUE_MAX = 2**53
TOTAL_MAX = 2**62

FINE, BAD_VALUE, BAD_ORDER, BAD_TOTAL = 0, 1, 2, 3

_PHASE_STEP = 0.6180339887498949
_PHASE_MARGIN = 2.0**-10
_SMALL_TOTAL = 2**26
_BASE, _REACHED, _OUTSIDE, _WANTED = 1, 2, 4, 8


# --- the split (algorithm 3) -------------------------------------------------------------------


@njit(cache=True, nogil=True)
def split_rows(
    indptr, indices, demand, reservation, start, stop, tokens, granted, load,
    warm, old_indptr, old_indices, old_demand, old_reservation, old_tokens, old_granted,
):  # fmt: skip
    """Check and split the rows from start to stop: fills `tokens` and `granted`, adds to `load`.
    Returns (status, the row where it went wrong). If `warm`, rows with the demand and reservation
    of last time keep the tokens of last time.

    The split is in proportion to demand, whole, with the right sum and never above demand: it
    rounds the running sum instead of each cell, so nothing is lost and nothing needs sorting. The
    phase of the rounding differs from row to row: with one for all the same servers would gain
    each time.

    (All in one function: calls, even inlined ones, cost a third more.)
    """
    servers = load.size
    everything = 0.0
    for i in range(np.uint64(start), np.uint64(stop)):
        first, last = indptr[i], indptr[i + np.uint64(1)]
        if warm and reservation[i] == old_reservation[i]:
            before, after = old_indptr[i], old_indptr[i + np.uint64(1)]
            different = np.int64(last - first != after - before)
            for k in range(np.uint64(0) if different else last - first):
                different |= demand[first + k] ^ old_demand[before + k]
                different |= np.int64(indices[first + k]) ^ np.int64(old_indices[before + k])
            if different == 0:
                granted[i] = old_granted[i]
                everything += old_granted[i]
                for k in range(last - first):
                    kept = old_tokens[before + k]
                    tokens[first + k] = kept
                    load[indices[first + k]] += kept
                continue
        total = 0
        high = 0
        wrong = 0
        disorder = 0
        previous = -1
        for c in range(first, last):
            wanted = demand[c]
            total += wanted
            high += wanted >> 32
            wrong |= wanted | (VALUE_MAX - wanted)
            j = np.int64(indices[c])
            disorder |= j - previous - 1
            previous = j
        if (disorder | (servers - 1 - previous)) < 0:
            return BAD_ORDER, i
        if wrong < 0:
            return BAD_VALUE, i
        grant = min(total, reservation[i])
        granted[i] = grant
        everything += grant
        if high > (TOTAL_MAX >> 32) or everything > TOTAL_MAX:
            return BAD_TOTAL, i
        turn = np.float64(i) * _PHASE_STEP
        phase = _PHASE_MARGIN + (1.0 - 2.0 * _PHASE_MARGIN) * (turn - np.floor(turn))
        ratio = grant / total if total > 0 else 0.0
        seen = 0
        placed = 0
        if total < _SMALL_TOTAL:
            for c in range(first, last):
                seen += demand[c]
                upto = np.int64(seen * ratio + phase)
                tokens[c] = upto - placed
                load[indices[c]] += upto - placed
                placed = upto
            continue
        # Floating point cannot tell all neighbouring whole numbers apart here: hold each running
        # sum where the cell stays within its demand and the rest of the row can take the rest.
        for c in range(first, last):
            seen += demand[c]
            upto = max(np.int64(seen * ratio + phase), placed, grant - (total - seen))
            upto = min(upto, placed + demand[c], grant)
            tokens[c] = upto - placed
            load[indices[c]] += upto - placed
            placed = upto
    return FINE, np.uint64(0)


# --- direct shifts (paths of length one) -------------------------------------------------------


@njit(cache=True, nogil=True)
def sum_excess(excess):
    """(tokens above capacity, free capacity), each over all servers. The free capacity of many
    idle servers may be more than a word counts: it stops at TOTAL_MAX."""
    over = 0
    under = 0
    for j in range(excess.size):
        if excess[j] > 0:
            over += excess[j]
        else:
            under = min(under - excess[j], TOTAL_MAX)
    return over, under


@njit(cache=True, nogil=True)
def shift_direct(indptr, indices, demand, tokens, granted, excess, start, stop):
    """Move tokens from overloaded to underloaded servers within the rows, large tenants first.

    One pass leaves no path of length one: a row that is done has nothing left to offer or
    nothing left to fill, and no server becomes overloaded or underloaded on the way. So every
    order of the rows will do. With the large ones first few have to change at all, and small
    tenants mostly keep their split.

    Of a row's two sides the shorter gives or takes all it can; on the longer one the server
    that is furthest off comes first, so that those near balance remain for rows without a
    choice. (All in one function, as above.)
    """
    over, under = sum_excess(excess)
    left = min(over, under)
    total = 0
    for i in range(np.uint64(start), np.uint64(stop)):
        total += granted[i]
    mean = total // max(stop - start, 1)
    ceiling = TOTAL_MAX + 1
    for floor in (4 * min(mean, VALUE_MAX), mean, 0):
        for i in range(np.uint64(start), np.uint64(stop)):
            if granted[i] < floor or granted[i] >= ceiling:
                continue
            if left == 0:
                return
            first, last = indptr[i], indptr[i + np.uint64(1)]
            offered = 0
            fillable = 0
            for c in range(first, last):
                e = excess[indices[c]]
                held = tokens[c]
                offered += min(held, max(e, 0))
                fillable += min(demand[c] - held, max(-e, 0))
            if offered == 0 or fillable == 0:
                continue
            best = first
            most = 0
            if offered <= fillable:
                left -= offered
                for c in range(first, last):
                    j = indices[c]
                    e = excess[j]
                    held = tokens[c]
                    part = min(held, max(e, 0))
                    tokens[c] = held - part
                    excess[j] = e - part
                    if -e > most and held < demand[c]:
                        best = c
                        most = -e
                while True:
                    part = min(offered, demand[best] - tokens[best], most)
                    tokens[best] += part
                    excess[indices[best]] += part
                    offered -= part
                    if offered == 0:
                        break
                    most = 0
                    for c in range(first, last):
                        e = -excess[indices[c]]
                        if e > most and tokens[c] < demand[c]:
                            best = c
                            most = e
            else:
                left -= fillable
                for c in range(first, last):
                    j = indices[c]
                    e = excess[j]
                    held = tokens[c]
                    part = min(demand[c] - held, max(-e, 0))
                    tokens[c] = held + part
                    excess[j] = e + part
                    if e > most and held > 0:
                        best = c
                        most = e
                while True:
                    part = min(fillable, tokens[best], most)
                    tokens[best] -= part
                    excess[indices[best]] -= part
                    fillable -= part
                    if fillable == 0:
                        break
                    most = 0
                    for c in range(first, last):
                        e = excess[indices[c]]
                        if e > most and tokens[c] > 0:
                            best = c
                            most = e
        ceiling = min(floor, ceiling)


# --- longer shift paths ------------------------------------------------------------------------
#
# The search is rooted at one side and looks the same from both: from the overloaded servers it
# follows tokens to spare demand (`back` false), from the underloaded ones spare demand to tokens
# (`back` true). `leaving` is what a cell lets pass away from the roots, `entering` towards them.


@njit(cache=True, nogil=True)
def count_slots(indices, demand, tokens, excess):
    """(cells with tokens on overloaded servers, cells with spare demand on underloaded ones).
    No shift path exists if either is zero."""
    holding = 0
    spare = 0
    for c in range(np.uint64(indices.size)):
        e = excess[indices[c]]
        holding += (e > 0) & (tokens[c] > 0)
        spare += (e < 0) & (tokens[c] < demand[c])
    return holding, spare


@njit(cache=True, nogil=True)
def select_rows(indptr, indices, demand, tokens, back, reached, quota, chosen, rows, count):
    """Append rows that lead from the reached servers to others, and return how many there are.

    Every row that leads out of the servers reached at the start is taken. A server reached on
    the way counts as reached from then on, and more rows are taken until `quota` of them lead
    to each server: one pass finds a well connected part of the graph. If no row is added, no
    row leads out of the reached servers: nothing else can be reached from them.
    """
    servers = reached.size
    links = np.zeros(servers, np.int64)
    flags = np.empty(servers, np.int64)
    open_servers = 0
    for j in range(servers):
        flags[j] = _BASE | _REACHED if reached[j] else _OUTSIDE | _WANTED
        open_servers += 1 - reached[j]
    for i in range(np.uint64(chosen.size)):
        first, last = indptr[i], indptr[i + np.uint64(1)]
        leaving = 0
        for c in range(first, last):
            free = demand[c] - tokens[c] if back else tokens[c]
            leaving |= flags[indices[c]] & -np.int64(free > 0)
        if not leaving & (_REACHED if open_servers else _BASE) or chosen[i]:
            continue
        entering = 0
        for c in range(first, last):
            free = tokens[c] if back else demand[c] - tokens[c]
            entering |= flags[indices[c]] & -np.int64(free > 0)
        if not (leaving & _BASE and entering & _OUTSIDE) and not entering & _WANTED:
            continue
        chosen[i] = 1
        rows[count] = i
        count += 1
        for c in range(first, last):
            j = indices[c]
            if flags[j] & _WANTED and (tokens[c] > 0 if back else tokens[c] < demand[c]):
                reached[j] = 1
                links[j] += 1
                flags[j] = _OUTSIDE | _REACHED | (_WANTED if links[j] < quota else 0)
                open_servers -= links[j] >= quota
    return count


@njit(cache=True, nogil=True)
def shift_along_paths(indptr, indices, demand, tokens, back, rows, excess, reached):
    """Dinic's algorithm over the given rows, until no path from a root to a target is left.
    Updates tokens and excess; `reached` becomes the servers that the roots still reach."""
    ptr, server, row_of, leaving, entering, column_ptr, column = _extract(
        indptr, indices, demand, tokens, back, rows, excess.size
    )
    surplus = -excess if back else excess.copy()
    server_level = np.empty(excess.size, np.int32)
    row_level = np.empty(rows.size, np.int32)
    while _find_levels(ptr, server, row_of, leaving, entering, column_ptr, column,
                       surplus, server_level, row_level):  # fmt: skip
        _push_blocking_flow(ptr, server, row_of, leaving, entering, column_ptr, column,
                            surplus, server_level, row_level)  # fmt: skip
    for k in range(rows.size):
        first = indptr[rows[k]]
        for c in range(ptr[k + 1] - ptr[k]):
            kept = entering[ptr[k] + c] if back else leaving[ptr[k] + c]
            tokens[first + c] = kept
    for j in range(excess.size):
        excess[j] = -surplus[j] if back else surplus[j]
        reached[j] = server_level[j] >= 0


@njit(cache=True, nogil=True)
def _extract(indptr, indices, demand, tokens, back, rows, servers):
    """The rows' cells side by side, and for each server the list of its cells."""
    ptr = np.zeros(rows.size + 1, np.uint64)
    for k in range(rows.size):
        ptr[k + 1] = ptr[k] + indptr[rows[k] + np.uint64(1)] - indptr[rows[k]]
    cells = ptr[rows.size]
    server = np.empty(cells, np.uint32)
    row_of = np.empty(cells, np.uint32)
    leaving = np.empty(cells, np.int64)
    entering = np.empty(cells, np.int64)
    column_ptr = np.zeros(servers + 1, np.uint64)
    for k in range(np.uint64(rows.size)):
        first = indptr[rows[k]]
        for n in range(ptr[k + np.uint64(1)] - ptr[k]):
            c = first + n
            at = ptr[k] + n
            server[at] = indices[c]
            row_of[at] = k
            leaving[at] = demand[c] - tokens[c] if back else tokens[c]
            entering[at] = tokens[c] if back else demand[c] - tokens[c]
            column_ptr[indices[c] + np.uint64(1)] += np.uint64(1)
    for j in range(servers):
        column_ptr[j + 1] += column_ptr[j]
    column = np.empty(cells, np.uint32)
    fill = column_ptr.copy()
    for at in range(cells):
        j = server[at]
        column[fill[j]] = at
        fill[j] += np.uint64(1)
    return ptr, server, row_of, leaving, entering, column_ptr, column


@njit(cache=True, nogil=True)
def _find_levels(
    ptr, server, row_of, leaving, entering, column_ptr, column, surplus, server_level, row_level
):  # fmt: skip
    """Breadth first from all roots at once, up to the level of the nearest target. True if
    there is one. Levels: -1 not reached, -2 reached but useless in this phase."""
    servers = surplus.size
    queue = np.empty(servers, np.uint32)
    tail = 0
    server_level[:] = -1
    row_level[:] = -1
    for j in range(servers):
        if surplus[j] > 0:
            server_level[j] = 0
            queue[tail] = j
            tail += 1
    head = 0
    nearest = servers
    while head < tail:
        j = queue[head]
        head += 1
        level = server_level[j]
        if level >= nearest:
            break
        for k in range(column_ptr[j], column_ptr[j + np.uint64(1)]):
            at = column[k]
            i = row_of[at]
            if row_level[i] >= 0 or leaving[at] == 0:
                continue
            row_level[i] = level
            for other in range(ptr[i], ptr[i + np.uint64(1)]):
                to = server[other]
                if server_level[to] < 0 and entering[other] > 0:
                    server_level[to] = level + 1
                    queue[tail] = to
                    tail += 1
                    if surplus[to] < 0:
                        nearest = level + 1
    if nearest == servers:
        return False
    for k in range(tail):
        j = queue[k]
        if server_level[j] == nearest and surplus[j] >= 0:
            server_level[j] = -2
    return True


@njit(cache=True, nogil=True)
def _push_blocking_flow(
    ptr, server, row_of, leaving, entering, column_ptr, column, surplus, server_level, row_level
):  # fmt: skip
    """Depth first along the levels; each server and row remembers where it stopped looking."""
    servers = surplus.size
    next_cell = column_ptr[:-1].copy()
    next_in_row = ptr[:-1].copy()
    out_cells = np.empty(servers, np.uint32)
    in_cells = np.empty(servers, np.uint32)
    for root in range(np.uint32(servers)):
        if server_level[root] != 0:
            continue
        j = root
        depth = 0
        while surplus[root] > 0:
            if surplus[j] < 0:
                _augment(server, leaving, entering, surplus, root, j, out_cells, in_cells, depth)
                if surplus[j] == 0:
                    server_level[j] = -2
                j = root
                depth = 0
                continue
            found = False
            level = server_level[j]
            end = column_ptr[j + np.uint64(1)]
            while next_cell[j] < end and not found:
                at = column[next_cell[j]]
                i = row_of[at]
                if leaving[at] > 0 and row_level[i] == level:
                    stop = ptr[i + np.uint64(1)]
                    while next_in_row[i] < stop:
                        other = next_in_row[i]
                        if entering[other] > 0 and server_level[server[other]] == level + 1:
                            out_cells[depth] = at
                            in_cells[depth] = other
                            found = True
                            break
                        next_in_row[i] += np.uint64(1)
                if not found:
                    next_cell[j] += np.uint64(1)
            if found:
                j = server[in_cells[depth]]
                depth += 1
            else:
                server_level[j] = -2
                if depth == 0:
                    break
                depth -= 1
                j = server[out_cells[depth]]


@njit(cache=True, nogil=True, inline="always")
def _augment(server, leaving, entering, surplus, root, target, out_cells, in_cells, depth):
    amount = min(surplus[root], -surplus[target])
    for step in range(depth):
        amount = min(amount, leaving[out_cells[step]], entering[in_cells[step]])
    for step in range(depth):
        leaving[out_cells[step]] -= amount
        entering[out_cells[step]] += amount
        entering[in_cells[step]] -= amount
        leaving[in_cells[step]] += amount
    surplus[root] -= amount
    surplus[target] += amount


# --- what the result says ----------------------------------------------------------------------


@njit(cache=True, nogil=True)
def spread_reach(indptr, indices, demand, tokens, reached, touched):
    """Mark every server that tokens of the reached servers could move to, directly or through
    others (`reached`), and every row that holds a token on one of them (`touched`)."""
    changed = True
    while changed:
        changed = False
        for i in range(np.uint64(touched.size)):
            if touched[i]:
                continue
            first, last = indptr[i], indptr[i + np.uint64(1)]
            for c in range(first, last):
                if reached[indices[c]] and tokens[c] > 0:
                    touched[i] = 1
            if touched[i]:
                for c in range(first, last):
                    if tokens[c] < demand[c] and not reached[indices[c]]:
                        reached[indices[c]] = 1
                        changed = True


@njit(cache=True, nogil=True)
def count_filled(dense, indptr):
    """indptr of the sparse form of a dense matrix."""
    indptr[0] = 0
    for i in range(dense.shape[0]):
        filled = 0
        for j in range(dense.shape[1]):
            filled += dense[i, j] != 0
        indptr[i + 1] = indptr[i] + np.uint64(filled)


@njit(cache=True, nogil=True)
def pack_rows(dense, indptr, indices, values):
    """The cells of a dense matrix that are not zero, row by row."""
    for i in range(dense.shape[0]):
        at = indptr[i]
        for j in range(dense.shape[1]):
            if dense[i, j] != 0:
                indices[at] = j
                values[at] = dense[i, j]
                at += np.uint64(1)


@njit(cache=True, nogil=True)
def unpack_rows(indptr, indices, values, dense):
    """The other way round; `dense` is zero before."""
    for i in range(dense.shape[0]):
        for c in range(indptr[i], indptr[i + 1]):
            dense[i, indices[c]] = values[c]
