"""A network card for the data node, since this machine has none that clients could reach one-sidedly.

A stand-in: one word in shared memory says when the card will have passed all that was sent to it. Who
sends moves that moment on, by compare-and-swap, and waits for it; so requests pass in the order in
which they were sent, at the card's rate, and no process takes part but the sender's. The rate is a
second word, so that congestion can come and go. Everything else of a run is real.
"""

from __future__ import annotations

from pathlib import Path

from bursar.runtime.words import SharedWords
from bursar.world import MILLISECOND_NS, SECOND_NS

FREE_AT, RATE = "free_at", "rate"
LAG_NS = 4 * MILLISECOND_NS
"""A client that comes late to its own card makes up for so much."""


class NodeCard:
    """The card of the data node, as its clients and whoever sets its rate see it."""

    def __init__(self, path: Path) -> None:
        self._words = SharedWords(path)

    def set_rate(self, rate: int) -> None:
        """I/Os a second, from the next one on."""
        self._words.write(RATE, rate)

    def send(self, now: int, count: int) -> int:
        """Send so many requests; the moment when the last of them has passed."""
        words = self._words
        took_ns = count * SECOND_NS // words.read(RATE)
        while True:
            free_at = words.read(FREE_AT)
            passed_at = max(free_at, now) + took_ns
            if words.compare_and_swap(FREE_AT, free_at, passed_at) == free_at:
                return passed_at

    def close(self) -> None:
        self._words.close()


class ClientCard:
    """A client's own card: when it may send again."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self.free_at = 0

    def send(self, now: int, count: int) -> None:
        self.free_at = max(self.free_at, now - LAG_NS) + count * SECOND_NS // self._rate
