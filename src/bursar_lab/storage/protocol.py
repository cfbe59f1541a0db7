"""The bytes between tenants and the storage target.

A connection begins with a hello: two bytes of length, then JSON with the tenant's name and the
number of its file. After that requests, each a header of 24 bytes and, for a write, its data;
replies come in the order in which the I/O was done, each a header of 16 bytes and, for a read,
its data. Everything a peer says is bounded before it is believed.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from bursar.errors import FormatError, NetworkError
from bursar.resource import check_name

IO_MAX_BYTES = 1024 * 1024
FILE_MAX_BYTES = 1024 * 1024 * 1024
HELLO_MAX_BYTES = 1024
OUTSTANDING_MAX = 64

READ, WRITE = 0, 1
OPERATIONS = ("read", "write")
DONE, FAILED = 0, 1

_REQUEST = struct.Struct("!QB3xIQ")
_REPLY = struct.Struct("!QB3xI")


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    file: int


class Command(msgspec.Struct, frozen=True):
    """One I/O: `number` is the sender's own and comes back with the reply."""

    number: int
    operation: int
    length: int
    offset: int


class Outcome(msgspec.Struct, frozen=True):
    number: int
    status: int
    length: int


def send_hello(connection: socket.socket, hello: Hello) -> None:
    data = msgspec.json.encode(hello)
    connection.sendall(struct.pack("!H", len(data)) + data)


def read_hello(connection: socket.socket) -> Hello:
    (length,) = struct.unpack("!H", _read(connection, 2))
    if length > HELLO_MAX_BYTES:
        raise FormatError(f"a hello has at most {HELLO_MAX_BYTES} bytes, not {length}")
    try:
        hello = msgspec.json.decode(_read(connection, length), type=Hello)
    except msgspec.MsgspecError as error:
        raise FormatError(f"this is no hello: {error}") from error
    check_name("tenant", hello.tenant)
    if "/" in hello.tenant or hello.tenant.startswith("."):
        raise FormatError(f"a tenant of this target names its files: {hello.tenant!r} cannot")
    if not 0 <= hello.file < 2**31:
        raise FormatError(f"a file's number is 0 to 2^31, not {hello.file}")
    return hello


def send_command(connection: socket.socket, command: Command, data: memoryview | bytes = b"") -> None:
    connection.sendall(_REQUEST.pack(command.number, command.operation, command.length, command.offset))
    if command.operation == WRITE:
        connection.sendall(data)


def read_command(connection: socket.socket) -> tuple[Command, bytearray] | None:
    """The next command and its data; None when the peer is gone. Raises FormatError."""
    header = _read_or_end(connection, _REQUEST.size)
    if header is None:
        return None
    command = Command(*_REQUEST.unpack(header))
    if command.operation not in (READ, WRITE):
        raise FormatError(f"operation {command.operation} is neither read (0) nor write (1)")
    if not 1 <= command.length <= IO_MAX_BYTES:
        raise FormatError(f"one I/O has 1 to {IO_MAX_BYTES} bytes, not {command.length}")
    if command.offset + command.length > FILE_MAX_BYTES:
        raise FormatError(f"a file ends at {FILE_MAX_BYTES} bytes; {command.offset} is too far")
    data = _read(connection, command.length) if command.operation == WRITE else bytearray()
    return command, data


def send_outcome(connection: socket.socket, outcome: Outcome, data: bytes = b"") -> None:
    connection.sendall(_REPLY.pack(outcome.number, outcome.status, outcome.length))
    if data:
        connection.sendall(data)


def read_outcome(connection: socket.socket) -> Outcome:
    """The next outcome; the data of a read is taken in and let go."""
    outcome = Outcome(*_REPLY.unpack(_read(connection, _REPLY.size)))
    if outcome.length:
        _read(connection, outcome.length)
    return outcome


def _read(connection: socket.socket, length: int) -> bytearray:
    data = _read_or_end(connection, length)
    if data is None:
        raise NetworkError("the other side closed the connection")
    return data


def _read_or_end(connection: socket.socket, length: int) -> bytearray | None:
    data = bytearray(length)
    view = memoryview(data)
    filled = 0
    while filled < length:
        got = connection.recv_into(view[filled:])
        if got == 0:
            if filled:
                raise NetworkError("the other side closed the connection in the middle of a message")
            return None
        filled += got
    return data
