"""What several parts of an instance go by: how much at a time, how soon again, and what a lost race is."""

from __future__ import annotations

from bursar.errors import NodeExistsError, NodeMissingError, NotEmptyError, VersionError
from bursar.world import MILLISECOND_NS, Store

BATCH_OPERATIONS = 256
IN_FLIGHT_MAX = 8
SMALL_IN_FLIGHT_MAX = 2
"""A transaction with room for more waits while so many are under way: it is fuller when it goes."""

TAKE_AT_ONCE = 100
"""Tasks marked, or left to others, in one transaction."""

RETRY_NS = 50 * MILLISECOND_NS
END_TRIES = 50
END_AGAIN_NS = 400 * MILLISECOND_NS
"""What could not be written after so many tries is tried again after so long, for as long as it takes."""

Lost = (VersionError, NodeExistsError, NodeMissingError, NotEmptyError)
"""A race that another one won: nothing changed."""


def fit(store: Store, most: int, operations_each: int) -> int:
    """How many go into one transaction at a time, beside one operation for all of them."""
    return min(most, (store.operations_max - 1) // operations_each)
