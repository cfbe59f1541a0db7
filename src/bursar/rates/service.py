"""Requests that a server is busy with: counted where its capacity is estimated, or bounded by how many
it can serve at a time."""

from __future__ import annotations

from collections import deque

from bursar.rates.observation import Observation


class Service:
    """One request, until it is ended or whoever had it forgot it. That is only noted: it can happen in
    any thread and in the middle of anything."""

    __slots__ = ("_forgotten", "ended")

    def __init__(self, forgotten: deque[None]) -> None:
        self._forgotten = forgotten
        self.ended = False

    def __del__(self) -> None:
        if not self.ended:
            self._forgotten.append(None)


class Services:
    """All of one server. `most` is how many it can serve at a time, None for any number."""

    def __init__(self, observed: Observation, most: int | None) -> None:
        self.count = 0
        self.most = most
        self.forgotten: deque[None] = deque()
        self._observed = observed
        self._busy_since: int | None = None

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.count >= self.most

    def begin(self, now: int, tokens: int) -> Service:
        self.count += 1
        if self._busy_since is None:
            self._busy_since = now
        self._observed.served += tokens
        return Service(self.forgotten)

    def end(self, now: int, service: Service) -> None:
        """Ending it again does nothing."""
        if not service.ended:
            service.ended = True
            self._end(now)

    def end_forgotten(self, now: int) -> None:
        while self.forgotten:
            self.forgotten.pop()
            self._end(now)

    def _end(self, now: int) -> None:
        self.count -= 1
        if self.count == 0:
            self.count_busy(now)
            self._busy_since = None

    def count_busy(self, now: int) -> None:
        """Add the time since the last count to what the next report says."""
        if self._busy_since is not None:
            self._observed.busy_ns += now - self._busy_since
            self._busy_since = now
