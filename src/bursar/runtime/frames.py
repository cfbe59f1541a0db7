"""Frames: how messages lie on a connection.

A frame is four bytes of length, then a msgpack array of kind, number, topic and body:

    HELLO    0       ""     [version, name, incarnation]   the first frame of either side, the dialler's first
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
from bursar.world import MESSAGE_MAX_BYTES

VERSION = 1
ENVELOPE_MAX_BYTES = 1024
FRAME_MAX_BYTES = MESSAGE_MAX_BYTES + ENVELOPE_MAX_BYTES
LENGTH_BYTES = 4

HELLO, CALL, SEND, REPLY, FAILURE, GOODBYE = range(6)

Envelope = tuple[int, int, str, msgspec.Raw]
DECODE_ERRORS = (msgspec.DecodeError, RecursionError, ValueError)
"""What msgspec raises for bytes that are not what they should be: malformed, nested too deep, or
text that is not UTF-8."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who is at the other side of a connection."""

    version: int
    name: str
    incarnation: int


_LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(kind: int, number: int, topic: str, body: Any) -> bytes:
    """One whole frame. Raises UsageError for a body beyond what any node accepts."""
    payload = _encode((kind, number, topic, body))
    size = len(payload)
    if size > FRAME_MAX_BYTES:
        raise UsageError(
            f"a message of {size} bytes on {topic!r} is larger than {MESSAGE_MAX_BYTES}; send it in parts"
        )
    return _LENGTH.pack(size) + payload


def open_envelope(payload: bytes) -> Envelope:
    try:
        envelope: Envelope = _decode_envelope(payload)
    except DECODE_ERRORS as error:
        raise FormatError(f"not a frame: {error}") from error
    return envelope


def decoder_of(message_type: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder for a message type or union, made once."""
    decoder = decoders.get(message_type)
    if decoder is None:
        decoder = decoders[message_type] = msgspec.msgpack.Decoder(message_type)
    return decoder


class Splitter:
    """Cuts the bytes of a connection into payloads of frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now. Raises FormatError for a length out of bounds."""
        if not self._rest:
            size = len(data) - LENGTH_BYTES
            if size > 0 and _LENGTH.unpack_from(data)[0] == size <= FRAME_MAX_BYTES:
                return [data[LENGTH_BYTES:]]
        self._rest += data
        return self._split()

    def _split(self) -> list[bytes]:
        rest = self._rest
        payloads: list[bytes] = []
        start = 0
        while len(rest) - start >= LENGTH_BYTES:
            size = _LENGTH.unpack_from(rest, start)[0]
            if not 0 < size <= FRAME_MAX_BYTES:
                raise FormatError(f"a frame of {size} bytes; the most is {FRAME_MAX_BYTES}")
            end = start + LENGTH_BYTES + size
            if end > len(rest):
                break
            payloads.append(bytes(rest[start + LENGTH_BYTES : end]))
            start = end
        if start:
            del rest[:start]
        return payloads
