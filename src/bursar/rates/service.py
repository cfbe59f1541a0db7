"""Requests that a server is busy with: counted where its capacity is learnt, or bounded by how many
it can serve at a time."""

from __future__ import annotations

from collections import deque

from bursar.rates.learnt import LearntCapacity, Stay


class Service:
    """One request, until it is ended or whoever had it forgot it. That is only noted: it can happen in
    any thread and in the middle of anything."""

    __slots__ = ("_forgotten", "ended", "stay")

    def __init__(self, forgotten: deque[Stay | None], stay: Stay | None) -> None:
        self._forgotten = forgotten
        self.stay = stay
        self.ended = False

    def __del__(self) -> None:
        if not self.ended:
            self._forgotten.append(self.stay)


class Services:
    """All of one server. `most` is how many it can serve at a time, None for any number; `learnt` what
    is found out of its capacity, None where that is given."""

    def __init__(self, most: int | None, learnt: LearntCapacity | None) -> None:
        self.count = 0
        self.most = most
        self.learnt = learnt
        self.forgotten: deque[Stay | None] = deque()

    @property
    def is_watched(self) -> bool:
        """Whether it matters how many there are."""
        return self.most is not None or self.learnt is not None

    def is_full(self, now: int) -> bool:
        if self.most is not None and self.count >= self.most:
            return True
        return self.learnt is not None and self.learnt.is_full(now)

    def begin(self, now: int, tokens: int) -> Service:
        self.count += 1
        return Service(self.forgotten, None if self.learnt is None else self.learnt.begin(now, tokens))

    def end(self, now: int, service: Service) -> None:
        """Ending it again does nothing."""
        if not service.ended:
            service.ended = True
            self.count -= 1
            if self.learnt is not None and service.stay is not None:
                self.learnt.end(now, service.stay)

    def undo(self, now: int, service: Service, tokens: int) -> None:
        """So many of its tokens were not used: they tell nothing of what the server can do."""
        if not service.ended and self.learnt is not None and service.stay is not None:
            self.learnt.undo(now, service.stay, tokens)

    def end_forgotten(self, now: int) -> None:
        while self.forgotten:
            stay = self.forgotten.pop()
            self.count -= 1
            if self.learnt is not None and stay is not None:
                self.learnt.forget(now, stay)

    def find_retry(self, now: int) -> int | None:
        """When there may be room again, if nobody else asks; None where nobody knows."""
        return None if self.learnt is None or self.most is not None else now + self.learnt.drain_ns
