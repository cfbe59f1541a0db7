"""A hostile client: it hears what nodes say to each other, and says it again, or something worse."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from bursar.sim.packets import Packet

OVERHEARD_MAX = 100
STRANGER = "stranger/1"
HUGE = 2**62

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Listening(Protocol):
    """A node's end of the network."""

    def is_for_anyone(self, topic: str) -> bool: ...


class Forgery:
    """Only what nodes say among themselves is forged: what is for anyone, a client may say."""

    def __init__(self, ports: Mapping[str, Listening], deliver: Callable[[Packet], None]) -> None:
        self._ports = ports
        self._deliver = deliver
        self._overheard: deque[Packet] = deque(maxlen=OVERHEARD_MAX)

    def overhear(self, packet: Packet) -> None:
        port = self._ports.get(packet.to)
        if port is not None and not packet.is_reply and not port.is_for_anyone(packet.topic):
            self._overheard.append(packet)

    def strike(self, stream: random.Random) -> None:
        """Say one of them again: as it was, or with other numbers; as itself, or as a node."""
        if not self._overheard:
            return
        packet = stream.choice(self._overheard)
        data = packet.data if stream.random() < 0.3 else _encode(_alter(_decode(packet.data), stream))
        sender = stream.choice((packet.sender, STRANGER))
        self._deliver(replace(packet, data=data, sender=sender, forged=True))


def _alter(value: Any, stream: random.Random) -> Any:
    """The same message, with some of its numbers raised."""
    if isinstance(value, dict):
        return {key: _alter(each, stream) for key, each in value.items()}
    if isinstance(value, list):
        return [_alter(each, stream) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and stream.random() < 0.5:
        return stream.choice((HUGE, value + 1, value + 1000))
    return value
