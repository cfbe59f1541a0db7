"""Nodes that run the two books: the pattern of every kind's courier."""

from __future__ import annotations

from bursar.courier import Courier
from bursar.world import World
from bursar_lab.leases.book import HolderBook, Messages, OwnerBook

TOPIC = "lease"


class OwnerNode:
    """Owns the tokens and the thing; leases them to whoever asks."""

    def __init__(self, world: World, book: OwnerBook) -> None:
        self.book = book
        self._courier = Courier(world, TOPIC, book, Messages)

    def start(self) -> None:
        self._courier.start()


class HolderNode:
    """Asks for leases for as long as it lives, and spends from them."""

    def __init__(self, world: World, book: HolderBook) -> None:
        self.book = book
        self._world = world
        self._courier = Courier(world, TOPIC, book, Messages)

    def start(self) -> None:
        self._courier.start()

    def spend(self, tokens: int = 1) -> bool:
        """Spend from the live lease; false without one or when it is used up."""
        now = self._world.clock.now()
        spent = self.book.spend(now, tokens)
        if spent:
            self._world.trace("lease.spent", number=self.book.number, left=self.book.unspent)
        return spent

    def end(self) -> None:
        """Give the lease back before its time."""
        self._courier.perform(self.book.end(self._world.clock.now()))
