"""One at a time: a baton that is passed on.

An engine is used from threads that it did not start and knows nothing of. Its fast path needs no
lock; what is left is done by whoever holds the baton.
"""

from __future__ import annotations

from queue import SimpleQueue
from types import TracebackType


class Baton:
    """A context that one thread at a time is in. It is not re-entrant."""

    __slots__ = ("_baton",)

    def __init__(self) -> None:
        self._baton: SimpleQueue[None] = SimpleQueue()
        self._baton.put(None)

    def __enter__(self) -> None:
        self._baton.get()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._baton.put(None)
