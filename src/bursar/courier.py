"""Carries a book's messages through the ports: the asynchronous half, the same for every book.

It may lose, repeat, delay and reorder; it decides nothing. A kind whose protocol needs more (a
store, a call with a deadline, a queue of waiters) builds its courier around this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bursar.book import Book, Effects, Record, Send
from bursar.world import Message, World


class Alarm:
    """Rings when a book wants to be woken: `wake_at` says when, None for not at all."""

    def __init__(
        self, world: World, name: str, wake_at: Callable[[], int | None], ring: Callable[[int], None]
    ) -> None:
        self._world = world
        self._name = name
        self._wake_at = wake_at
        self._ring = ring
        self._armed_at: int | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._world.spawn(self._keep_time(), f"{self._name}.alarm")

    def set(self) -> None:
        """The book may want another time now."""
        if self._wake_at() != self._armed_at:
            self._changed.set()

    async def _keep_time(self) -> None:
        while True:
            self._changed.clear()
            self._armed_at = self._wake_at()
            await self._wait()
            now = self._world.clock.now()
            wake_at = self._wake_at()
            if wake_at is not None and wake_at <= now:
                self._ring(now)

    async def _wait(self) -> None:
        """Until the armed time, or until another one is wanted."""
        if self._armed_at is None:
            await self._changed.wait()
            return
        sleep = self._world.spawn(self._sleep_until(self._armed_at), f"{self._name}.sleep")
        await self._changed.wait()
        sleep.cancel()

    async def _sleep_until(self, wake_at_ns: int) -> None:
        await self._world.clock.sleep(wake_at_ns - self._world.clock.now())
        self._changed.set()


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
