"""All randomness of a run: one seed, split by purpose.

Each purpose draws from a stream of its own, so that a new fault or one more message does not
shift every other decision of the run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bursar.sim.loop import Life


class Chance:
    """The streams of one seed, made when first asked for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, purpose: str) -> random.Random:
        """Always the same numbers for the same seed and purpose: a string seed is hashed with
        SHA-512 by `random`, whatever PYTHONHASHSEED."""
        if purpose not in self._streams:
            self._streams[purpose] = random.Random(f"{self.seed}/{purpose}")
        return self._streams[purpose]


def happens(stream: random.Random, probability: float) -> bool:
    """Draws only when it matters, so that a fault that is off costs nothing."""
    return probability > 0.0 and stream.random() < probability


def draw_ns(stream: random.Random, low_ns: int, high_ns: int) -> int:
    """A time between, evenly. Faster than randrange, and as good."""
    return low_ns + int(stream.random() * (high_ns - low_ns))


class NodeRandom:
    """World's `random` of one life."""

    def __init__(self, life: Life, stream: random.Random) -> None:
        self._life = life
        self._stream = stream

    def random(self) -> float:
        self._life.check()
        return self._stream.random()

    def randrange(self, start: int, stop: int) -> int:
        self._life.check()
        return self._stream.randrange(start, stop)

    def choice(self, items: Sequence[Any]) -> Any:
        self._life.check()
        return self._stream.choice(items)

    def shuffle(self, items: list[Any]) -> None:
        self._life.check()
        self._stream.shuffle(items)
