"""Shared words over TCP: a Redis server keeps them, for clients on several hosts.

Redis runs one script at a time, so each operation here is atomic and takes effect in one order for
all. Its own counters are signed, so additions are made on two halves of a word, in a script.

A failure to reach the server is a NetworkError: the operation may or may not have happened. For a
pool that is safe, since a token whose fate is unknown counts as spent.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from bursar.errors import FormatError, NoAnswerError, UsageError
from bursar.resource.checks import check_name
from bursar.world import MILLISECOND_NS, SECOND_NS, WORD_MAX

PREFIX = "bursar:"
PORT = 6379
TIMEOUT_S = 5.0
POLL_NS = 2 * MILLISECOND_NS

# A word is kept as 16 hexadecimal digits: Lua's numbers hold 53 bits, so it is added in halves.
_ADD = """
local before = redis.call('GET', KEYS[1]) or '0000000000000000'
if #before ~= 16 then return redis.error_reply('not a word') end
local low = tonumber(string.sub(before, 9), 16) + tonumber(string.sub(ARGV[1], 9), 16)
local high = tonumber(string.sub(before, 1, 8), 16) + tonumber(string.sub(ARGV[1], 1, 8), 16)
if low >= 4294967296 then low = low - 4294967296; high = high + 1 end
if high >= 4294967296 then high = high - 4294967296 end
redis.call('SET', KEYS[1], string.format('%08x%08x', high, low))
return before
"""
_SWAP = """
local before = redis.call('GET', KEYS[1]) or '0000000000000000'
if before == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return before
"""


class RedisWords:
    """Implements `bursar.world.Words`. It connects at the first use."""

    def __init__(self, host: str, port: int = PORT, *, timeout_s: float = TIMEOUT_S) -> None:
        self._where = f"redis://{host}:{port}"
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ModuleNotFoundError as error:
            raise UsageError("words in Redis need its package: pip install 'bursar[redis]'") from error
        # No retries: an addition that was sent twice would be made twice.
        self._client: Any = redis.Redis(
            host=host,
            port=port,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._errors: tuple[type[Exception], ...] = (redis.ConnectionError, redis.TimeoutError)
        self._wrong: tuple[type[Exception], ...] = (redis.ResponseError,)
        self._add = self._client.register_script(_ADD)
        self._swap = self._client.register_script(_SWAP)

    @classmethod
    def at(cls, url: str) -> RedisWords:
        """The words at "redis://host:port"."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{url!r}: {error}; write redis://host:{PORT}") from error
        if parts.scheme != "redis" or not host:
            raise UsageError(f"{url!r} is not a Redis server; write redis://host:{PORT}")
        return cls(host, PORT if port is None else port)

    def read(self, name: str) -> int:
        return _parse(self._ask(lambda: self._client.get(_key(name))), name)

    def write(self, name: str, value: int) -> None:
        self._ask(lambda: self._client.set(_key(name), _write(value)))

    def fetch_add(self, name: str, amount: int) -> int:
        key, text = _key(name), _write(amount & WORD_MAX)
        return _parse(self._ask(lambda: self._add(keys=[key], args=[text])), name)

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        key, arguments = _key(name), [_write(expected), _write(value)]
        return _parse(self._ask(lambda: self._swap(keys=[key], args=arguments)), name)

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ns / SECOND_NS
        while True:
            found = self.read(name)
            left_s = until - loop.time()
            if found != value or left_s <= 0:
                return found
            await asyncio.sleep(min(POLL_NS / SECOND_NS, left_s))

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except self._errors as error:
            raise NoAnswerError(f"{self._where}: {error}; is the server running?") from error
        except self._wrong as error:
            raise FormatError(
                f"{self._where} holds something else than a word: {error}; delete the keys {PREFIX}*"
            ) from error

    def close(self) -> None:
        self._client.close()


def _key(name: str) -> str:
    check_name("word", name)
    return PREFIX + name


def _write(value: int) -> str:
    if not 0 <= value <= WORD_MAX:
        raise UsageError(f"a word holds 0 to 2^64 - 1, not {value}")
    return f"{value:016x}"


def _parse(text: str | None, name: str) -> int:
    if text is None:
        return 0
    try:
        value = int(text, 16)
    except ValueError:
        value = -1
    if len(text) != 16 or value < 0:
        raise FormatError(f"word {name!r} holds {text[:40]!r}, which is not one; delete the keys {PREFIX}*")
    return value
