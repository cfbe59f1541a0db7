"""Carries a book's messages through the ports: the asynchronous half, the same for every book.

It may lose, repeat, delay and reorder; it decides nothing. A kind whose protocol needs more (a
store, a call with a deadline, a queue of waiters) builds its courier around this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bursar.book import Book, Effects, Record, Send
from bursar.world import Message, Task, World


class Alarm:
    """Rings when a book wants to be woken: `wake_at` says when, None for not at all.

    A time that is put off is found when the old one comes, so that only an earlier one costs
    another timer: books move their next time on with almost every message."""

    def __init__(
        self, world: World, name: str, wake_at: Callable[[], int | None], ring: Callable[[int], None]
    ) -> None:
        self._world = world
        self._name = name
        self._wake_at = wake_at
        self._ring = ring
        self._armed_at: int | None = None
        self._started = False
        self._ringing = False
        self._timer: Task | None = None

    def start(self) -> None:
        self._started = True
        self.set()

    def set(self) -> None:
        """The book may want another time now."""
        wake_at = self._wake_at()
        if wake_at is None or not self._started or self._ringing:
            return
        if self._armed_at is not None and self._armed_at <= wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = wake_at
        self._timer = self._world.spawn(self._keep_time(), f"{self._name}.alarm")

    async def _keep_time(self) -> None:
        while self._armed_at is not None:
            await self._world.clock.sleep(self._armed_at - self._world.clock.now())
            now = self._world.clock.now()
            wake_at = self._wake_at()
            if wake_at is not None and wake_at <= now:
                self._ring_in_here(now)
                await asyncio.sleep(0)  # a book that wants to go on at once lets others go too
            self._armed_at = self._wake_at()
        self._timer = None

    def _ring_in_here(self, now: int) -> None:
        """Ring; meanwhile `set` must not cancel this task, which looks at the time afterwards."""
        self._ringing = True
        try:
            self._ring(now)
        finally:
            self._ringing = False


class Courier:
    """Runs one book on one node until the node goes away.

    Records are synced in the order in which they were appended, many at a time (whatever was
    appended while a sync ran shares the next one), and the book hears of them in that order.
    """

    def __init__(self, world: World, topic: str, book: Book, messages: Any) -> None:
        self._world = world
        self._topic = topic
        self._book = book
        self._messages = messages
        self._journal = world.journal(topic)
        self._appended = 0
        self._sync_wanted = asyncio.Event()
        self._alarm = Alarm(world, topic, book.wake_at, self._tick)

    def start(self) -> None:
        """Replay what an earlier life wrote, then serve, sync and keep time."""
        self._book.replay(self._journal.replay())
        self._world.network.serve(self._topic, self._messages, self._receive)
        self._world.spawn(self._sync_records(), f"{self._topic}.sync")
        self._alarm.start()
        self._tick(self._world.clock.now())

    def perform(self, effects: Effects) -> None:
        """Carry out what the book asked for. Whoever calls a method of the book directly (a
        request from this node's own tenant) hands its effects here."""
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._world.network.send(to, self._topic, message)
                case Record(data):
                    self._journal.append(data)
                    self._appended += 1
                    self._sync_wanted.set()
        self._alarm.set()

    def _tick(self, now: int) -> None:
        self.perform(self._book.tick(now))

    async def _receive(self, sender: str, message: Message) -> None:
        self.perform(self._book.receive(self._world.clock.now(), sender, message))

    async def _sync_records(self) -> None:
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            appended = self._appended
            await self._journal.sync()
            self.perform(self._book.synced(self._world.clock.now(), appended))
