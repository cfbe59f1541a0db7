"""Why tokens could not be had, and when they can."""

from __future__ import annotations

from bursar.errors import Refused
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import AMOUNT_MAX
from bursar.world import SECOND_NS


def refuse(book: EngineBook, now: int, tokens: int) -> Refused:
    """The answer to whoever asked for so many, when there are fewer."""
    usable, wait_ns = book.usable(now), book.ready_ns(now, tokens)
    if book.is_over(now):
        why = "its period is over, and the next has not begun"
    elif book.spent + tokens > book.limit:
        why = f"{book.spent} tokens were charged to it in this period and its limit is {book.limit}"
    elif book.shut and book.spent + tokens > book.allowed:
        why = (
            f"its limit is {book.limit} in a period, of which {book.spent} were charged here and the rest to "
            "other processes of this pool"
        )
    else:
        why = (
            f"of its {book.reservation} reserved tokens {book.reserve} are left in this period, and the "
            "common pool is empty"
        )
    return Refused(
        f"{book.tenant} asked for {tokens} of {book.pool}: {why}; {usable} could go now; pass wait=, or a "
        "longer one",
        limit=None if book.limit == AMOUNT_MAX else book.limit,
        remaining=usable,
        retry_after=None if wait_ns is None else wait_ns / SECOND_NS,
    )
