"""Frames: how messages lie on a connection.

A frame is a head of ten bytes (length of what follows, kind, number, length of the topic), the topic,
and a body in msgpack:

    HELLO    0       ""     Hello                          the first frame of either side, the dialler's first
    PROOF    0       ""     bytes                          that a node is of the fleet (`identity`)
    CALL     number  topic  message                        wants the REPLY or FAILURE of that number
    SEND     0       topic  message                        wants nothing
    REPLY    number  ""     message
    FAILURE  number  ""     text
    GOODBYE  0       ""     text                           why the sender closes the connection

The length is checked before anything is kept, so a peer can make this node hold one frame at most.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from bursar.errors import FormatError, UsageError
from bursar.world import MESSAGE_MAX_BYTES, NAME_MAX_BYTES

VERSION = 2
ENVELOPE_MAX_BYTES = 1024
FRAME_MAX_BYTES = MESSAGE_MAX_BYTES + ENVELOPE_MAX_BYTES
LENGTH_BYTES = 4
NUMBERS = 2**32

HELLO, CALL, SEND, REPLY, FAILURE, GOODBYE, PROOF = range(7)

Envelope = tuple[int, int, bytes, bytes]
"""Kind, number, topic, body."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who is at the other side of a connection. `nonce`: of a node, to be proved by the fleet's secret;
    a client has none. `proof`: of the node that was dialled by another (`identity`)."""

    version: int
    name: str
    incarnation: int
    nonce: bytes = b""
    proof: bytes = b""


_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IBIB")
_AFTER_LENGTH = _HEAD.size - LENGTH_BYTES
HEAD_BYTES = _HEAD.size
_encode = msgspec.msgpack.Encoder().encode
_topics: dict[str, bytes] = {"": b""}
decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(kind: int, number: int, topic: str, body: Any) -> bytes:
    """One whole frame. Raises UsageError for a body beyond what any node accepts."""
    name = _topics.get(topic)
    if name is None:
        name = _topics[topic] = _encode_topic(topic)
    payload = _encode(body)
    size = _AFTER_LENGTH + len(name) + len(payload)
    if size > FRAME_MAX_BYTES:
        raise UsageError(
            f"a message of {size} bytes on {topic!r} is larger than {MESSAGE_MAX_BYTES}; send it in parts"
        )
    return _HEAD.pack(size, kind, number, len(name)) + name + payload


def _encode_topic(topic: str) -> bytes:
    name = topic.encode()
    if len(name) > NAME_MAX_BYTES:
        raise UsageError(f"a topic has at most {NAME_MAX_BYTES} bytes, not {len(name)}")
    return name


def decoder_of(message_type: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder for a message type or union, made once."""
    decoder = decoders.get(message_type)
    if decoder is None:
        decoder = decoders[message_type] = msgspec.msgpack.Decoder(message_type)
    return decoder


class Splitter:
    """Cuts the bytes of a connection into frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Envelope]:
        """The frames that are complete now. Raises FormatError for lengths that cannot be."""
        if not self._rest and len(data) >= HEAD_BYTES:
            # By far the most common: one whole frame.
            size, kind, number, length = _HEAD.unpack_from(data)
            body = HEAD_BYTES + length
            if size + LENGTH_BYTES == len(data) >= body and size <= FRAME_MAX_BYTES:
                return [(kind, number, data[HEAD_BYTES:body], data[body:])]
        self._rest += data
        return self._split()

    def _split(self) -> list[Envelope]:
        rest = self._rest
        found: list[Envelope] = []
        start = 0
        while len(rest) - start >= LENGTH_BYTES:
            size = _LENGTH.unpack_from(rest, start)[0]
            if not _AFTER_LENGTH <= size <= FRAME_MAX_BYTES:
                raise FormatError(f"a frame of {size} bytes; the most is {FRAME_MAX_BYTES}")
            end = start + LENGTH_BYTES + size
            if end > len(rest):
                break
            _, kind, number, length = _HEAD.unpack_from(rest, start)
            body = start + HEAD_BYTES + length
            if body > end:
                raise FormatError(f"a frame of {size} bytes with a topic of {length}")
            found.append((kind, number, bytes(rest[start + HEAD_BYTES : body]), bytes(rest[body:end])))
            start = end
        if start:
            del rest[:start]
        return found
