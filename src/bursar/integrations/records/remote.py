"""The same records behind a Unix socket: a process serves every request (two-sided).

A request is eight bytes: the operation and how many records; then their numbers (and for a write
the bytes). The answer to a read is the records, to a write one byte.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bursar.errors import FormatError, NoAnswerError, UnreachableError, UsageError
from bursar.integrations.records.store import RecordStore

READ, WRITE = 1, 2
COUNT_MAX = 1024
TIMEOUT_S = 10.0

_REQUEST = struct.Struct("<II")


class RecordServer:
    """Serves a store's records to the users who may open the socket; a thread a connection."""

    def __init__(self, store: RecordStore, path: Path) -> None:
        self.path = path
        self._store = store
        self._listener = socket.socket(socket.AF_UNIX)
        old = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        except OSError as error:
            self._listener.close()
            raise UsageError(f"{path} cannot be served: {error.strerror}; remove it first") from error
        finally:
            os.umask(old)
        self._listener.listen(64)

    def run(self) -> None:
        """Serve until `close`."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while self._answer(connection):
                    pass
            except (OSError, FormatError, UsageError):
                return  # the client is gone, or speaks something else: it gets no more answers

    def _answer(self, connection: socket.socket) -> bool:
        head = connection.recv(_REQUEST.size, socket.MSG_WAITALL)
        if len(head) < _REQUEST.size:
            return False
        operation, count = _REQUEST.unpack(head)
        if (
            operation not in (READ, WRITE)
            or not 1 <= count <= COUNT_MAX
            or (operation == WRITE and count > 1)
        ):
            raise FormatError("not a request for records")
        indexes = np.frombuffer(_receive(connection, 8 * count), dtype=np.int64)
        if operation == WRITE:
            self._store.write(int(indexes[0]), bytes(_receive(connection, self._store.size)))
            connection.sendall(b"\1")
        else:
            connection.sendall(memoryview(self._store.read_many(indexes)).cast("B"))
        return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)


class RemoteStore:
    """A client of `RecordServer`, with the methods of `RecordStore`."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise UnreachableError(f"no record server answers at {path}: {error.strerror}") from error

    def read(self, index: int) -> bytes:
        return bytes(self._ask(READ, np.array([index], dtype=np.int64), b"", self.size))

    def read_many(self, indexes: Any, out: Any | None = None) -> Any:
        wanted = np.ascontiguousarray(indexes, dtype=np.int64)
        if not 1 <= len(wanted) <= COUNT_MAX:
            raise UsageError(f"read 1 to {COUNT_MAX} records at once, not {len(wanted)}")
        data = self._ask(READ, wanted, b"", self.size * len(wanted))
        return np.frombuffer(data, dtype=np.uint64).reshape(len(wanted), -1)

    def write(self, index: int, data: bytes) -> None:
        if len(data) > self.size:
            raise UsageError(f"a record holds {self.size} bytes, not {len(data)}")
        self._ask(WRITE, np.array([index], dtype=np.int64), data.ljust(self.size, b"\0"), 1)

    def _ask(self, operation: int, indexes: Any, data: bytes, answer_bytes: int) -> bytearray:
        try:
            self._socket.sendall(_REQUEST.pack(operation, len(indexes)) + indexes.tobytes() + data)
            return _receive(self._socket, answer_bytes)
        except (OSError, FormatError) as error:
            raise NoAnswerError(f"{self._path} did not answer: {error}; open it again") from error

    def close(self) -> None:
        self._socket.close()


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise FormatError("the connection ended in the middle of a message")
        got += count
    return data
