"""Where to look for tasks that nobody looks after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bursar.claims.layout import Layout


class Looking:
    """Told by whoever notices that something may be there; `Takeover` looks.

    shards   of the tasks without a mark
    offers   shards of what was submitted or left
    unsure   tasks that may bear this session's mark without being looked after: a reply was lost"""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.wanted = asyncio.Event()
        self.shards: dict[str, None] = {}
        self.offers: dict[str, None] = {}
        self.unsure: dict[str, None] = {}

    def everywhere(self) -> None:
        self.among(self._layout.task_shards)

    def among(self, shards: Iterable[str], *, offered: bool = False) -> None:
        (self.offers if offered else self.shards).update(dict.fromkeys(shards))
        self.wanted.set()

    def doubt(self, ids: Iterable[str]) -> None:
        """Whose these are is not known."""
        self.unsure.update(dict.fromkeys(ids))
        self.everywhere()

    def drain(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The shards, and those of offers, that are to be looked at now."""
        shards, offers = tuple(self.shards), tuple(self.offers)
        self.shards.clear()
        self.offers.clear()
        return shards, offers
