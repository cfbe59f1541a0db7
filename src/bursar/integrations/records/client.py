"""Records behind an engine: no token, no I/O (II-D, step D)."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from bursar.errors import UsageError
from bursar.pools.engine import Engine
from bursar.pools.layout import TICK_NS
from bursar.world import SECOND_NS

POLL_S = 0.001


class Records(Protocol):
    """What the one-sided and the two-sided store have in common."""

    size: int

    def read(self, index: int) -> bytes: ...

    def read_many(self, indexes: Any, out: Any | None = None) -> Any: ...

    def write(self, index: int, data: bytes) -> None: ...


class RecordClient:
    """A tenant's way to the records, from any number of threads. A thread ticks for the engine."""

    def __init__(self, store: Records, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self._take = engine.take
        self._read = store.read
        # Free once it is closed. A lock and not an event, whose `wait` is a dozen frames of Python's.
        self._open = True
        self._closed = threading.Lock()
        self._closed.acquire()
        self._ticker = threading.Thread(target=self._tick, name="pool-tick", daemon=True)
        self._ticker.start()

    def _tick(self) -> None:
        while not self._closed.acquire(timeout=TICK_NS / SECOND_NS):
            self.engine.tick()

    def read(self, index: int, wait: float = 0.0) -> bytes:
        """One record for one token. Raises Refused if there is none within `wait` seconds."""
        if not self._take():
            self._wait(1, wait)
        return self._read(index)

    def write(self, index: int, data: bytes, wait: float = 0.0) -> None:
        """Write one record for one token."""
        if not self._take():
            self._wait(1, wait)
        self.store.write(index, data)

    def read_many(self, indexes: Any, out: Any | None = None, wait: float = 0.0) -> Any:
        """Many records for a token each, all or none."""
        count = len(indexes)
        if count < 1:
            raise UsageError("read_many needs the number of at least one record")
        if not self.engine.take_many(count):
            self._wait(count, wait)
        return self.store.read_many(indexes, out)

    def _wait(self, tokens: int, wait_s: float) -> None:
        """Until the pool is filled or a period begins: both show in the ceiling."""
        until = time.monotonic() + wait_s
        engine = self.engine
        engine.book.pending += tokens
        try:
            while not engine.take_many(tokens):
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise engine.refuse(tokens)
                time.sleep(min(POLL_S, left_s))
        finally:
            engine.book.pending -= tokens

    def close(self) -> None:
        if self._open:
            self._open = False
            self._closed.release()
            self._ticker.join(1.0)
