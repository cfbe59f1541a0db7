"""A lock for an engine, which is used from threads that it did not start and knows nothing of. Its
fast path needs no lock; the rest is done by one thread at a time.
"""

from __future__ import annotations

from queue import SimpleQueue


class QueueLock(SimpleQueue[object]):
    """A context that one thread at a time is in. It is not re-entrant.

    Entering takes the one thing that is in the queue, leaving puts one back (what `with` says of an
    error): both are calls of compiled code, without a frame of Python's.
    """

    __enter__ = SimpleQueue.get
    __exit__ = SimpleQueue.put

    def __init__(self) -> None:
        self.put(None)
