"""Room for whole requests: a tenant's tokens at a server are of use only if they cover the request at the
front of its queue there.

A limit of 100 of which two servers have 50 each serves no request of 60, at either. So wherever the first
request that waits does not fit, the tenant's tokens are gathered: the servers are gone through, beginning
with the one whose first request has waited longest, and each has what that needs for as long as there are
tokens for it. So a request that its tenant's limit covers has its tokens in the first period that begins
after those went that were first at other servers before it: of which each server has one at most, so that
it takes no more periods than there are servers at which the tenant waits, unless their turn comes late.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bursar.rates.cells import Cells

Whole = npt.NDArray[np.int64]


def gather(tokens: Whole, priority: Whole, levels: Whole, cells: Cells, fronts: Whole, left: Whole) -> None:
    """Change `tokens` and `priority` (by cell) of the tenants whose first requests do not fit; elsewhere they
    have nothing then (`levels`).

    fronts  what the first request that waits costs, 0 where none does
    left    what each tenant may still use in the period, at all servers together
    """
    for row in np.unique(cells.tenant[fronts > tokens]).tolist():
        where = slice(int(cells.starts[row]), int(cells.starts[row + 1]))
        oldest_first = np.argsort(-cells.front_ns[where], kind="stable").tolist()
        kept = _choose_fronts(fronts[where].tolist(), oldest_first, int(left[row]))
        gathered = _add_rest(kept, tokens[where].tolist(), int(left[row]))
        priority[where] = _follow(priority[where].tolist(), gathered)
        tokens[where] = gathered
        levels[row] = 0


def _add_rest(kept: list[int], tokens: list[int], left: int) -> list[int]:
    """What is left of the tokens stays where it was, as far as it goes."""
    rest = left - sum(kept)
    over = [max(0, have - keep) for have, keep in zip(tokens, kept, strict=True)]
    total = max(1, sum(over))
    return [keep + min(more, rest * more // total) for keep, more in zip(kept, over, strict=True)]


def _choose_fronts(fronts: list[int], order: list[int], left: int) -> list[int]:
    kept = [0] * len(fronts)
    for place in order:
        if fronts[place] <= left:
            kept[place] = fronts[place]
            left -= fronts[place]
    return kept


def _follow(priority: list[int], tokens: list[int]) -> list[int]:
    """As much priority as before, where the tokens are now."""
    kept = [min(first, have) for first, have in zip(priority, tokens, strict=True)]
    moved = sum(priority) - sum(kept)
    for place, have in enumerate(tokens):
        more = min(moved, have - kept[place])
        kept[place] += more
        moved -= more
    return kept
