"""A real memcached behind the queues: a few connections, many requests in flight on each.

The text protocol answers in order, so a connection needs no numbers: whoever asked first is
answered first. Everything a server says is bounded in size, every request in time; a connection
that breaks either rule, or the protocol, is closed, and the next request opens another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from bursar.decoding import is_number
from bursar.errors import FormatError, NetworkError, NoAnswerError, RemoteError, UnreachableError, UsageError

KEY_MAX_BYTES = 250
VALUE_MAX_BYTES = 1024 * 1024
LINE_MAX_BYTES = 2048
CONNECTIONS = 4
TIMEOUT_S = 2.0

_MISS = b"END"
_STORED = b"STORED"
_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_Answer = asyncio.Future[Any]


class MemcachedBackend:
    """`get`, `set` and `delete` at one memcached, at "host:port" or "memcached://host:port"."""

    def __init__(self, address: str, *, connections: int = CONNECTIONS, timeout_s: float = TIMEOUT_S) -> None:
        if connections < 1:
            raise UsageError(f"connections is {connections}: pass at least 1")
        self.host, self.port = read_address(address)
        self._timeout_s = timeout_s
        self._slots: list[Connection | None] = [None] * connections
        self._dials: list[asyncio.Lock] = [asyncio.Lock() for _ in range(connections)]
        self._next = 0

    async def open(self) -> None:
        """Connect now, so that a server that is not there is found now. Raises UnreachableError."""
        for slot in range(len(self._slots)):
            await self._connect(slot)

    async def get(self, key: str) -> bytes | None:
        """The value, or None where there is none."""
        value: bytes | None = await self._ask(b"get %b\r\n" % _check_key(key))
        return value

    async def set(self, key: str, value: bytes) -> None:
        """Store the value without expiry. Raises RemoteError if the server would not."""
        if len(value) > VALUE_MAX_BYTES:
            raise UsageError(f"a value of {len(value)} bytes is more than memcached takes, {VALUE_MAX_BYTES}")
        stored = await self._ask(b"set %b 0 0 %d\r\n%b\r\n" % (_check_key(key), len(value), value))
        if stored != _STORED:
            raise RemoteError(f"memcached at {self.host}:{self.port} did not store {key!r}: {stored!r}")

    async def delete(self, key: str) -> bool:
        """Whether there was a value to delete."""
        return bool(await self._ask(b"delete %b\r\n" % _check_key(key)) == b"DELETED")

    async def _ask(self, request: bytes) -> Any:
        connection = self._pick()
        if connection is None:
            connection = await self._connect(self._next)
        return await connection.ask(request)

    def _pick(self) -> Connection | None:
        """In turn: with requests of one size that is as even as counting them."""
        self._next = (self._next + 1) % len(self._slots)
        connection = self._slots[self._next]
        return connection if connection is not None and connection.usable else None

    async def _connect(self, slot: int) -> Connection:
        async with self._dials[slot]:
            connection = self._slots[slot]
            if connection is not None and connection.usable:
                return connection
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(self._timeout_s):
                    _, connection = await loop.create_connection(self._make, self.host, self.port)
            except (OSError, TimeoutError) as error:
                raise UnreachableError(
                    f"no memcached answers at {self.host}:{self.port}: {error or 'no answer in time'}"
                ) from error
            self._slots[slot] = connection
            return connection

    def _make(self) -> Connection:
        return Connection(f"{self.host}:{self.port}", self._timeout_s)

    async def close(self) -> None:
        for connection in self._slots:
            if connection is not None:
                connection.fail(NetworkError("the backend was closed"))


class Connection(asyncio.Protocol):
    """One connection: requests out, answers in, in the same order.

    Time is watched by one timer a connection, not one a request: it looks at the oldest."""

    def __init__(self, where: str, timeout_s: float) -> None:
        self.usable = False
        self._where = where
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, _Answer]] = deque()
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(
            NoAnswerError(f"memcached at {self._where} closed the connection: {exc or 'end of stream'}")
        )

    def ask(self, request: bytes) -> _Answer:
        """The answer to come. Raises UnreachableError if the connection is gone: nothing was sent."""
        if self._transport is None or not self.usable:
            raise UnreachableError(f"the connection to memcached at {self._where} is closed")
        answer: _Answer = self._loop.create_future()
        self._waiting.append((self._loop.time(), answer))
        self._transport.write(request)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)
        return answer

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0][0] + self._timeout_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self.fail(NoAnswerError(f"memcached at {self._where} did not answer within {self._timeout_s:g} s"))

    def fail(self, error: NetworkError) -> None:
        """Close it; everyone who waits gets the error."""
        self.usable = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._buffer and self._read_answer():
                continue
        except FormatError as error:
            self.fail(NoAnswerError(f"memcached at {self._where} broke the protocol: {error}"))

    def _read_answer(self) -> bool:
        """Take one answer from the buffer; False if it is not whole yet."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > LINE_MAX_BYTES:
                raise FormatError(f"a line of more than {LINE_MAX_BYTES} bytes")
            return False
        line = bytes(self._buffer[:end])
        if not line.startswith(b"VALUE "):
            del self._buffer[: end + 2]
            self._answer(line)
            return True
        size = _read_size(line)
        whole = end + 2 + size + 2 + len(_MISS) + 2
        if len(self._buffer) < whole:
            return False
        if self._buffer[whole - 7 : whole] != b"\r\nEND\r\n":
            raise FormatError("a value that does not end where its length says")
        value = bytes(self._buffer[end + 2 : end + 2 + size])
        del self._buffer[:whole]
        self._resolve(value)
        return True

    def _answer(self, line: bytes) -> None:
        if line == _MISS:
            self._resolve(None)
        elif line.split(b" ", 1)[0] in _ERRORS:
            self._resolve(RemoteError(f"memcached at {self._where}: {line.decode(errors='replace')}"))
        else:
            self._resolve(line)

    def _resolve(self, result: bytes | RemoteError | None) -> None:
        if not self._waiting:
            raise FormatError("an answer that nobody asked for")
        _, answer = self._waiting.popleft()
        if answer.done():
            return
        if isinstance(result, RemoteError):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _read_size(line: bytes) -> int:
    words = line.split(b" ")
    if len(words) < 4 or not words[3].isdigit() or len(words[3]) > 7:
        raise FormatError(f"not the head of a value: {line[:80]!r}")
    size = int(words[3])
    if size > VALUE_MAX_BYTES:
        raise FormatError(f"a value of {size} bytes, more than {VALUE_MAX_BYTES}")
    return size


def _check_key(key: str) -> bytes:
    data = key.encode()
    if not 0 < len(data) <= KEY_MAX_BYTES or any(byte <= 32 or byte == 127 for byte in data):
        raise UsageError(
            f"{key[:40]!r} is no key for memcached: 1 to {KEY_MAX_BYTES} bytes, no space or control character"
        )
    return data


def read_address(address: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "memcached://host:port"."""
    host, _, port = address.removeprefix("memcached://").rpartition(":")
    if not host or not is_number(port) or not 0 < int(port) < 65536:
        raise UsageError(f"{address!r} is not the address of a memcached; write memcached://host:port")
    return host.strip("[]"), int(port)
