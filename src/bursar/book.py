"""What a book is: the plain, synchronous half of a protocol, with all that safety rests on.

A book never waits and never looks at a clock: each method is told the time and returns *effects*,
which its courier carries out through the ports of the World. So a book can be stepped through
every order of events at small sizes (`sim.search`), run under seeded faults (`sim`), and read
beside the invariants in its docstring; and no courier, however wrong, can break them, because
losing, repeating, delaying and reordering messages is what the book already allows for.

The one rule about durability: a record counts only once the book was told that it is synced. A
book therefore answers a message that moves tokens in two steps: `receive` writes the record,
`synced` makes it count and sends the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bursar.world import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer: may be lost, repeated, delayed, overtaken."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Record:
    """Append to the journal, and sync it; `synced` is called when it is durable."""

    data: bytes


Effect = Send | Record
Effects = list[Effect]


class Book(Protocol):
    """The half of a protocol that is stepped. Every method returns the effects it asks for."""

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        """A message arrived. It may be old, repeated, or from a life of the sender's long gone."""

    def synced(self, now: int, records: int) -> Effects:
        """The first `records` records of this life (replayed ones not counted) are durable."""

    def tick(self, now: int) -> Effects:
        """Time has passed. Called at `wake_at()` at the earliest, perhaps later, perhaps for
        nothing."""

    def wake_at(self) -> int | None:
        """When `tick` next has something to do, by this node's clock; None for never."""

    def replay(self, records: Iterable[bytes]) -> None:
        """Take in what an earlier life of this node wrote. Called once, before anything else."""
