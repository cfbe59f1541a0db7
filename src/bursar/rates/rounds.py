"""How long a controller and its servers talk: what the paper measures as communication (section IV-E)."""

from __future__ import annotations

from collections.abc import Iterable

from bursar.book import Send
from bursar.rates.messages import Ack, Grant, Poll
from bursar.world import Message


class Rounds:
    """Counts messages, and the time between the first message of a round and the last acknowledgement of its
    grants, less the time that the controller itself computed meanwhile. Where somebody does not answer,
    the round ends with what was last heard.

    talking_ns counts rounds that are over."""

    def __init__(self) -> None:
        self.rounds = 0
        self.messages = 0
        self.talking_ns = 0
        self._began_at: int | None = None
        self._heard_at = 0
        self._computed_ns = 0
        self._granted = False
        self._unanswered: set[tuple[str, int]] = set()

    def send(self, now: int, effects: Iterable[object]) -> None:
        """These go out now."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(now, effect.to, effect.message)

    def _send(self, now: int, server: str, message: Message) -> None:
        self.messages += 1
        if isinstance(message, Poll) and self._granted:
            self._end()  # whoever has not acknowledged by now is asked again
        if self._began_at is None:
            self._began_at = self._heard_at = now
        if isinstance(message, Grant):
            self._granted = True
            self._unanswered.add((server, message.sequence))

    def hear(self, now: int, message: Message, computed_ns: int) -> None:
        """This came in, and what it leads to was computed in so long."""
        self.messages += 1
        self._heard_at = now
        self._computed_ns += computed_ns
        if isinstance(message, Ack):
            self._unanswered.discard((message.server, message.sequence))
            if self._granted and not self._unanswered:
                self._end()

    def compute(self, computed_ns: int) -> None:
        """The controller was busy for so long, with nothing that it had heard."""
        self._computed_ns += computed_ns

    def _end(self) -> None:
        assert self._began_at is not None, "a grant was sent"
        self.rounds += 1
        self.talking_ns += max(0, self._heard_at - self._began_at - self._computed_ns)
        self._began_at, self._granted, self._computed_ns = None, False, 0
        self._unanswered.clear()
