"""ZooKeeper's wire format: the few records that the store sends and reads.

Frames are a four-byte length and a body of big-endian numbers, counted strings and counted bytes.
Untrusted bytes: a body that ends early or counts beyond its end raises FormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bursar.errors import (
    EphemeralParentError,
    FormatError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    TooLargeError,
    VersionError,
)
from bursar.world import Check, CheckAbsent, Create, Delete, Operation, Set, Stat

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
GET_CHILDREN, SYNC, PING, CHECK, MULTI = 8, 9, 11, 13, 14
REMOVE_WATCHES, AUTH, ADD_WATCH, CLOSE = 18, 100, 106, -11
WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4
WATCH_ANY = 3
NO_NODE = -101
NOT_REACHED = -2
"""In the answer to a failed transaction: this operation came after the one that failed."""

REQUEST_HEAD_BYTES = 8
FRAME_MAX_BYTES = 32 * 1024 * 1024
PASSWORD_BYTES = 16
PERMISSIONS_ALL = 31

_ERRORS: dict[int, tuple[type[StoreError], str]] = {
    NO_NODE: (NodeMissingError, "no such node"),
    -103: (VersionError, "the version given is not the node's"),
    -108: (EphemeralParentError, "an ephemeral node cannot have children"),
    -110: (NodeExistsError, "the node exists"),
    -111: (NotEmptyError, "the node has children"),
    -112: (SessionExpiredError, "the session is over: renew() opens a new one"),
    -4: (StoreUnknownError, "the connection was lost, it may or may not have happened: read back"),
    -7: (StoreUnknownError, "no reply in time, it may or may not have happened: read back"),
    -118: (StoreUnknownError, "the session moved to another server: read back, then try again"),
    -5: (TooLargeError, "more than the server takes (jute.maxbuffer)"),
    -102: (StoreError, "not allowed: give the user and password that created the node"),
    -115: (StoreError, "the user and password were refused"),
    -8: (StoreError, "the server calls it a bad argument"),
}

_int = struct.Struct(">i")
_long = struct.Struct(">q")
_header = struct.Struct(">ii")
_reply = struct.Struct(">iqi")
_multi = struct.Struct(">i?i")
_stat = struct.Struct(">qqqqiiiqiiq")
_connect = struct.Struct(">iqiq")
_connected = struct.Struct(">iiq")
_END_OF_MULTI = _multi.pack(-1, True, -1)


class Reply(NamedTuple):
    """The head of an answer; the body begins at `HEAD_BYTES`."""

    xid: int
    revision: int
    error: int


HEAD_BYTES = _reply.size


class Connected(NamedTuple):
    """timeout_ms is 0 when the session asked for is over."""

    timeout_ms: int
    session: int
    password: bytes


def make_error(code: int, what: str) -> StoreError:
    kind, why = _ERRORS.get(code, (StoreError, f"ZooKeeper answered with error {code}"))
    return kind(f"{what}: {why}")


# Writing


def frame(body: bytes) -> bytes:
    return _int.pack(len(body)) + body


def request(xid: int, kind: int, body: bytes = b"") -> bytes:
    return _int.pack(len(body) + REQUEST_HEAD_BYTES) + _header.pack(xid, kind) + body


def text(value: str) -> bytes:
    encoded = value.encode()
    return _int.pack(len(encoded)) + encoded


def connect(revision: int, timeout_ms: int, session: int, password: bytes) -> bytes:
    head = _connect.pack(0, revision, timeout_ms, session)
    return frame(head + _int.pack(len(password)) + password + b"\0")


def access(scheme: str, identity: str) -> bytes:
    """An access list of one: everything for this identity."""
    return _int.pack(1) + _int.pack(PERMISSIONS_ALL) + text(scheme) + text(identity)


def transaction(operations: Sequence[Operation], chroot: str, acl: bytes) -> tuple[bytes, list[int]]:
    """The body, and for each record in it the position of its operation: ZooKeeper has no check
    that a node is absent, so that one is written as creating and deleting it."""
    parts: list[bytes] = []
    positions: list[int] = []
    for position, operation in enumerate(operations):
        for kind, body in _records(operation, chroot, acl):
            parts.append(_multi.pack(kind, False, -1))
            parts.append(body)
            positions.append(position)
    parts.append(_END_OF_MULTI)
    return b"".join(parts), positions


def _records(operation: Operation, chroot: str, acl: bytes) -> list[tuple[int, bytes]]:
    path = text(rooted(chroot, operation.path))
    match operation:
        case Create():
            flags = operation.ephemeral + 2 * operation.sequential
            data = _int.pack(len(operation.data)) + operation.data
            return [(CREATE, path + data + acl + _int.pack(flags))]
        case Set():
            data = _int.pack(len(operation.data)) + operation.data
            return [(SET_DATA, path + data + _version(operation.version))]
        case Delete():
            return [(DELETE, path + _version(operation.version))]
        case Check():
            return [(CHECK, path + _version(operation.version))]
        case CheckAbsent():
            return [(CREATE, path + _int.pack(0) + acl + _int.pack(0)), (DELETE, path + _version(None))]


def _version(version: int | None) -> bytes:
    return _int.pack(-1 if version is None else version)


def rooted(chroot: str, path: str) -> str:
    return path if not chroot else chroot if path == "/" else chroot + path


# Reading


def read_reply(body: bytes) -> Reply:
    try:
        return Reply._make(_reply.unpack_from(body))
    except struct.error as error:
        raise FormatError(f"an answer of {len(body)} bytes has no header") from error


def read_connected(body: bytes) -> Connected:
    try:
        _, timeout_ms, session = _connected.unpack_from(body)
    except struct.error as error:
        raise FormatError("the answer to connecting is cut short: is this a ZooKeeper server?") from error
    password, _ = _read_bytes(body, _connected.size)
    return Connected(timeout_ms, session, password)


def read_stat(body: bytes, offset: int) -> Stat:
    created, modified, _, _, version, _, _, owner, _, children, _ = _unpack(_stat, body, offset)
    return Stat(version, created, modified, owner, children)


def read_data(body: bytes, offset: int) -> tuple[bytes, Stat]:
    data, offset = _read_bytes(body, offset)
    return data, read_stat(body, offset)


def read_names(body: bytes, offset: int) -> list[str]:
    (count,) = _unpack(_int, body, offset)
    offset += 4
    names = []
    for _ in range(count):
        name, offset = read_text(body, offset)
        names.append(name)
    return names


def read_text(body: bytes, offset: int) -> tuple[str, int]:
    raw, offset = _read_bytes(body, offset)
    try:
        return raw.decode(), offset
    except UnicodeDecodeError as error:
        raise FormatError("a name that is not UTF-8") from error


class Event(NamedTuple):
    kind: int
    path: str


def read_event(body: bytes) -> Event:
    kind, _ = _unpack(_header, body, HEAD_BYTES)
    path, _ = read_text(body, HEAD_BYTES + 8)
    return Event(kind, path)


def read_results(body: bytes, offset: int, records: int) -> list[str | Stat | None] | tuple[int, int]:
    """A result for each record, or (which failed, its error)."""
    results: list[str | Stat | None] = []
    failed: tuple[int, int] | None = None
    for number in range(records):
        kind, _, _ = _unpack(_multi, body, offset)
        offset += _multi.size
        result: str | Stat | None = None
        if kind == CREATE:
            result, offset = read_text(body, offset)
        elif kind == SET_DATA:
            result = read_stat(body, offset)
            offset += _stat.size
        elif kind == -1:
            (code,) = _unpack(_int, body, offset)
            offset += 4
            if failed is None and code not in (0, NOT_REACHED):
                failed = (number, code)
        results.append(result)
    return results if failed is None else failed


def _read_bytes(body: bytes, offset: int) -> tuple[bytes, int]:
    (size,) = _unpack(_int, body, offset)
    offset += 4
    if size < 0:
        return b"", offset
    if offset + size > len(body):
        raise FormatError(f"an answer counts {size} bytes where {len(body) - offset} are left")
    return body[offset : offset + size], offset + size


def _unpack(form: struct.Struct, body: bytes, offset: int) -> tuple[int, ...]:
    try:
        return form.unpack_from(body, offset)
    except struct.error as error:
        raise FormatError(f"an answer of {len(body)} bytes ends early") from error
