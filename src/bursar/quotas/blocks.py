"""How much mode `fast` charges ahead: as much as is asked for between two syncs of the disk.

A block that the policy gives a size has that size. Otherwise it grows by what could not be granted at once
although it was here, so that the next burst of that size finds its units ready, to an eighth of what is left
at the most; and it halves each second in which not even a quarter of it was used.
"""

from __future__ import annotations

from bursar.world import SECOND_NS

AUTO = -1
"""In place of a size: by use."""

LEAST = 1_000
PART = 8
"""A block has at most this part of what is left here: so much a crash may cost."""


class Block:
    """One account's. `size` is how much is to be charged ahead."""

    __slots__ = ("_at", "_grows", "_used", "size")

    def __init__(self, size: int) -> None:
        self.size = LEAST if size == AUTO else size
        self._grows = size == AUTO
        self._at = 0
        self._used = 0

    def grow(self, missed: int, left: int) -> None:
        """So much was asked for and was not ready."""
        if self._grows:
            self.size = max(self.size, min(self.size + missed, left // PART))

    def shrink(self, now: int, used: int) -> None:
        """`used` counts every unit ever used here."""
        if now - self._at < SECOND_NS:
            return
        if self._grows and 4 * (used - self._used) < self.size:
            self.size = max(LEAST, self.size // 2)
        self._at, self._used = now, used
